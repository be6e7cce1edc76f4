"""Products of several batches with one weight, joined into one: fewer and larger kernels for a GPU.

An iteration takes every layer of a network at data, at samples and along tangents, and back again. Where no product
needs what another one gives, their rows are put together, and the results taken apart again. Slices are views, and what
comes before a joined product writes its part of the rows in place: little is copied, and a weight is read once.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch import fx

from ebmbounds.rewriting import aten, insert, shape


def join_batches(graph: fx.Graph) -> None:
    from torch._inductor.pattern_matcher import stable_topological_sort

    place = {node: i for i, node in enumerate(graph.nodes)}
    for group in independent_groups(graph):
        if len(group) > 1:
            join(sorted(group, key=lambda node: place[rows(node)]))  # equal rows of several groups then come once
    stable_topological_sort(graph)
    graph.eliminate_dead_code()


def is_product(node: fx.Node) -> bool:
    plain = node.target in (aten.mm.default, aten.bmm.default)
    return plain or (node.target is aten.addmm.default and not node.kwargs)


def rows(product: fx.Node) -> Any:
    return product.args[-2]


def bias(product: fx.Node) -> Any:
    return product.args[0] if product.target is aten.addmm.default else None


def independent_groups(graph: fx.Graph) -> list[list[fx.Node]]:
    """Products with the same weight, each in the first group in which it needs no other and no other needs it, through
    other groups neither."""
    groups: dict[Any, list[list[fx.Node]]] = defaultdict(list)
    mates: dict[fx.Node, list[fx.Node]] = {}
    for node in filter(is_product, graph.nodes):
        after = dependents([node], mates)
        weight = node.args[-1]
        for group in groups[weight]:
            if after.isdisjoint(group) and node not in dependents(group, mates):
                break
        else:
            group = []
            groups[weight].append(group)
        group.append(node)
        mates[node] = group
    return [group for found in groups.values() for group in found]


def dependents(nodes: Iterable[fx.Node], mates: dict[fx.Node, list[fx.Node]]) -> set[fx.Node]:
    """All that needs what these give, directly or not, where grouped products are one."""
    found: set[fx.Node] = set()
    waiting = [user for node in nodes for user in node.users]
    while waiting:
        node = waiting.pop()
        if node not in found:
            for mate in mates.get(node, [node]):
                found.add(mate)
                waiting.extend(mate.users)
    return found


def join(products: list[fx.Node]) -> None:
    """One product in place of these; a bias that not all of them have is added to the parts."""
    first = products[0]
    weight, common = first.args[-1], bias(first)
    if any(bias(product) is not common for product in products):
        common = None
    axis = len(shape(first)) - 2
    joined = insert(first, aten.cat.default, [rows(product) for product in products], axis)
    if common is not None:
        whole = insert(first, aten.addmm.default, common, joined, weight)
    else:
        whole = insert(first, aten.bmm.default if axis else aten.mm.default, joined, weight)
    start = 0
    for product in products:
        end = start + shape(product)[axis]
        part = insert(first, aten.slice.Tensor, whole, axis, start, end)
        if bias(product) is not common:
            part = insert(first, aten.add.Tensor, part, bias(product))
        product.replace_all_uses_with(part)
        start = end
