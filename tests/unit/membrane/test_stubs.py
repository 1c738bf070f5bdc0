"""Stubs are Python that a type checker takes, whatever a class or a child says."""

from __future__ import annotations

import ast
import asyncio
from typing import ClassVar

import pytest

from membrane.errors import ProtocolError
from membrane.signatures import Member, Signatures
from membrane.stubs import stub


class Shown:
    """Has a member of each kind."""

    limit: ClassVar[int] = 3
    names: list[str]

    def __init__(self, start: int = 0, /, *rest: object, step: int = 1, **more: bytes) -> None:
        self.names = []

    def parse(self, text: str, depth: int | None = None) -> dict[str, int]:
        """Parse "quoted" text."""
        return {}

    async def fetch(self, at: asyncio.Event) -> None: ...

    @classmethod
    def made(cls, *, name: str) -> Shown:
        return cls()

    @staticmethod
    def pure(value: float) -> float:
        return value

    @property
    def size(self) -> int:
        """Return how many."""
        return 0

    def _private(self) -> None: ...


def told(*members: Member) -> str:
    return stub("some.where:Thing", list(members))


def test_every_kind_of_member_is_written() -> None:
    written = stub("here:Shown", Signatures().members(f"{__name__}:Shown"))
    assert ast.parse(written)
    for line in (
        "class Shown(Protocol):",
        "def __init__(self, start: int = ..., /, *rest: object, step: int = ..., **more: bytes)"
        " -> None:",
        "def parse(self, text: str, depth: int | None = ...) -> dict[str, int]:",
        "'Parse \"quoted\" text.'",
        "@_method\n    async def fetch(self, at: Any) -> None: ...",
        "@_class_method\n    def made(cls, *, name: str) -> Any: ...",
        "@_static_method\n    def pure(value: float) -> float: ...",
        "def size(self) -> int:",
        "names: list[str]",
        "limit: Any",
        "def close(cls) -> None: ...",
    ):
        assert line in written
    assert "_private" not in written


@pytest.mark.parametrize(
    "member",
    [
        ("method", "f(self): ...\nimport os #", [], "Any", ""),
        ("method", "class", [], "Any", ""),
        ("import os", "f", [], "Any", ""),
        ("method", "f", [("x=print()", "POSITIONAL_OR_KEYWORD", "Any", False)], "Any", ""),
    ],
)
def test_what_is_no_name_is_refused(member: Member) -> None:
    with pytest.raises(ProtocolError):
        told(member)


@pytest.mark.parametrize(
    "annotation",
    ["__import__('os')", "int if 1 else 2", "a.b", "int(", "x" * 2000, "[" * 900, "(lambda: 1)"],
)
def test_an_annotation_that_is_more_than_a_type_is_any(annotation: str) -> None:
    assert "f(self) -> Any: ..." in told(("method", "f", [], annotation, ""))


def test_a_doc_stays_a_doc() -> None:
    written = told(("method", "f", [], "int", '\'"""\\\nimport os'))
    assert [type(node).__name__ for node in ast.parse(written).body] == [
        "Expr",
        "ImportFrom",
        "ImportFrom",
        "ClassDef",
    ]
