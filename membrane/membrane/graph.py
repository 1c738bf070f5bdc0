"""The graph form of values: containers that are shared, that hold themselves, or that are very
deep.

A graph is an array of nodes; the first is the list of the message's values. A node is an array
`[kind, items]` or `[kind, items, links]`: `links` is a flat array of pairs (position in items,
number of the node that belongs there). Nodes that cannot change come after those that they link to,
unless these can change. No part of it recurses, so it has no depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, TypeVar, cast

from msgspec.msgpack import Ext

from membrane import extensions as codes
from membrane.errors import ProtocolError, UnsupportedUse
from membrane.extensions import check_keys, encode_plain, is_flat
from membrane.lowering import Lowering

LIST: Final = 0
DICT: Final = 1
SET: Final = 2
LEAF: Final = 3
"""One item, which is what is shared: a bytearray, a memoryview, an array."""
TUPLE: Final = 4
FROZENSET: Final = 5
SLICE: Final = 6
_FIRST_SEALED: Final = TUPLE

SEALED_DEPTH: Final = 500
"""Tuples within tuples that are let through: hashing one recurses in C without a check, and ends
the process."""

KEY_WEIGHT: Final = 1 << 20
"""Tuples within one that is hashed, each as often as it is there: their hashes are not remembered,
so that thirty tuples that each hold the next twice are hashed a thousand million times."""

_KINDS: Final[dict[type, int]] = {
    list: LIST,
    dict: DICT,
    set: SET,
    tuple: TUPLE,
    frozenset: FROZENSET,
    slice: SLICE,
    bytearray: LEAF,
    memoryview: LEAF,
}


Linked = TypeVar("Linked")


class Node:
    """Hold what is sent of one container while the graph is drawn."""

    __slots__ = ("items", "kind", "links", "number", "source", "weight")

    def __init__(self, *, source: object, kind: int) -> None:
        self.source = source
        self.kind = kind
        self.items: list[object] = []
        self.links: list[tuple[int, Node]] = []
        self.number = -1
        self.weight = 0

    def written(self) -> list[object]:
        """Give the node as it goes on the wire."""
        if not self.links:
            return [self.kind, self.items]
        links = chain.from_iterable((place, node.number) for place, node in self.links)
        return [self.kind, self.items, list(links)]


def _children(value: object) -> list[object]:
    kind = type(value)
    if kind is dict:
        return list(chain.from_iterable(cast("dict[object, object]", value).items()))
    if kind is slice:
        part = cast("slice", value)
        return [part.start, part.stop, part.step]
    return list(cast("Iterable[object]", value))


def pack(values: Sequence[object], lowering: Lowering) -> Ext:
    """Draw the graph of a message's values.

    Raise UnsupportedUse where more than 500 tuples hold each other or a key is heavy with them, and
    what `lowering` raises.
    """
    root = Node(source=list(values), kind=LIST)
    nodes = [root]
    known: dict[int, Node] = {}
    passed = lowering.passed
    for node in nodes:
        if node.kind == LEAF:
            node.items.append(lowering.lower(node.source))
            continue
        children = _children(node.source)
        if passed.issuperset(map(type, children)):
            node.items = children
            continue
        items, links = node.items, node.links
        for place, child in enumerate(children):
            if type(child) in passed:
                items.append(child)
                continue
            linked = known.get(id(child))
            if linked is None:
                kind = _node_kind(child, lowering)
                if kind is None:
                    items.append(lowering.lower(child))
                    continue
                linked = known[id(child)] = Node(source=child, kind=kind)
                nodes.append(linked)
            items.append(None)
            links.append((place, linked))
    ordered = [node for node in nodes if node.kind < _FIRST_SEALED]
    ordered += _sealed_in_order([node for node in nodes if node.kind >= _FIRST_SEALED])
    for number, node in enumerate(ordered):
        node.number = number
        if node.links and any(
            linked.weight > KEY_WEIGHT for linked in _hashed(node.kind, node.links)
        ):
            raise UnsupportedUse(
                "a key is a tuple that holds the same tuples too often; hand it over by reference"
            )
    return Ext(codes.GRAPH, encode_plain([node.written() for node in ordered]))


def _node_kind(value: object, lowering: Lowering) -> int | None:
    kind = type(value)
    found = _KINDS.get(kind)
    if found is None:
        # An array; what else there is of numpy is a leaf as well as anything.
        return LEAF if kind.__module__ == "numpy" else None
    if not lowering.is_by_value(kind):
        return None
    if found >= _FIRST_SEALED and is_flat(_children(value)):
        return None
    return found


def _sealed_in_order(nodes: list[Node]) -> list[Node]:
    """Order nodes that cannot change so that each comes after those that it holds: a walk in depth,
    with its own stack."""
    ordered: list[Node] = []
    depths: dict[int, int] = {}
    for first in nodes:
        stack = [(first, False)]
        while stack:
            node, seen = stack.pop()
            if id(node) in depths:
                continue
            inner = [linked for _, linked in node.links if linked.kind >= _FIRST_SEALED]
            if not seen:
                stack.append((node, True))
                stack.extend((linked, False) for linked in inner if id(linked) not in depths)
                continue
            depth = 1 + max((depths[id(linked)] for linked in inner), default=0)
            if depth > SEALED_DEPTH:
                raise UnsupportedUse(
                    f"more than {SEALED_DEPTH} tuples hold each other; "
                    "use lists, or hand it over by reference"
                )
            depths[id(node)] = depth
            node.weight = _weight(node.kind, [linked.weight for linked in inner])
            ordered.append(node)
    return ordered


def _weight(kind: int, inner: list[int]) -> int:
    return 1 if kind == FROZENSET else min(1 + sum(inner), KEY_WEIGHT + 1)


def _hashed(kind: int, links: Iterable[tuple[int, Linked]]) -> list[Linked]:
    """Give what a node links to and hashes: the members of sets, and the keys of dicts."""
    if kind in (SET, FROZENSET):
        return [linked for _, linked in links]
    if kind == DICT:
        return [linked for place, linked in links if not place % 2]
    return []


def unpack(written: list[object]) -> object:
    """Build the values of a graph, and give its first node.

    Raise ProtocolError where a node, a link or their order is not what `pack` draws.
    """
    nodes = [_checked(node, len(written)) for node in written]
    built = [_shell(kind, items) for kind, items, _ in nodes]
    depths = [0] * len(nodes)
    weights = [0] * len(nodes)
    for number, (kind, items, links) in enumerate(nodes):
        if kind < _FIRST_SEALED:
            continue
        deepest = 0
        for place, linked in links:
            if nodes[linked][0] >= _FIRST_SEALED:
                if linked >= number:
                    raise ProtocolError(f"node {number} of a graph holds what comes after it")
                deepest = max(deepest, depths[linked])
            items[place] = built[linked]
        depths[number] = deepest + 1
        weights[number] = _weight(kind, [weights[linked] for _, linked in links])
        if deepest >= SEALED_DEPTH:
            raise ProtocolError(f"more than {SEALED_DEPTH} tuples of a graph hold each other")
        _check_weights(kind, links, weights)
        built[number] = _sealed(kind, items)
    for number, (kind, items, links) in enumerate(nodes):
        if kind >= _FIRST_SEALED:
            continue
        if links:
            for place, linked in links:
                items[place] = built[linked]
            if kind != LIST:
                _check_weights(kind, links, weights)
        if kind == DICT:
            if len(items) % 2:
                raise ProtocolError("a dict of a graph has a key without a value")
            keys = items[::2]
            check_keys(keys)
            cast("dict[object, object]", built[number]).update(zip(keys, items[1::2], strict=True))
        elif kind == SET:
            check_keys(items)
            cast("set[object]", built[number]).update(items)
    if not built:
        raise ProtocolError("a graph has no nodes")
    return built[0]


def _check_weights(kind: int, links: list[tuple[int, int]], weights: list[int]) -> None:
    if any(weights[linked] > KEY_WEIGHT for linked in _hashed(kind, links)):
        raise ProtocolError("a key of a graph is a tuple that takes too long to hash")


def _checked(node: object, count: int) -> tuple[int, list[object], list[tuple[int, int]]]:
    if type(node) is not list or len(node) not in (2, 3):
        raise ProtocolError("a node of a graph is its kind, its items and perhaps its links")
    kind, items, *rest = node
    if type(kind) is not int or not LIST <= kind <= SLICE or type(items) is not list:
        raise ProtocolError("a node of a graph has an unknown kind or no items")
    if kind == LEAF and (len(items) != 1 or rest):
        raise ProtocolError("a leaf of a graph is one value")
    if not rest:
        return kind, items, []
    flat = rest[0]
    if type(flat) is not list or len(flat) % 2 or not {int}.issuperset(map(type, flat)):
        raise ProtocolError("the links of a graph are pairs of integers")
    links = list(zip(flat[::2], flat[1::2], strict=True))
    if any(not 0 <= place < len(items) or not 0 <= to < count for place, to in links):
        raise ProtocolError("a link of a graph leads nowhere")
    return kind, items, links


def _shell(kind: int, items: list[object]) -> object:
    match kind:
        case 0:
            return items
        case 1:
            return {}
        case 2:
            return set()
        case 3:
            return items[0]
        case _:
            return None


def _sealed(kind: int, items: list[object]) -> object:
    if kind == TUPLE:
        return tuple(items)
    if kind == FROZENSET:
        check_keys(items)
        return frozenset(items)
    start, stop, step = items
    return slice(start, stop, step)
