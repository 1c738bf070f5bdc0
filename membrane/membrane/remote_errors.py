"""Errors that cross: described as text and atoms, raised over there as their nearest built-in type.

    [0, handle]    an error of the receiver's own comes back: the same object is raised
    [1, handle, type, builtin, message, traceback, notes, suppresses, related]

`values` beside it are the error's arguments, where they are atoms, and behind them those of the
errors in `related`: [[relation, payload, count of values], ...]. These are the error's cause, its
context and the members of its group, each with its own, at most 64 in all and 16 deep.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, Protocol, cast

from membrane.builtin_types import EXCEPTIONS
from membrane.descriptions import full_name, nearest_exception
from membrane.errors import ProtocolError, RemoteError
from membrane.exports import Exports, Imports
from membrane.extensions import NOT_PLAIN, PLAIN, encode_plain
from membrane.policies import ATOMS

HOME: Final = 0
TOLD: Final = 1
LONGEST_MESSAGE = 64 * 1024
LONGEST_TRACEBACK = 64 * 1024
"""Characters; the end of a traceback, which says what was raised, is kept."""
MOST_NOTES = 100
MOST_RELATED = 64
DEEPEST_RELATED = 16
CAUSE: Final = 0
CONTEXT: Final = 1
MEMBER: Final = 2
GROUP: Final = "ExceptionGroup"


class Tables(Protocol):
    """The handle tables of a bond."""

    @property
    def exports(self) -> Exports: ...
    @property
    def imports(self) -> Imports: ...
    @property
    def error_classes(self) -> dict[str, type[RemoteError]]: ...


def pack(
    error: BaseException, bond: Tables, *, tells_frames: bool
) -> tuple[list[object], list[object]]:
    """Describe an error that leaves this side; `tells_frames` says whether its traceback and what
    it was raised from go along. The members of a group always do.
    """
    return _Packing(bond, tells_frames=tells_frames).packed(error, 0)


class _Packing:
    """Describe one error and those that it came from, each once."""

    def __init__(self, bond: Tables, *, tells_frames: bool) -> None:
        self._bond = bond
        self._tells_frames = tells_frames
        self._seen: set[int] = set()

    def packed(self, error: BaseException, depth: int) -> tuple[list[object], list[object]]:
        self._seen.add(id(error))
        home = handle_at_home(error, self._bond)
        if home is not None:
            return [HOME, home], []
        kind = type(error)
        args = error.args
        values = list(args) if type(args) is tuple and ATOMS.issuperset(map(type, args)) else []
        if isinstance(error, StopIteration) and self._tells_frames:
            values = [error.value]
        if isinstance(error, BaseExceptionGroup):
            values = [_printable(error.message)[:LONGEST_MESSAGE]]
        notes = getattr(error, "__notes__", None)
        related: list[object] = []
        payload: list[object] = [
            TOLD,
            self._bond.exports.hold(error),
            full_name(kind)[:LONGEST_MESSAGE],
            GROUP if isinstance(error, BaseExceptionGroup) else nearest_exception(kind),
            _message(error),
            _frames(error) if self._tells_frames and not depth else "",
            [note[:LONGEST_MESSAGE] for note in notes[:MOST_NOTES] if type(note) is str]
            if type(notes) is list
            else [],
            bool(error.__suppress_context__) and self._tells_frames,
            related,
        ]
        for relation, other in self._relations(error) if depth < DEEPEST_RELATED else ():
            if id(other) in self._seen or len(self._seen) > MOST_RELATED:
                continue
            told, theirs = self.packed(other, depth + 1)
            related.append([relation, told, len(theirs)])
            values += theirs
        return payload, values

    def _relations(self, error: BaseException) -> Iterator[tuple[int, BaseException]]:
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions[:MOST_RELATED]:
                yield MEMBER, member
        if self._tells_frames and error.__cause__ is not None:
            yield CAUSE, error.__cause__
        if self._tells_frames and error.__context__ is not None:
            yield CONTEXT, error.__context__


def unpack(
    payload: object, values: Sequence[object], bond: Tables, depth: int = 0
) -> BaseException:
    """Build the error that came in; raise ProtocolError for a payload of another form."""
    match payload:
        case [int() as tag, handle] if tag == HOME:
            own = bond.exports.get(handle)
            if isinstance(own, Exception):
                return own
        case [
            int() as tag,
            int() as handle,
            str() as kind,
            str() as builtin,
            str() as message,
            str() as frames,
            list() as notes,
            bool() as suppresses,
            list() as related,
        ] if tag == TOLD and (builtin in EXCEPTIONS or builtin == GROUP):
            values, others = _related(related, values, bond, depth)
            if builtin in ("StopIteration", "StopAsyncIteration"):
                # Plain, for the interpreter's own loops; nobody catches these to look at them.
                bond.imports.adopt(handle, _Unwanted)
                return EXCEPTIONS[builtin](*values)
            made: list[RemoteError] = []

            def make() -> RemoteError:
                if builtin == GROUP:
                    made.append(_make_group(values, others))
                else:
                    made.append(_make(bond.error_classes.get(kind) or error_class(builtin), values))
                return made[0]

            error = bond.imports.adopt(handle, make)
            if not isinstance(error, RemoteError):
                raise ProtocolError("the handle of an error is that of something else")
            error.remote_type = kind
            error.remote_message = message
            error.remote_traceback = frames
            error._membrane_origin = (bond, handle)  # type: ignore[attr-defined]
            if notes and not hasattr(error, "__notes__"):
                for note in notes[:MOST_NOTES]:
                    if type(note) is str:
                        error.add_note(note)
            # Of a fresh error only, which nothing that was there before leads to: no circles.
            for relation, other in others if made else ():
                if relation == CAUSE:
                    error.__cause__ = other
                elif relation == CONTEXT:
                    error.__context__ = other
            if made:
                error.__suppress_context__ = suppresses
            return error
    raise ProtocolError("an error of an unknown form came in")


def _related(
    related: list[object], values: Sequence[object], bond: Tables, depth: int
) -> tuple[Sequence[object], list[tuple[int, BaseException]]]:
    """Build the errors that one came from or holds; give its own values and these."""
    if len(related) > MOST_RELATED or depth > DEEPEST_RELATED:
        raise ProtocolError("an error came from too many others")
    sizes = [item[2] if isinstance(item, list) and len(item) == 3 else None for item in related]
    own = len(values) - sum(size for size in sizes if type(size) is int and size >= 0)
    place = own
    others: list[tuple[int, BaseException]] = []
    for item in related:
        match item:
            case [int() as relation, told, int() as size] if (
                CAUSE <= relation <= MEMBER and size >= 0 and place >= 0
            ):
                others.append(
                    (relation, unpack(told, values[place : place + size], bond, depth + 1))
                )
                place += size
            case _:
                raise ProtocolError("an error has relations of another form")
    return values[:own], others


def handle_at_home(error: object, bond: object) -> int | None:
    """Give the handle of an error of the other side; None for anything else."""
    origin = getattr(error, "_membrane_origin", None) if isinstance(error, RemoteError) else None
    return cast("int", origin[1]) if origin is not None and origin[0] is bond else None


def facts_of(error: BaseException) -> list[object]:
    """Tell what an error says that travels as an object, raised by nobody: its text, and its
    arguments where they are plain.
    """
    args = error.args
    told = list(args) if type(args) is tuple and PLAIN.issuperset(map(type, args)) else []
    try:
        encode_plain(told)
    except NOT_PLAIN:
        told = []
    return [_message(error), told]


def make_sent(kind: type[RemoteError], facts: object, bond: object, handle: int) -> RemoteError:
    """Build an error that came as an object: it can be raised, and goes home as the object that it
    is. Raise ProtocolError for facts of another form.
    """
    match facts:
        case [str() as message, list() as args]:
            error = _make(kind, args)
            error.remote_type = full_name(kind)
            error.remote_message = message
            error._membrane_origin = (bond, handle)  # type: ignore[attr-defined]
            return error
    raise ProtocolError("the facts of an error are a text and its arguments")


def missing(refusal: RemoteError) -> RemoteError:
    """Make a refusal an attribute that is not there; it goes home as itself."""
    made = error_class("AttributeError")(*refusal.args)
    made.__dict__.update(vars(refusal))
    # Its handle is released when it dies.
    made._membrane_refusal = refusal  # type: ignore[attr-defined]
    return made


def forget_locals(error: BaseException) -> None:
    """Let go of what the frames of an error, and of those that it came from, refer to."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


