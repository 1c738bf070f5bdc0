"""Descriptions of classes: what is told, and what is taken from a hostile child."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membrane import descriptions
from membrane.descriptions import ClassDescription
from membrane.dunders import FORWARDED
from membrane.errors import ProtocolError


class Lower:
    """Below."""

    limit: ClassVar[int] = 3

    def plain(self) -> None: ...

    async def wait(self) -> None: ...

    @classmethod
    def made(cls) -> None: ...

    @staticmethod
    def free() -> None: ...

    @property
    def seen(self) -> int:
        return 1

    @cached_property
    def kept(self) -> int:
        return 1

    @lru_cache  # noqa: B019
    def quick(self) -> int:
        return 1

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


class Upper(Lower, dict[str, int]):
    """Above, and a dict."""


def told(kind: type, **bases: int) -> ClassDescription:
    handles = {base: 5 for base in kind.__bases__ if base.__name__ in bases}
    return descriptions.parse(descriptions.describe(kind, handle=9, base_handles=handles))


def test_members_are_told_by_what_they_are() -> None:
    seen = told(Lower)
    assert seen.methods == {"plain", "wait", "made", "free", "quick"}
    assert seen.coroutines == {"wait"}
    assert seen.attributes == {"limit", "seen", "kept"}
    assert seen.dunders == {"__len__", "__eq__"}
    assert seen.absent == {"__hash__"}
    assert seen.bases == ()
    assert (seen.module, seen.qualname, seen.doc) == (__name__, "Lower", "Below.")


def test_described_bases_are_named_and_others_folded_in() -> None:
    seen = told(Upper, Lower=1)
    assert seen.bases[0] == 5
    assert "builtins.dict" in seen.bases
    assert "plain" not in seen.methods
    assert {"keys", "update"} <= seen.methods
    assert {"__getitem__", "__iter__"} <= seen.dunders


def test_only_forwarded_operators_are_told() -> None:
    for kind in (Lower, Upper, int, list, type, abc.ABC, enum.Enum, type(lambda: 0)):
        assert told(kind).dunders <= FORWARDED


def test_facts_for_libraries_that_look_at_types() -> None:
    @dataclass
    class Point:
        x: int
        y: list[int]

    seen = told(Point)
    assert seen.annotations == (("x", "int"), ("y", "list[int]"))
    assert seen.fields == ("x", "y")
    assert told(type("Mine", (KeyError,), {})).exception == "KeyError"
    assert told(type("Ends", (SystemExit,), {})).exception == "Exception"


def test_operators_of_a_metaclass_are_told() -> None:
    assert "__iter__" in told(enum.Enum).class_dunders
    assert told(abc.ABC).class_dunders == frozenset()
    assert told(Lower).class_dunders == frozenset()


def changed(place: int, value: object) -> list[object]:
    plain = descriptions.describe(Lower, handle=9, base_handles={})
    plain[place] = value
    return plain


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {},
        changed(0, 0),
        changed(0, True),
        changed(0, "9"),
        changed(1, ""),
        changed(1, 3),
        changed(2, "a\0b"),
        changed(2, "x" * 1000),
        changed(3, 7),
        changed(4, ["__globals__"]),
        changed(4, ["_membrane_bond"]),
        changed(4, ["a.b"]),
        changed(4, [1]),
        changed(4, "plain"),
        changed(6, ["__class__"]),
        changed(7, ["__getattribute__"]),
        changed(7, ["__del__"]),
        changed(7, ["__class__"]),
        changed(8, ["__slots__"]),
        changed(9, ["__instancecheck__"]),
        changed(10, [None]),
        changed(10, [1] * 100),
        changed(10, "base"),
        changed(11, [["fields", ["a b"]]]),
        changed(11, [["annotations", [["x", 3]]]]),
        changed(11, [["exception", "SystemExit"]]),
        changed(11, [["exception", "os.system"]]),
        changed(11, [["other", 1]]),
        changed(11, 3),
    ],
)
def test_descriptions_of_another_form_are_refused(plain: object) -> None:
    with pytest.raises(ProtocolError):
        descriptions.parse(plain)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=12),
    max_leaves=30,
)


@settings(max_examples=50, deadline=None)
@given(PLAIN | st.integers(0, 11).flatmap(lambda place: PLAIN.map(lambda v: changed(place, v))))
def test_anything_is_parsed_or_refused(plain: object) -> None:
    try:
        seen = descriptions.parse(plain)
    except ProtocolError:
        return
    assert seen.dunders <= FORWARDED
    assert all(name.isidentifier() for name in seen.methods | seen.attributes)
