"""What a parent may ask of the child: everything, since the child is the caller's own. Serves one
request at a time.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from membrane import frames
from membrane.descriptions import is_dunder
from membrane.errors import ModuleUnreachable, ProtocolError
from membrane.forwarding import ForwardingType
from membrane.guest_loop import GuestLoop
from membrane.marshal import ByHandle
from membrane.remote_batches import reply_of, run_batch

if TYPE_CHECKING:
    from membrane.bonds import LinkBond

Answer = tuple[object, Sequence[object]]

OWN_MODULES = len(sys.modules)
"""Modules that were there before any target."""


class Operations:
    """Serve the parent's requests on the child's objects."""

    def __init__(self, *, bond: LinkBond) -> None:
        self._bond = bond
        self._get = bond.exports.get
        self._held = bond.exports.held
        self._loop = GuestLoop()
        self._served: dict[int, Callable[[int, str, object, Sequence[object]], Answer]] = {
            frames.CALL: self._call,
            frames.CALL_BATCH: self._call_batch,
            frames.GET: self._read,
            frames.GET_MANY: self._read_many,
            frames.SET: self._set,
            frames.DELETE: self._delete,
            frames.OPERATE: self._operate,
            frames.AWAIT: self._await,
            frames.LOAD: self._load,
            frames.CONSTRUCT: self._construct,
            frames.DESCRIBE: self._tell,
        }

    def serve(
        self, op: int, target: int, name: str, extra: object, values: Sequence[object]
    ) -> Answer:
        """Do what the parent asks; raise what its target raises, ProtocolError for an unknown
        operation.
        """
        if op == frames.CALL and not extra:
            # In one frame of the interpreter, as most calls are: see `Lane.call`.
            held = self._held.get(target) if type(target) is int else None
            function = self._get(target) if held is None else held.value
            if name:
                function = getattr(function, name)
            return None, (function(*values),)  # type: ignore[operator]
        served = self._served.get(op)
        if served is None:
            raise ProtocolError(f"operation {op!r} is unknown")
        return served(target, name, extra, values)

    def _call(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        function = self._get(target)
        if name:
            function = getattr(function, name)
        args, kwargs = split_arguments(extra, values)
        return None, (function(*args, **kwargs),)  # type: ignore[operator]

    def _call_batch(
        self, target: int, name: str, extra: object, values: Sequence[object]
    ) -> Answer:
        function = self._get(target)
        if name:
            function = getattr(function, name)
        return run_batch(self._bond, cast("Callable[..., object]", function), extra, values)

    def _read(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        return None, (getattr(self._get(target), name),)

    def _read_many(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        owner = self._get(target)
        results: list[object] = []
        errors: list[tuple[int, Exception]] = []
        for word in cast("list[str]", extra):
            try:
                results.append(getattr(owner, word))
            except Exception as error:
                errors.append((len(results), error))
                results.append(None)
        return reply_of(self._bond, results, errors)

    def _set(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        setattr(self._get(target), name, values[0])
        return None, ()

    def _delete(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        delattr(self._get(target), name)
        return None, ()

    def _operate(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        operand = self._get(target)
        operator = getattr(type(operand), name)
        if name == "__exit__":
            values = self._leaving(extra, values)
        return None, (operator(operand, *values),)

    def _await(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        operand = self._get(target)
        if not name and extra is None:
            return None, (self._loop.run(lambda: operand),)
        if is_dunder(name):
            operator = getattr(type(operand), name)
            if name == "__aexit__":
                values = self._leaving(extra, values)
            return None, (self._loop.run(lambda: operator(operand, *values)),)
        function = getattr(operand, name) if name else operand
        args, kwargs = split_arguments(extra, values)
        return None, (
            self._loop.run(lambda: cast("Callable[..., object]", function)(*args, **kwargs)),
        )

    def _load(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        module, _, qualname = name.partition(":")
        try:
            found: object = importlib.import_module(module)
        except (ModuleNotFoundError, PermissionError) as error:
            if (closed := closed_place(module)) is None:
                raise
            raise unreachable(module, closed) from error
        for part in qualname.split("."):
            found = getattr(found, part)
        if not isinstance(found, type):
            raise TypeError(f"{name} is a {type(found).__name__}, not a class")
        if isinstance(found, ForwardingType):
            raise TypeError(f"{name} is a class of the caller")
        handle, told = self._bond.marshal.tell(found)
        self._bond.exports.hold(found, pinned=True)
        inside = module + "."
        # The newest ones only: to touch each name is to copy its page after a fork, 0.6 ms in all.
        newest = itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - OWN_MODULES))
        tree = [known for known in newest if known == module or known.startswith(inside)]
        return [handle, told, tree], ()

    def _construct(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        kind = cast("Callable[..., object]", self._get(target))
        args, kwargs = split_arguments(extra, values)
        return None, (ByHandle(kind(*args, **kwargs)),)

    def _tell(self, target: int, name: str, extra: object, values: Sequence[object]) -> Answer:
        from membrane.callables import told  # inspect is slow to import, and seldom needed

        found = self._get(target)
        return told(getattr(found, name) if name else found), ()

    def _leaving(self, extra: object, values: Sequence[object]) -> Sequence[object]:
        if extra is None:
            return (None, None, None)
        error = self._bond.unpack_error(extra, values)
        return type(error), error, error.__traceback__


def closed_place(module: str) -> str | None:
    """Give the first directory or file where a module could be, and which this process may not
    enter or read; None where there is none.
    """
    parts = module.split(".")
    for entry in sys.path:
        places = [os.path.join(entry, *parts[:depth]) for depth in range(len(parts) + 1)]
        for place in (*places, f"{places[-1]}.py"):
            wanted = os.R_OK | os.X_OK if os.path.isdir(place) else os.R_OK
            if os.path.exists(place) and not os.access(place, wanted):
                return place
    return None


def unreachable(module: str, place: str) -> ModuleUnreachable:
    """Make the error of a module that may be in a place which this process may not enter."""
    error = ModuleUnreachable()
    verb, modes = ("enter", "o+rx") if os.path.isdir(place) else ("read", "o+r")
    error.remote_message = (
        f"{module} cannot be imported: the user of the child (uid {os.getuid()}) may not {verb} "
        f"{place}; let it (chmod {modes} {place}), or name other directories in paths=[...]"
    )
    return error


def split_arguments(
    extra: object, values: Sequence[object]
) -> tuple[Sequence[object], dict[str, object]]:
    """Tell the arguments of a call apart: `extra` names the keywords of the last values."""
    if not extra:
        return values, {}
    if not isinstance(extra, list) or len(extra) > len(values):
        raise ProtocolError("the keywords of a call do not fit its values")
    if not all(type(name) is str for name in extra) or len(set(extra)) != len(extra):
        raise ProtocolError("the keywords of a call are different strings")
    first = len(values) - len(extra)
    return values[:first], dict(zip(extra, values[first:], strict=True))