class _Unwanted:
    """Stands for an error that nobody keeps: its handle is released with the next frame."""


@cache
def error_class(builtin: str) -> type[RemoteError]:
    """Give the class of remote errors that are of this built-in type."""
    kind: type[Exception] = ExceptionGroup if builtin == GROUP else EXCEPTIONS[builtin]
    bases = (RemoteError,) if kind is Exception else (RemoteError, kind)
    made = type(f"Remote{builtin}", bases, {"__module__": "membrane.remote_errors"})
    return cast("type[RemoteError]", made)


def _make_group(values: Sequence[object], others: list[tuple[int, BaseException]]) -> RemoteError:
    members = [other for relation, other in others if relation == MEMBER]
    # What only BaseException is does not come in, and there are never none.
    told = [each for each in members if isinstance(each, Exception)]
    kind = error_class(GROUP)
    message = values[0] if values and type(values[0]) is str else ""
    return kind.__new__(kind, message, told or [RemoteError("its members were not told")])


def _make(kind: type[RemoteError], values: Sequence[object]) -> RemoteError:
    if ATOMS.issuperset(map(type, values)):
        try:
            return kind(*values)
        except TypeError:
            # Some types want arguments that the other side's subclass did not keep.
            pass
    return kind.__new__(kind)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the text of an error is a user's code
        return "<an error without a text>"
    return _printable(text)[:LONGEST_MESSAGE]


def _frames(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # so are the errors that it was raised from
        return ""
    return _printable(text)[-LONGEST_TRACEBACK:]


def _printable(text: object) -> str:
    # Half of a surrogate pair has no encoding.
    return str(text).encode("utf-8", "backslashreplace").decode()
