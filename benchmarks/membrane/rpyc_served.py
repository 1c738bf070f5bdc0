"""RPyC on a socket pair with a forked server. It would fetch a mapping or a list item by item, so
small mappings cross as tuples, which it copies, and long lists as pickles: its tuples of 8192
numbers take 27 ms.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, cast

from benchmarks.membrane.system import ROUNDS, SEED, TARGET, Life, System, Work

_rpyc = importlib.import_module("rpyc")
_factory = importlib.import_module("rpyc.utils.factory")
_stream = importlib.import_module("rpyc.core.stream")
_OPEN = {"allow_public_attrs": True}


class _Service(_rpyc.Service):  # type: ignore[misc, name-defined]
    """What the server offers: workloads, and three methods that put together what was sent."""

    def exposed_workload(self, seed: str, rounds: int) -> object:
        module, _, name = TARGET.partition(":")
        return getattr(importlib.import_module(module), name)(seed, rounds)

    def exposed_checksum(self, work: Work, pairs: Sequence[tuple[str, object]]) -> int:
        return work.payload_checksum(dict(pairs))

    def exposed_sum(self, work: Work, pickled: bytes) -> int:
        return work.sum_values(pickle.loads(pickled))  # noqa: S301 (from our own process)

    def exposed_mixed(
        self, work: Work, label: str, start: int, count: int, pickled: bytes
    ) -> tuple[tuple[str, int | str], ...]:
        values = pickle.loads(pickled)  # noqa: S301
        return tuple(work.mixed_pipeline(label, start, count, values).items())


class _Remote:
    """A workload with its methods looked up once, and tuples for what is not atomic."""

    def __init__(self, root: Any) -> None:
        work = root.workload(SEED, ROUNDS)
        self._work = work
        for name in ("ping", "set_value", "increment", "echo_bytes", "callback_each"):
            setattr(self, name, getattr(work, name))
        for name in ("compute_checksum", "readline_digest"):
            setattr(self, name, getattr(work, name))
        self.callback_accumulate = work.callback_each
        self._sum, self._checksum, self._mixed = root.sum, root.checksum, root.mixed

    def sum_values(self, values: Sequence[int]) -> int:
        return cast("int", self._sum(self._work, pickle.dumps(values)))

    def payload_checksum(self, payload: Mapping[str, object]) -> int:
        return cast("int", self._checksum(self._work, tuple(payload.items())))

    def mixed_pipeline(
        self, label: str, start: int, count: int, values: Sequence[int]
    ) -> dict[str, int | str]:
        return dict(self._mixed(self._work, label, start, count, pickle.dumps(values)))


def _connection(end: socket.socket) -> Any:
    return _factory.connect_stream(_stream.SocketStream(end), _Service, _OPEN)


def _serve(end: socket.socket, other: socket.socket) -> None:
    other.close()
    _connection(end).serve_all()
    os._exit(0)


@contextmanager
def warmed() -> Iterator[Life]:
    """Keep the connection between objects."""
    ours, theirs = socket.socketpair()
    process = get_context("fork").Process(target=_serve, args=(theirs, ours))
    process.start()
    theirs.close()
    connection = _connection(ours)
    root = connection.root

    @contextmanager
    def life() -> Iterator[Work]:
        yield cast("Work", _Remote(root))

    try:
        yield life
    finally:
        connection.close()
        process.join()


@contextmanager
def opened() -> Iterator[Work]:
    """Start a server for one object."""
    with warmed() as life, life() as work:
        yield work


SYSTEM = System(cold={"cold_start": opened}, warmed=warmed)
