"""The graph of an iteration rewritten before code is generated for it: the same values, up to rounding, for less."""

import math
import operator
from collections.abc import Hashable, Iterable
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

aten = torch.ops.aten


def rewrite(graph: fx.Graph) -> None:
    """All of the below; on a GPU, for which the compiler and its libraries know better, `merge_equal_nodes` alone."""
    simplify_powers(graph)
    merge_equal_nodes(graph)
    join_products(graph)


def merge_equal_nodes(graph: fx.Graph) -> None:
    """Common-subexpression elimination: calls of the same pure operator with the same arguments become one."""
    split_convolution_backward(graph)
    seen: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_pure(node.target):
            continue
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        key = (node.target, str(spec), tuple((type(leaf).__name__, leaf) for leaf in leaves))
        if node.target in (aten.detach.default, aten.alias.default):
            replacement = node.args[0]
        else:
            replacement = seen.setdefault(key, node)
        if replacement is not node:
            replace(node, replacement)


def split_convolution_backward(graph: fx.Graph) -> None:
    """One call for each gradient of a convolution (input, weight, bias), as the libraries compute them anyway: a loss
    that needs the input's alone then shares it with one that needs all."""
    for node in list(graph.nodes):
        if node.target is not aten.convolution_backward.default or sum(node.args[-1]) < 2:
            continue
        for user in list(node.users):
            wanted = [i == user.args[1] for i in range(3)]
            with graph.inserting_before(user):
                single = graph.call_function(node.target, (*node.args[:-1], wanted))
                if "val" in node.meta:
                    single.meta["val"] = tuple(v if w else None for v, w in zip(node.meta["val"], wanted, strict=True))
            user.replace_input_with(node, single)
        graph.erase_node(node)


def simplify_powers(graph: fx.Graph) -> None:
    """Powers that compiled code would take for every element, on a CPU: x^(-1/2) of batch norm's variances as a
    reciprocal root, tens of times faster there; b^count of Adam as exp, which the compiler keeps once it is taken."""
    for node in list(graph.nodes):
        if node.target is aten.pow.Tensor_Scalar and node.args[1] == -0.5 and on_cpu(node):
            replace(node, insert(node, aten.rsqrt.default, node.args[0]))
        elif node.target is aten.pow.Scalar and isinstance(node.args[0], float) and node.args[0] > 0 and on_cpu(node):
            exponent = insert(node, aten.mul.Tensor, node.args[1], math.log(node.args[0]))
            replace(node, insert(node, aten.exp.default, exponent))


def join_products(graph: fx.Graph) -> None:
    """The gradient of a weight is a sum of products x'y, one for each use of the weight. On a CPU, where sums of large
    matrices take as long as the products, it becomes one product of all their rows, and transposes move into it."""
    for node in list(graph.nodes):
        if is_transpose(node) and is_joinable(node.args[0]):
            x, y = factors(node.args[0])
            replace(node, product(node, y, x))
        elif node.target is aten.add.Tensor and not node.kwargs and all(map(is_joinable, node.args)):
            xs, ys = zip(*map(factors, node.args), strict=True)
            replace(node, product(node, stacked(node, xs), stacked(node, ys)))
    graph.eliminate_dead_code()


def is_joinable(node: Any) -> bool:
    """Whether it is a product x'y on a CPU, used once, and larger than its factors, which joining copies."""
    if getattr(node, "target", None) is not aten.mm.default or len(node.users) > 1 or not is_transpose(node.args[0]):
        return False
    return on_cpu(node) and size(node) > sum(map(size, node.args))


def is_transpose(node: Any) -> bool:
    return node.target is aten.permute.default and node.args[1] == [1, 0]


def size(node: Any) -> int:
    return int(node.meta["val"].numel())


def factors(node: Any) -> tuple[Any, Any]:
    """x and y of x'y."""
    return node.args[0].args[0], node.args[1]


def product(before: fx.Node, x: Any, y: Any) -> fx.Node:
    """x'y."""
    return insert(before, aten.mm.default, insert(before, aten.permute.default, x, [1, 0]), y)


def stacked(before: fx.Node, matrices: Iterable[Any]) -> fx.Node:
    """All their rows; of one that is stacked already, its parts."""
    parts = (m.args[0] if m.target is aten.cat.default and len(m.args) == 1 else [m] for m in matrices)
    return insert(before, aten.cat.default, list(chain.from_iterable(parts)))


def insert(before: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A call in front of a node, with the shape and type that the compiler's own passes ask for."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args)
    values: Any = fx.map_arg(args, lambda argument: argument.meta["val"])
    node.meta["val"] = target(*values)
    return node


def replace(node: fx.Node, replacement: fx.Node) -> None:
    node.replace_all_uses_with(replacement)
    node.graph.erase_node(node)


def on_cpu(node: Any) -> bool:
    return bool(node.meta["val"].device.type == "cpu")


def is_pure(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
