"""The graph of an iteration rewritten before code is generated for it: the same values, up to rounding, for less."""

import math
import operator
from collections.abc import Container, Hashable
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

aten = torch.ops.aten


def merge_equal_nodes(graph: fx.Graph) -> None:
    """Common-subexpression elimination: calls of the same pure operator with the same arguments become one."""
    split_convolution_backward(graph)
    seen: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_pure(node.target):
            continue
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        key = (node.target, str(spec), tuple((type(leaf).__name__, leaf) for leaf in leaves))
        replacement: Any = node.args[0] if changes_nothing(node) else seen.setdefault(key, node)
        if replacement is not node:
            replace(node, replacement)


def changes_nothing(node: fx.Node) -> bool:
    """Whether a call gives what it is given."""
    if node.target is aten.expand.default:
        return shape(node) == shape(node.args[0])
    return node.target in (aten.detach.default, aten.alias.default)


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


class Sum(NamedTuple):
    """The sum of the products x'y of pairs (x, y), and of other matrices."""

    pairs: list[tuple[Any, Any]]
    rest: list[Any]


def join_products(graph: fx.Graph, kinds: Container[Any]) -> None:
    """The gradient of a weight is a sum of products x'y, one for each use of the weight. Sums of large matrices can
    take as long as the products, so they become one product of all their rows, and transposes move into it. `kinds` are
    the operators that count as products: of two matrices (mm), or of stacked ones (bmm)."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    sums: dict[fx.Node, Sum] = {}

    def joined(node: fx.Node, total: Sum) -> None:
        total.pairs.sort(key=lambda pair: min(place.get(m, 0) for m in pair))  # as `batching` orders rows
        product = product_of_rows(node, total.pairs)
        for other in total.rest:
            product = insert(node, aten.add.Tensor, product, other)
        replace(node, product)
        sums[product] = total

    def terms(node: Any) -> Sum:
        """A sum that is needed here alone, taken apart."""
        return sums[node] if node in sums and len(node.users) == 1 else Sum([], [node])

    for node in list(graph.nodes):
        if node.target in kinds and is_larger(node):
            sums[node] = Sum([(transposed(node), node.args[1])], [])
        elif is_transpose(node) and terms(node.args[0]).rest == []:
            joined(node, Sum([(y, x) for x, y in terms(node.args[0]).pairs], []))
        elif node.target is aten.add.Tensor and not node.kwargs and all(has_shape(a, shape(node)) for a in node.args):
            one, other = map(terms, node.args)
            total = Sum(one.pairs + other.pairs, one.rest + other.rest)
            if one.pairs and other.pairs:
                joined(node, total)
            elif total.pairs:
                sums[node] = total
    graph.eliminate_dead_code()


def is_larger(product: fx.Node) -> bool:
    """Whether it is larger than its factors, which joining copies."""
    return size(product) > sum(map(size, product.args))


def is_transpose(node: Any) -> bool:
    return node.target is aten.permute.default and node.args[1] in ([1, 0], [0, 2, 1])


def transposed(product: fx.Node) -> Any:
    """x of the product x'y."""
    left: Any = product.args[0]
    if is_transpose(left):
        return left.args[0]
    return insert(product, aten.permute.default, left, [1, 0] if len(shape(left)) == 2 else [0, 2, 1])


def product_of_rows(before: fx.Node, pairs: list[tuple[Any, Any]]) -> fx.Node:
    """The sum of x'y over pairs, as one product."""
    rows = len(shape(before)) - 2
    x, y = (insert(before, aten.cat.default, list(m), rows) if len(m) > 1 else m[0] for m in zip(*pairs, strict=True))
    x = insert(before, aten.permute.default, x, [1, 0] if rows == 0 else [0, 2, 1])
    return insert(before, aten.mm.default if rows == 0 else aten.bmm.default, x, y)


def has_shape(node: Any, wanted: torch.Size) -> bool:
    return isinstance(node, fx.Node) and shape(node) == wanted


def shape(node: Any) -> torch.Size:
    return node.meta["val"].shape


def size(node: Any) -> int:
    return shape(node).numel()


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


def has_convolutions(graph: fx.Graph) -> bool:
    return any(node.target is aten.convolution.default for node in graph.nodes)


def is_pure(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
