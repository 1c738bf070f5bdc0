"""A loop written by hand on `multiprocessing.Pipe`: forked, with batches and callbacks."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, cast

from benchmarks.membrane.system import ROUNDS, SEED, TARGET, Life, System, Work


class _Marked:
    """Stands for a callback on its way; the other side calls back."""


class _Called:
    """A callback, as the child sees it."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    def __call__(self, *arguments: object) -> object:
        return self.batch([(arguments, {})])[0]

    def batch(self, calls: Sequence[tuple[Sequence[object], object]]) -> list[object]:
        self._connection.send((True, [arguments for arguments, _ in calls]))
        return cast("list[object]", self._connection.recv())


def _serve(connection: Connection[Any, Any]) -> None:
    module, _, name = TARGET.partition(":")
    workload = getattr(importlib.import_module(module), name)
    called = _Called(connection)
    work: object = None
    while True:
        asked, calls = connection.recv()
        if asked is None:
            return
        if asked == "open":
            work = workload(*calls)
            connection.send((False, None))
            continue
        method = getattr(work, asked)
        connection.send(
            (False, [method(*(called if type(a) is _Marked else a for a in c)) for c in calls])
        )


class _Method:
    def __init__(self, connection: Connection[Any, Any], name: str) -> None:
        self._connection = connection
        self._name = name

    def __call__(self, *arguments: object) -> object:
        callback = None
        if arguments and callable(arguments[0]):
            callback = arguments[0]
            arguments = (_Marked(), *arguments[1:])
        self._connection.send((self._name, (arguments,)))
        while True:
            calls_back, said = self._connection.recv()
            if not calls_back:
                return said[0]
            assert callback is not None
            self._connection.send([callback(*each) for each in said])

    def batch(self, calls: Sequence[tuple[object, ...]]) -> Sequence[object]:
        self._connection.send((self._name, calls))
        return cast("Sequence[object]", self._connection.recv()[1])


class _Piped:
    """Methods by name, each made once."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        connection.send(("open", (SEED, ROUNDS)))
        connection.recv()

    def __getattr__(self, name: str) -> _Method:
        method = self.__dict__[name] = _Method(self._connection, name)
        return method


@contextmanager
def _connected() -> Iterator[Connection[Any, Any]]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        yield ours
        ours.send((None, None))
    finally:
        ours.close()
        theirs.close()
        process.join()


@contextmanager
def opened() -> Iterator[Work]:
    """Fork a process for one object."""
    with _connected() as connection:
        yield cast("Work", _Piped(connection))


@contextmanager
def warmed() -> Iterator[Life]:
    """Keep the process between objects."""
    with _connected() as connection:

        @contextmanager
        def life() -> Iterator[Work]:
            yield cast("Work", _Piped(connection))

        yield life


def batch(method: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> Sequence[object]:
    """Send all calls in one message."""
    return cast("_Method", method).batch(calls)


SYSTEM = System(cold={"cold_start": opened}, warmed=warmed, batch=batch)
