"""The guard before the caller's objects: a child is taken for hostile, and gets what it was passed
and no more.

It may call what it was passed, use the containers that it was passed by reference, and use names in
`expose`. What comes of that goes by value or is refused. No dunder or underscore names, frames,
code, modules; types only to be constructed when they were passed themselves. A trusted child may
use public names and get results by handle.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, cast

from membrane import frames
from membrane.descriptions import is_dunder
from membrane.dunders import AWAITED, FORWARDED, READABLE
from membrane.errors import AccessRefused, ProtocolError
from membrane.forwarding import ForwardingType
from membrane.growth import Growth, Meter
from membrane.guard_rules import ADDS_TO, CONTAINERS, ITERATORS, METHODS, NEVER, OPERATORS
from membrane.marshal import CALLABLES, ByHandle
from membrane.operations import split_arguments
from membrane.remote_batches import MOST_ITEMS, reply_of, run_batch

if TYPE_CHECKING:
    from membrane.host import HostBond

Answer = tuple[object, Sequence[object]]

_HOW = "pass what it may call as an argument, or name it in isolate(expose=...)"


class Guard:
    """Serve a child's requests on the caller's objects."""

    def __init__(self, *, bond: HostBond, trusted: bool, expose: frozenset[str]) -> None:
        self._bond = bond
        self._get = bond.exports.get
        self._trusted = trusted
        self._expose = expose
        self._growth = Growth(exports=bond.exports)
        self._served: dict[int, Callable[[object, str, object, Sequence[object]], Answer]] = {
            frames.CALL: self._call,
            frames.CALL_BATCH: self._call_batch,
            frames.GET: self._read,
            frames.GET_MANY: self._read_many,
            frames.SET: self._set,
            frames.DELETE: self._delete,
            frames.OPERATE: self._operate,
            frames.AWAIT: self._await,
            frames.CONSTRUCT: self._construct,
        }

    def serve(
        self, op: int, target: int, name: str, extra: object, values: Sequence[object]
    ) -> Answer:
        """Do what the child asks, or raise AccessRefused; ProtocolError for what is no request."""
        if type(name) is not str or type(op) is not int or not isinstance(values, (list, tuple)):
            raise ProtocolError("a request is an operation, a handle, a name and values")
        served = self._served.get(op)
        if served is None:
            raise ProtocolError(f"operation {op!r} is not for a child to ask")
        operand = self._get(target)
        if isinstance(operand, NEVER):
            self._refuse("use", type(operand).__name__, "such objects are the caller's alone")
        try:
            return served(operand, name, extra, values)
        finally:
            # From here until the next frame this thread encodes an answer: see `check_reply`.
            self._bond.marshal.replying = True

    def check_reply(self, value: object) -> None:
        """Raise AccessRefused for what must not become the child's: all but what it has, and
        built-in containers.
        """
        self._bond.check_held()
        kind = type(value)
        if kind in CONTAINERS or kind in ITERATORS or self._bond.exports.is_granted(value):
            return
        self._refuse(
            "get",
            kind.__qualname__,
            "what a callback returns goes by value; pass the object as an argument, "
            "or declare the child trusted",
        )

    def method(self, operand: object, name: str) -> object:
        """Give a method of an own object that the child passes back; one that refuses, if it may
        not call it.
        """
        try:
            if isinstance(operand, NEVER):
                self._refuse("use", type(operand).__name__, "such objects are the caller's alone")
            self._check_name("call", operand, name)
        except AccessRefused as error:
            return RefusedMethod(error=error)
        return self._bounded(operand, name, getattr(operand, name))

    def _call(self, operand: object, name: str, extra: object, values: Sequence[object]) -> Answer:
        args, kwargs = split_arguments(extra, values)
        if not name and isinstance(operand, type):
            return None, (self._made(operand, args, kwargs),)
        function = self._function(operand, name)
        return None, (self._run(operand, name, lambda: function(*args, **kwargs)),)

    def _call_batch(
        self, operand: object, name: str, extra: object, values: Sequence[object]
    ) -> Answer:
        function = self._function(operand, name)
        if not self._trusted:
            function = Meter().metered(function)
        answer = self._run(operand, name, lambda: run_batch(self._bond, function, extra, values))
        return cast("Answer", answer)

    def _construct(
        self, operand: object, name: str, extra: object, values: Sequence[object]
    ) -> Answer:
        if not isinstance(operand, type):
            raise ProtocolError("what is no class cannot be constructed")
        args, kwargs = split_arguments(extra, values)
        return None, (self._made(operand, args, kwargs),)

    def _made(self, kind: type, args: Sequence[object], kwargs: dict[str, object]) -> object:
        if issubclass(kind, type):
            self._refuse("construct", kind.__qualname__, "a metaclass makes classes of the caller")
        self._bond.check_held()
        if self._trusted:
            made: object = kind(*args, **kwargs)
        else:
            made = self._growth.construct(kind, args, kwargs)
        # An object of a class that the child was passed; of it the child may use what is exposed.
        return ByHandle(made) if type(made) is kind and not isinstance(made, NEVER) else made

    def _read(self, operand: object, name: str, extra: object, values: Sequence[object]) -> Answer:
        self._check_name("read", operand, name)
        return None, (getattr(operand, name),)

    def _read_many(
        self, operand: object, name: str, extra: object, values: Sequence[object]
    ) -> Answer:
        if not isinstance(extra, list) or len(extra) > MOST_ITEMS:
            raise ProtocolError("names to read are a list")
        results: list[object] = []
        errors: list[tuple[int, Exception]] = []
        meter = Meter()
        for word in extra:
            try:
                self._check_name("read", operand, word)
                found = getattr(operand, word)
                if not self._trusted:
                    meter.count(found)
                results.append(found)
            except Exception as error:
                errors.append((len(results), error))
                results.append(None)
        return reply_of(self._bond, results, errors)

    def _set(self, operand: object, name: str, extra: object, values: Sequence[object]) -> Answer:
        self._check_writing(operand, name)
        setattr(operand, name, *values)
        return None, ()

    def _delete(
        self, operand: object, name: str, extra: object, values: Sequence[object]
    ) -> Answer:
        self._check_writing(operand, name)
        delattr(operand, name)
        return None, ()

    def _operate(
        self, operand: object, name: str, extra: object, values: Sequence[object]
    ) -> Answer:
        self._check_operator(operand, name)
        operator = getattr(type(operand), name)
        if name in ("__exit__", "__aexit__"):
            values = self._leaving(extra, values)
        return None, (
            self._run(
                operand, name, lambda: operator(operand, *self._operands(operand, name, values))
            ),
        )

    def _await(self, operand: object, name: str, extra: object, values: Sequence[object]) -> Answer:
        if not name and extra is None:
            self._check_operator(operand, "__await__")
            return None, (self._bond.awaiting.run(_awaited(operand)),)
        if is_dunder(name):
            if name not in AWAITED:
                self._refuse("await", name, "it is no operator that is awaited")
            self._check_operator(operand, name)
            operator = getattr(type(operand), name)
            if name == "__aexit__":
                values = self._leaving(extra, values)
            return None, (self._bond.awaiting.run(_awaited(operator(operand, *values))),)
        args, kwargs = split_arguments(extra, values)
        made = self._function(operand, name)(*args, **kwargs)
        if not inspect.isawaitable(made):
            return None, (made,)
        return None, (self._bond.awaiting.run(_awaited(made)),)

    def _leaving(self, extra: object, values: Sequence[object]) -> Sequence[object]:
        if extra is None:
            return (None, None, None)
        error = self._bond.unpack_error(extra, values)
        return type(error), error, error.__traceback__

    def _run(self, operand: object, name: str, call: Callable[[], object]) -> object:
        """Run a request; what a container asks of the child meanwhile (a sort's key) is an answer
        to it too.
        """
        marshal = self._bond.marshal
        # A method of a container may have been passed without it: `items.sort`.
        owner = operand.__self__ if type(operand) is types.BuiltinMethodType else operand
        if type(owner) not in OPERATORS:
            marshal.replying = False
            return call()
        marshal.confined += 1
        try:
            result = call()
        finally:
            marshal.confined -= 1
        if name in ADDS_TO and result is not operand and not self._trusted:
            raise ProtocolError("an operator in place gave another object")
        return result

    def _function(self, operand: object, name: str) -> Callable[..., object]:
        if name:
            self._check_name("call", operand, name)
            return self._bounded(operand, name, getattr(operand, name))
        if type(operand) in CALLABLES or isinstance(operand, (type, ForwardingType)):
            return self._bounded(operand, name, cast("Callable[..., object]", operand))
        if not callable(operand):
            raise TypeError(f"{type(operand).__qualname__!r} object is not callable")
        return self._bounded(operand, name, operand)

    def _bounded(
        self, operand: object, name: str, function: Callable[..., object]
    ) -> Callable[..., object]:
        return function if self._trusted else self._growth.bounded(operand, name, function)

    def _operands(self, operand: object, name: str, values: Sequence[object]) -> Sequence[object]:
        return values if self._trusted else self._growth.operands(operand, name, values)

    def _check_name(self, verb: str, operand: object, name: object) -> None:
        if type(name) is not str or not name.isidentifier():
            self._refuse(verb, repr(name)[:200], "that is no name")
        if verb == "call" and name in METHODS.get(type(operand), ()):
            return
        if is_dunder(name):
            if self._trusted and (name in READABLE or name in FORWARDED):
                return
            self._refuse(verb, name, "special names of the caller's objects are the caller's alone")
        if name.startswith("_"):
            self._refuse(verb, name, "private names of the caller's objects are the caller's alone")
        if name in self._expose:
            return
        if self._trusted and not isinstance(operand, _FUNCTIONS):
            return
        self._refuse(verb, name, _HOW)

    def _check_writing(self, operand: object, name: str) -> None:
        if not self._trusted:
            self._refuse("change", name, "only a trusted child changes the caller's objects")
        if is_dunder(name):
            self._refuse(
                "change", name, "special names of the caller's objects are the caller's alone"
            )
        self._check_name("change", operand, name)

    def _check_operator(self, operand: object, name: str) -> None:
        if name not in FORWARDED or name == "__call__":
            self._refuse("use operator", name, "it is not one that crosses")
        if name in OPERATORS.get(type(operand), ()) or name in self._expose or self._trusted:
            return
        self._refuse("use operator", name, _HOW)

    def _refuse(self, verb: str, name: str, remedy: str) -> NoReturn:
        raise AccessRefused(operation=verb, name=name[:200], remedy=remedy)


class RefusedMethod:
    """Stand for a method that the child passed and may not call: whoever calls it gets the refusal.

    The frame that it came in is read all the same, so that the refusal reaches the child as an
    answer.
    """

    __slots__ = ("_error",)

    def __init__(self, *, error: AccessRefused) -> None:
        self._error = error

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise self._error


_FUNCTIONS: tuple[type, ...] = (
    types.FunctionType,
    types.MethodType,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
)
"""Whose public attributes lead to frames, code and globals, for a trusted child too."""


async def _awaited(operand: object) -> object:
    return await operand  # type: ignore[misc]
