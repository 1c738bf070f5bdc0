"""What goes by handle, by which policy, and that nothing stays exported when a message cannot be
written."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from membrane.codec import BY_REFERENCE, BY_RULES, BY_VALUE, Codec
from membrane.errors import AccessRefused, UnsupportedUse
from membrane.policies import Policies
from tests.unit.membrane.values import Table

ATOMS = [
    None,
    True,
    3,
    1 << 80,
    2.5,
    1j,
    "text",
    "\ud800",
    b"bytes",
    b"x" * 100_000,
    ...,
    NotImplemented,
]
CONTAINERS: list[Callable[[], Any]] = [
    lambda: [1],
    lambda: {"k": 1},
    lambda: {1},
    lambda: (1,),
    lambda: frozenset([1]),
    lambda: bytearray(b"b"),
    lambda: memoryview(b"m"),
    lambda: slice(1),
    lambda: range(3),
    lambda: Decimal(1),
]


def codec_of(table: Table, policies: Policies | None = None) -> Codec:
    return Codec(
        export=table.export, resolve=table.resolve, retract=table.retract, policies=policies
    )


def went_by_handle(sent: object, policy: int, policies: Policies | None = None) -> bool:
    table = Table()
    codec = codec_of(table, policies)
    (received,) = codec.decode(codec.encode([0, [sent]], policy=policy))[-1]
    assert received == sent
    assert [id(value) for value in table.objects] in ([], [id(sent)])
    return received is sent and bool(table.objects)


@pytest.mark.parametrize("policy", [BY_RULES, BY_VALUE, BY_REFERENCE])
@pytest.mark.parametrize("default", ["value", "reference"])
def test_atoms_always_go_by_value(policy: int, default: str) -> None:
    table = Table()
    codec = codec_of(table, Policies.checked(default, [(object, "reference")]))
    assert codec.decode(codec.encode([0, ATOMS], policy=policy))[-1] == ATOMS
    assert table.objects == []


@pytest.mark.parametrize("make", CONTAINERS)
def test_the_call_decides_before_the_rules_and_they_before_the_session(
    make: Callable[[], Any],
) -> None:
    by_value = Policies.checked("value", [])
    by_reference = Policies.checked("reference", [])
    kind = type(make())
    ruled = Policies.checked("value", [(kind, "reference")])
    unruled = Policies.checked("reference", [(kind, "value")])
    assert not went_by_handle(make(), BY_RULES, by_value)
    assert went_by_handle(make(), BY_RULES, by_reference)
    assert went_by_handle(make(), BY_RULES, ruled)
    assert not went_by_handle(make(), BY_RULES, unruled)
    for policies in (by_value, by_reference, ruled, unruled):
        assert not went_by_handle(make(), BY_VALUE, policies)
        assert went_by_handle(make(), BY_REFERENCE, policies)


def test_a_rule_reaches_what_is_nested() -> None:
    table = Table()
    codec = codec_of(table, Policies.checked("value", [(dict, "reference")]))
    inner: dict[str, int] = {"k": 1}
    sent: Any = [[inner], (inner,), {1, 2}, slice(inner)]
    received = codec.decode(codec.encode([0, sent]))[-1]
    assert received[0][0] is received[1][0] is received[3].stop is inner
    assert received[0] is not sent[0]


def test_a_rule_reaches_what_is_nested_in_a_graph() -> None:
    table = Table()
    codec = codec_of(table, Policies.checked("value", [(dict, "reference"), (tuple, "reference")]))
    inner = {"k": 1}
    ring: list[Any] = [inner, (1, 2)]
    ring.append(ring)
    (received,) = codec.decode(codec.encode([0, [ring]]))[-1]
    assert received[0] is inner
    assert received[1] is ring[1]
    assert received[2] is received
    assert received is not ring


def test_many_rows_obey_a_rule() -> None:
    table = Table()
    codec = codec_of(table, Policies.checked("value", [(tuple, "reference")]))
    rows = [(number,) for number in range(50)]
    (received,) = codec.decode(codec.encode([0, [rows]]))[-1]
    assert all(left is right for left, right in zip(rows, received, strict=True))


class Refusing(Table):
    def export(self, value: object) -> list[object]:
        if value is Refusing:
            raise AccessRefused(operation="send", name="Refusing", remedy="keep it")
        return super().export(value)


@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: [v, v], lambda v: ({"k": v},), lambda v: {v: 1}]
)
def test_nothing_stays_exported_when_one_value_is_refused(wrap: Callable[[Any], Any]) -> None:
    table = Refusing()
    codec = codec_of(table)
    shared = [print]
    with pytest.raises(AccessRefused):
        codec.encode([0, [object, [object], shared, shared, wrap(Refusing)]])
    assert len(table.retracted) == len(table.objects) > 0


def test_turns_of_the_encoder_export_nothing_twice() -> None:
    table = Table()
    codec = codec_of(table)
    shared: list[Any] = [1 << 70] * 3
    # Looked at loosely, as a tree, then strictly, then as a graph: each turn takes back what it
    # exported.
    codec.encode([0, [print, shared, shared, ["\ud800"] * 20, print]])
    live = list(map(str, table.retracted))
    assert len(live) == len(set(live))
    assert len(table.objects) - len(live) == 2


def test_a_payload_that_is_not_plain_is_a_fault_of_the_export_and_taken_back() -> None:
    taken: list[object] = []
    codec = Codec(export=lambda v: [object()], resolve=lambda p: p, retract=taken.extend)
    with pytest.raises(TypeError):
        codec.encode([0, [print]])
    assert len(taken) >= 1


def test_errors_of_export_come_out_as_they_are() -> None:
    calls = []

    def overflow(value: object) -> list[object]:
        calls.append(value)
        raise OverflowError("too many handles")

    codec = Codec(export=overflow, resolve=lambda payload: payload)
    with pytest.raises(OverflowError, match="too many handles"):
        codec.encode([0, [print]])


def test_a_header_that_cannot_be_written_is_refused_with_a_remedy() -> None:
    table = Table()
    with pytest.raises(UnsupportedUse, match="name"):
        codec_of(table).encode([0, "\ud800", [print]])
    assert len(table.retracted) == len(table.objects)
