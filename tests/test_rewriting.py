"""Rewritten graphs compute what they did, with fewer or cheaper operators; on other devices they stay."""

from collections import Counter

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from ebmbounds.execution import rewrite
from ebmbounds.rewriting import join_products, merge_equal_nodes, simplify_powers

aten = torch.ops.aten


def join_all_products(graph: fx.Graph) -> None:
    join_products(graph, (aten.mm.default, aten.bmm.default))


def for_a_cpu(graph: fx.Graph) -> None:
    rewrite(graph, on_gpu=False)


def traced(f, *inputs) -> fx.GraphModule:
    # As the compiler has it: t() is a permutation of the axes.
    table = {aten.t.default: lambda x: x.permute(1, 0)}
    return make_fx(f, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def operators(module: fx.GraphModule) -> Counter:
    return Counter(node.target for node in module.graph.nodes if node.op == "call_function")


def check(f, rewriting, *inputs) -> tuple[Counter, Counter]:
    """The operators before and after, where the values agree."""
    module = traced(f, *inputs)
    before = operators(module)
    rewriting(module.graph)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*inputs), f(*inputs))
    return before, operators(module)


def test_equal_calls_become_one():
    x = torch.rand(5)
    _, after = check(lambda x: torch.exp(x) + torch.exp(x.detach()), merge_equal_nodes, x)
    assert after[aten.exp.default] == 1


def test_batch_norms_derivatives_take_a_root():
    norm = torch.nn.BatchNorm1d(4).eval().requires_grad_(False)
    norm.running_var.uniform_(0.5, 2.0)
    x, u = torch.randn(2, 8, 4)

    def jvp(x, u):
        pull = torch.func.vjp(norm, x)[1]
        return torch.func.vjp(lambda u: pull(u)[0], torch.zeros_like(u))[1](u)[0]

    before, after = check(jvp, simplify_powers, x, u)
    assert after[aten.rsqrt.default] == before[aten.pow.Tensor_Scalar] - after[aten.pow.Tensor_Scalar] == 1


@pytest.mark.parametrize("base", [0.9, 0.999, 0.5])
@pytest.mark.parametrize("count", [0, 1, 17, 10_000])
def test_powers_of_a_number_are_exponentials(base, count):
    before, after = check(lambda n: 1 - base**n, simplify_powers, torch.tensor(count))
    assert before[aten.pow.Scalar] == 1 and not after[aten.pow.Scalar]


def test_powers_of_whole_numbers_stay_whole():
    before, after = check(lambda n: 3**n, simplify_powers, torch.arange(4))
    assert before == after


def weight_gradient(uses: int, n: int, layers: int = 1):
    """The gradient of weights that a loss uses several times, some through a derivative with respect to the input."""
    x = torch.randn(uses, n, 40, dtype=torch.float64)
    weights = [torch.randn(40, 40, dtype=torch.float64) for _ in range(layers)]

    def network(weights, x):
        for w in weights:
            x = torch.tanh(torch.nn.functional.linear(x, w))
        return x

    def loss(weights, x):
        slope = torch.func.grad(lambda x: network(weights, x).sum())(x[0])
        return slope.square().sum() + sum(network(weights, part).square().sum() for part in x)

    return torch.func.grad(loss), weights, x


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("uses", [2, 3])
def test_the_gradient_of_a_weight_is_one_product(uses, layers):
    f, weights, x = weight_gradient(uses, 3, layers)
    before, after = check(f, for_a_cpu, weights, x)
    assert after[aten.mm.default] < before[aten.mm.default]
    graph = traced(f, weights, x).graph
    for_a_cpu(graph)
    (outputs,) = graph.output_node().args
    for gradient in outputs:
        assert gradient.target is aten.mm.default


def test_small_products_of_many_rows_are_left_alone():
    f, weights, x = weight_gradient(2, 64)
    before, after = check(f, join_all_products, weights, x)
    assert before[aten.mm.default] == after[aten.mm.default] and not after[aten.cat.default]


def test_a_product_that_is_also_used_alone_stays():
    x, y = torch.randn(2, 2, 8)

    def f(x, y):
        first = x.permute(1, 0) @ y
        return first, first + y.permute(1, 0) @ x

    before, after = check(f, join_all_products, x, y)
    assert before == after


def test_powers_of_other_devices_stay():
    x, n = torch.empty(2, 8, device="meta"), torch.empty((), device="meta")
    module = traced(lambda x, n: (x**-0.5, 0.9**n), x, n)
    before = str(module.graph)
    simplify_powers(module.graph)
    assert str(module.graph) == before


def test_stacked_weights_gradients_are_one_product_too():
    """With what else is in the sum left beside it."""
    x, y, v, w = torch.randn(4, 3, 2, 8)
    other = torch.randn(3, 8, 8)

    def f(x, y, v, w, other):
        return (torch.bmm(x.permute(0, 2, 1), y) + other) + torch.bmm(v.permute(0, 2, 1), w)

    before, after = check(f, lambda graph: (merge_equal_nodes(graph), join_all_products(graph)), x, y, v, w, other)
    assert before[aten.bmm.default] == 2 and after[aten.bmm.default] == 1


def test_beside_convolutions_products_stay_apart_on_a_gpu():
    def f(image, w, x, y):
        return torch.conv2d(image, image), x.permute(1, 0) @ y + w.permute(1, 0) @ x

    inputs = torch.randn(1, 1, 3, 3), *torch.randn(3, 2, 8)
    before, after = check(f, lambda graph: rewrite(graph, on_gpu=True), *inputs)
    assert before[aten.mm.default] == after[aten.mm.default] == 2
    _, after = check(f, for_a_cpu, *inputs)
    assert after[aten.mm.default] == 1
