"""extradite, from the checkout that `EXTRADITE_PATH` names (github.com/tanmay-bakshi/extradite)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from benchmarks.membrane.system import ROUNDS, SEED, TARGET, Life, System, Work

if os.environ.get("EXTRADITE_PATH"):
    sys.path.insert(0, os.path.join(os.environ["EXTRADITE_PATH"], "src"))
_extradite = importlib.import_module("extradite")
_SHARED = "benchmark"
_KEPT = 60.0


@contextmanager
def _life(**options: object) -> Iterator[Work]:
    proxy = _extradite.extradite(TARGET, **options)
    try:
        work = proxy(SEED, rounds=ROUNDS)
        yield cast("Work", work)
        work.close()
    finally:
        proxy.close()


@contextmanager
def opened() -> Iterator[Work]:
    """Start a child for one class."""
    with _life() as work:
        yield work


@contextmanager
def _shared() -> Iterator[Work]:
    with _life(share_key=_SHARED, share_keepalive_seconds=_KEPT) as work:
        yield work


@contextmanager
def warmed() -> Iterator[Life]:
    """Keep one session between lives; the first life starts it."""
    try:
        yield _shared
    finally:
        _extradite.close_extradite_session(_SHARED)


def batch(method: Callable[..., object], calls: Sequence[tuple[object, ...]]) -> Sequence[object]:
    """Call many times in one round trip."""
    specified = [(list(arguments), dict[str, object]()) for arguments in calls]
    return cast("Sequence[object]", cast("Any", method).batch(specified))


SYSTEM = System(cold={"cold_start": opened}, warmed=warmed, batch=batch)
