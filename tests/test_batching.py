"""Joined products compute what they did, in fewer of them."""

from collections import Counter

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from ebmbounds.batching import join_batches
from ebmbounds.rewriting import merge_equal_nodes

aten = torch.ops.aten


def check(f, *inputs) -> tuple[Counter, Counter]:
    """The operators before and after, where the values agree."""
    module = make_fx(f, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    merge_equal_nodes(module.graph)
    before = Counter(node.target for node in module.graph.nodes)
    join_batches(module.graph)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*inputs), f(*inputs))
    return before, Counter(node.target for node in module.graph.nodes)


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in network.named_parameters()}


def test_layers_are_taken_at_all_batches_at_once():
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    f = lambda w, x, y: functional_call(network, w, x).sum() + functional_call(network, w, y).square().sum()  # noqa: E731
    before, after = check(f, weights_of(network), torch.rand(4, 3), torch.rand(6, 3))
    assert before[aten.addmm.default] == 4 and after[aten.addmm.default] == 2


def test_a_bias_stays_with_those_that_have_it():
    before, after = check(
        lambda w, b, x, v: (torch.addmm(b, x, w).tanh(), v @ w), *map(torch.rand, ((3, 4), 4, (5, 3), (2, 3)))
    )
    assert before[aten.addmm.default] == before[aten.mm.default] == 1
    assert after[aten.addmm.default] == 0 and after[aten.mm.default] == 1


def test_stacked_products_are_joined_too():
    before, after = check(lambda w, x, y: (x @ w, (y @ w).exp()), *map(torch.rand, ((2, 3, 4), (2, 5, 3), (2, 6, 3))))
    assert before[aten.bmm.default] == 2 and after[aten.bmm.default] == 1


def test_calls_that_need_each_other_are_left_apart():
    before, after = check(lambda w, x: x @ w @ w @ w, torch.rand(3, 3), torch.rand(4, 3))
    assert before[aten.mm.default] == after[aten.mm.default] == 3
