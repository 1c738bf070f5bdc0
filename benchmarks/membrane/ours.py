"""Membrane, walled where this machine has walls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import membrane
from benchmarks.membrane.system import ROUNDS, SEED, TARGET, Life, System, Work

_SHARED = "benchmark"
_KEPT = 60.0
_isolations: set[str] = set()


@contextmanager
def _life(**options: Any) -> Iterator[Work]:
    proxy = cast("Any", membrane.isolate(TARGET, **options))
    try:
        work = proxy(SEED, ROUNDS)
        yield cast("Work", work)
        membrane.close(work)
    finally:
        _isolations.add(proxy.__membrane__.isolation)
        proxy.close()


@contextmanager
def opened() -> Iterator[Work]:
    """Start a child whose zygote does not know the target."""
    with _life() as work:
        yield work


@contextmanager
def preloaded() -> Iterator[Work]:
    """Start a child whose zygote has imported the target."""
    with _life(preload=(TARGET.partition(":")[0],)) as work:
        yield work


@contextmanager
def _shared() -> Iterator[Work]:
    with _life(share_key=_SHARED, keepalive=_KEPT) as work:
        yield work


@contextmanager
def warmed() -> Iterator[Life]:
    """Keep one session between lives; the first life starts it."""
    try:
        yield _shared
    finally:
        membrane.close_session(_SHARED)


def batch(method: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> Sequence[object]:
    """Call many times in one round trip."""
    outcomes = cast("Any", method).batch([(arguments, {}) for arguments in calls])
    return cast("Sequence[object]", outcomes.values())


SYSTEM = System(
    cold={"cold_start": opened, "cold_start_preloaded": preloaded},
    warmed=warmed,
    batch=batch,
    describe=lambda: " and ".join(sorted(_isolations)),
)
