"""Containers that are shared, that hold themselves, or that are very deep stay so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext, encode

from membrane import graph
from membrane.codec import Codec
from membrane.errors import ProtocolError, UnsupportedUse
from membrane.extensions import GRAPH
from tests.unit.membrane.values import Table, leaves, round_trip, same, strict_codec

SIZES = [0, 1, 2, 31, 32, 33, 500]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: list(range(n)),
        lambda n: dict.fromkeys(range(n), "x"),
        lambda n: set(range(n)),
        lambda n: bytearray(n),
        lambda n: [[k] for k in range(n)],
    ],
    ids=["list", "dict", "set", "bytearray", "rows"],
)
def test_one_container_in_many_places_stays_one(size: int, make: Any) -> None:
    shared = make(size)
    sent = [shared, [shared] * 40, {"k": shared}, (shared,), slice(shared)]
    received: Any = round_trip(*sent)
    assert same(sent, received)
    first = received[0]
    assert all(place is first for place in received[1])
    assert received[2]["k"] is first
    assert received[3][0] is first
    assert received[4].stop is first


@pytest.mark.parametrize("size", SIZES)
def test_containers_of_equal_contents_stay_apart(size: int) -> None:
    rows: Any = round_trip([[] for _ in range(size)], [[1] for _ in range(size)])
    assert len({id(row) for some in rows for row in some}) == 2 * size


@pytest.mark.parametrize("size", SIZES)
def test_a_list_that_holds_itself(size: int) -> None:
    ring: list[Any] = list(range(size))
    ring.append(ring)
    (received,) = round_trip(ring)
    assert same(ring, received)


def test_cycles_through_every_kind_of_container() -> None:
    inner: list[Any] = []
    ring = ({"a": inner, ("k", 1): {1, 2}}, slice(inner, [inner]), bytearray(b"b"), 1 << 80)
    inner.append(ring)
    inner.append(({"again": ring}, (inner,)))
    (received,) = round_trip(ring)
    assert same(ring, received)


def test_tuples_that_hold_each_other_through_a_list() -> None:
    middle: list[Any] = []
    first = (middle, 1)
    second = (first, 2, middle)
    middle.append(second)
    assert same([middle, first], round_trip(middle, first))
    assert same([second, middle], round_trip(second, middle))


def test_a_tuple_that_doubles_thirty_times_stays_small() -> None:
    doubled: Any = ([],)
    for _ in range(30):
        doubled = (doubled, doubled)
    codec = strict_codec()
    encoded = codec.encode([0, [doubled]])
    assert len(encoded) < 1000
    (received,) = codec.decode(encoded)[-1]
    assert received[0] is received[1]
    assert same(doubled, received)


@st.composite
def graphs(draw: st.DrawFn) -> list[Any]:
    """Draw containers first, then links between any two of them."""
    made: list[Any] = draw(st.lists(st.sampled_from("ldts"), min_size=1, max_size=12))
    nodes: list[Any] = [[] if kind != "d" else {} for kind in made]
    for place, kind in enumerate(made):
        if kind == "t":
            nodes[place] = tuple(draw(st.lists(st.sampled_from(nodes), max_size=3)))
        elif kind == "s":
            nodes[place] = slice(draw(st.sampled_from(nodes)), draw(leaves))
    for node in nodes:
        for linked in draw(st.lists(st.sampled_from(nodes) | leaves, max_size=4)):
            if isinstance(node, list):
                node.append(linked)
            elif isinstance(node, dict):
                node[len(node)] = linked
    return nodes


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_any_graph_comes_back_in_the_same_shape(nodes: list[Any]) -> None:
    assert same(nodes, round_trip(*nodes))


@pytest.mark.parametrize("depth", [1, 63, 64, 65, 66, 200, 1000, 5_000])
def test_depth_has_no_bound_for_what_can_change(depth: int) -> None:
    lists: list[Any] = []
    dicts: dict[str, Any] = {}
    for _ in range(depth):
        lists, dicts = [lists], {"k": dicts}
    assert same([lists, dicts], round_trip(lists, dicts))


@pytest.mark.parametrize("depth", [63, 64, 65, 66, 200, graph.SEALED_DEPTH - 1])
def test_tuples_and_frozen_sets_may_be_deep(depth: int) -> None:
    value: Any = ()
    for _ in range(depth):
        value = frozenset([value]) if type(value) is tuple else (value,)
    assert round_trip(value, {value: 1}) == [value, {value: 1}]


def test_tuples_that_would_end_the_process_when_hashed_are_refused() -> None:
    value: Any = ()
    for _ in range(20_000):
        value = (value,)
    with pytest.raises(UnsupportedUse, match="use lists, or hand it over by reference"):
        strict_codec().encode([0, [value]])
    while value:
        (value,) = value


def doubled(times: int) -> Any:
    value: Any = ("a", ())
    for _ in range(times):
        value = (value, value)
    return value


def test_a_key_that_takes_a_while_to_hash_is_let_through() -> None:
    key = doubled(10)
    assert round_trip([key], {key: 1}, {key}, frozenset([key])) == [[key], {key: 1}, {key}, {key}]


def test_a_key_that_takes_too_long_to_hash_is_refused_by_the_sender() -> None:
    key = doubled(20)
    with pytest.raises(UnsupportedUse, match="hand it over by reference"):
        strict_codec().encode([0, [{key: 1}, key]])


@pytest.mark.parametrize(
    "key_of", [[1, [None, 1], [0, 401]], [2, [None], [0, 401]], [5, [None], [0, 401]]]
)
def test_a_forged_key_that_never_ends_hashing_is_refused(key_of: list[Any]) -> None:
    towers = [[4, [None, None], [0, number, 1, number]] for number in range(1, 401)]
    nodes = [[0, []], [4, []], *towers, key_of]
    if key_of[0] != 5:
        nodes = [key_of, *nodes[1:-1]]
    with pytest.raises(ProtocolError, match="too long to hash"):
        strict_codec().decode(encode([0, Ext(GRAPH, encode(nodes))]))


def test_objects_in_a_graph_go_by_handle() -> None:
    table = Table()
    shared = [object()]
    received: Any = round_trip(
        shared,
        shared,
        codec=Codec(export=table.export, resolve=table.resolve),
    )
    assert received[0] is received[1]
    assert received[0][0] is shared[0]


def test_a_graph_with_surrogates_and_big_integers() -> None:
    shared: list[Any] = ["\ud800", 1 << 90]
    sent = [shared, shared, {"\udfff": shared, 1 << 70: [1 << 70] * 10}]
    assert same(sent, round_trip(*sent))


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ([], "no nodes"),
        ([1], "a node of a graph"),
        ([[0]], "a node of a graph"),
        ([[0, [], [], []]], "a node of a graph"),
        ([[7, []]], "unknown kind"),
        ([[-1, []]], "unknown kind"),
        ([[True, []]], "unknown kind"),
        ([[0, {}]], "no items"),
        ([[0, [None], {}]], "pairs of integers"),
        ([[0, [None], [0]]], "pairs of integers"),
        ([[0, [None], [0, 1.0]]], "pairs of integers"),
        ([[0, [None], [0, 1]]], "leads nowhere"),
        ([[0, [None], [0, -1]]], "leads nowhere"),
        ([[0, [None], [1, 0]]], "leads nowhere"),
        ([[0, [None], [-1, 0]]], "leads nowhere"),
        ([[0, [None], [0, 1 << 63]]], "leads nowhere"),
        ([[1, [1]]], "key without a value"),
        ([[1, [None, 1], [0, 0]]], "unhashable"),
        ([[2, [None], [0, 0]]], "unhashable"),
        ([[3, []]], "a leaf"),
        ([[3, [None], [0, 0]]], "a leaf"),
        ([[4, [None], [0, 0]]], "what comes after it"),
        ([[0, [None], [0, 1]], [4, [None], [0, 2]], [4, []]], "what comes after it"),
        ([[5, [None], [0, 1]], [0, []]], "unhashable"),
        ([[6, [1, 2]]], "unpack"),
        ([[4, []]], "ends in the list"),
        ([[1, []]], "ends in the list"),
    ],
)
def test_forged_graphs_are_refused(nodes: list[Any], fault: str) -> None:
    with pytest.raises(ProtocolError, match=fault):
        strict_codec().decode(encode([0, Ext(GRAPH, encode(nodes))]))


def test_a_forged_chain_of_tuples_is_refused_before_it_can_be_hashed() -> None:
    chain = [[4, [None], [0, number]] for number in range(1, 3_000)]
    nodes = [[1, [None, 1], [0, 3_000]], [4, []], *chain]
    with pytest.raises(ProtocolError, match="hold each other"):
        strict_codec().decode(encode([0, Ext(GRAPH, encode(nodes))]))
