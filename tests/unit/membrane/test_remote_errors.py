"""Errors that cross: what is told, and what is taken."""

from __future__ import annotations

import gc

import pytest

from membrane.builtin_types import EXCEPTIONS
from membrane.errors import ProtocolError, RemoteError
from membrane.exports import Exports, Imports
from membrane.remote_errors import error_class, pack, unpack


class Side:
    """The tables of one side."""

    def __init__(self) -> None:
        self.exports = Exports(gated=False)
        self.imports = Imports()
        self.error_classes: dict[str, type[RemoteError]] = {}


class Own(LookupError):
    """An error of the test."""


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize("name", sorted(set(EXCEPTIONS) - {"StopIteration", "StopAsyncIteration"}))
def test_each_builtin_exception_arrives_as_itself(name: str) -> None:
    kind = EXCEPTIONS[name]
    here, there = Side(), Side()
    args: tuple[object, ...] = ("text",)
    if kind is UnicodeDecodeError:
        args = ("ascii", b"\xff", 0, 1, "why")
    elif kind is UnicodeEncodeError:
        args = ("ascii", "\xff", 0, 1, "why")
    elif kind is UnicodeTranslateError:
        args = ("\xff", 0, 1, "why")
    error = raised(kind(*args))
    arrived = unpack(*pack(error, here, tells_frames=True), there)
    assert isinstance(arrived, kind)
    assert isinstance(arrived, RemoteError)
    assert arrived.args == error.args
    assert str(arrived) == str(error)
    assert arrived.remote_type == f"builtins.{kind.__name__}"
    assert "in raised" in arrived.remote_traceback


def test_an_error_comes_home_as_itself() -> None:
    here, there = Side(), Side()
    error = raised(Own("x"))
    arrived = unpack(*pack(error, here, tells_frames=True), there)
    assert isinstance(arrived, LookupError)
    assert unpack(*pack(error, here, tells_frames=True), there) is arrived
    assert unpack(*pack(arrived, there, tells_frames=True), here) is error
    del arrived
    gc.collect()
    here.exports.release(there.imports.drain())
    assert len(here.exports) == 0


def test_what_only_ends_a_process_never_arrives_as_that() -> None:
    for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit()):
        arrived = unpack(*pack(error, Side(), tells_frames=True), Side())
        assert type(arrived) is error_class("Exception")
        assert arrived.remote_type == f"builtins.{type(error).__name__}"


def test_frames_are_told_only_where_they_may_be() -> None:
    payload, _ = pack(raised(Own("x")), Side(), tells_frames=False)
    assert payload[5] == ""


def test_arguments_that_are_no_atoms_stay() -> None:
    _, values = pack(Own(object()), Side(), tells_frames=True)
    assert values == []
    _, values = pack(Own(1, "a", b"b"), Side(), tells_frames=True)
    assert values == [1, "a", b"b"]


def test_the_end_of_an_iteration_is_plain() -> None:
    arrived = unpack(*pack(StopIteration(4), Side(), tells_frames=True), Side())
    assert type(arrived) is StopIteration
    assert arrived.value == 4


def test_a_message_of_any_text_has_an_encoding() -> None:
    payload, _ = pack(Own("half \ud800"), Side(), tells_frames=True)
    assert str(payload[4]).encode()


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        [0],
        [0, 1],
        [0, "1"],
        [1, 1, "t", "SystemExit", "m", "", []],
        [1, 1, "t", "os.system", "m", "", []],
        [1, 1, "t", "RemoteError", "m", "", []],
        [1, 1, "t", "ExceptionGroup", "m", "", []],
        [1, "1", "t", "KeyError", "m", "", []],
        [1, 1, 2, "KeyError", "m", "", []],
        [1, 1, "t", "KeyError", None, "", []],
        [1, 1, "t", "KeyError", "m", "", None],
        [2, 1, "t", "KeyError", "m", "", []],
    ],
)
def test_errors_of_another_form_are_refused(payload: object) -> None:
    with pytest.raises(ProtocolError):
        unpack(payload, [], Side())


def test_a_home_coming_of_what_is_no_error_is_refused() -> None:
    side = Side()
    for value in (object(), KeyError, SystemExit()):
        handle = side.exports.hold(value)
        with pytest.raises(ProtocolError):
            unpack([0, handle], [], side)
