"""The call itself, without any boundary."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from benchmarks.membrane.system import ROUNDS, SEED, TARGET, Life, System, Work


@contextmanager
def opened() -> Iterator[Work]:
    """Import and construct, as every program does."""
    module, _, name = TARGET.partition(":")
    yield cast("Work", getattr(importlib.import_module(module), name)(SEED, ROUNDS))


@contextmanager
def warmed() -> Iterator[Life]:
    """Keep nothing: an import stays anyway."""
    yield opened


SYSTEM = System(cold={"cold_start": opened, "cold_start_preloaded": opened}, warmed=warmed)
