"""`multiprocessing.managers`: a server process with the object, called through its proxy."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any, cast

from benchmarks.membrane.system import ROUNDS, SEED, TARGET, Life, System, Work


class Server(BaseManager):
    """A server of workloads."""


def _made(seed: str, rounds: int) -> object:
    module, _, name = TARGET.partition(":")
    return getattr(importlib.import_module(module), name)(seed, rounds)


_METHODS = (
    "ping", "set_value", "increment", "payload_checksum", "sum_values", "echo_bytes",
    "compute_checksum", "readline_digest", "mixed_pipeline",
)  # fmt: skip
Server.register("workload", callable=_made, exposed=_METHODS)


@contextmanager
def warmed() -> Iterator[Life]:
    """Keep the server between objects."""
    with Server(ctx=get_context("fork")) as server:

        @contextmanager
        def life() -> Iterator[Work]:
            yield cast("Work", cast("Any", server).workload(SEED, ROUNDS))

        yield life


@contextmanager
def opened() -> Iterator[Work]:
    """Start a server for one object."""
    with warmed() as life, life() as work:
        yield work


SYSTEM = System(
    cold={"cold_start": opened},
    warmed=warmed,
    lacks=frozenset({"callback", "callback_single"}),
)
