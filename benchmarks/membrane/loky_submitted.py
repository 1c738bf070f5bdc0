"""loky: one worker that holds the object, called through `submit`; batches are chunks of `map`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from benchmarks.membrane.system import ROUNDS, SEED, TARGET, Life, System, Work

_loky = importlib.import_module("loky")
_held: list[object] = []


def hold(seed: str, rounds: int) -> None:
    """Make the workload of this worker."""
    module, _, name = TARGET.partition(":")
    _held[:] = [getattr(importlib.import_module(module), name)(seed, rounds)]


def call(name: str, arguments: tuple[object, ...]) -> object:
    """Call the workload of this worker."""
    return getattr(_held[0], name)(*arguments)


class _Submitted:
    """Methods by name, each a submission that is waited for."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        executor.submit(hold, SEED, ROUNDS).result()

    def __getattr__(self, name: str) -> Callable[..., object]:
        return partial(_called, self.executor, name)


def _called(executor: Any, name: str, *arguments: object) -> object:
    return executor.submit(call, name, arguments).result()


@contextmanager
def warmed() -> Iterator[Life]:
    """Keep the worker between objects."""
    with _loky.ProcessPoolExecutor(max_workers=1) as executor:

        @contextmanager
        def life() -> Iterator[Work]:
            yield cast("Work", _Submitted(executor))

        yield life


@contextmanager
def opened() -> Iterator[Work]:
    """Start a worker for one object."""
    with warmed() as life, life() as work:
        yield work


def batch(method: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> Sequence[object]:
    """Send all calls as one chunk."""
    executor, name = cast("partial[object]", method).args
    return list(executor.map(partial(call, name), calls, chunksize=len(calls)))


SYSTEM = System(
    cold={"cold_start": opened},
    warmed=warmed,
    batch=batch,
    lacks=frozenset({"callback", "callback_single"}),
)
