"""The regimes: what is called, how often, and what has to come out, whichever system is called."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import cast

from benchmarks.membrane.system import System, Work

LARGE = 8192
BYTES = 512 * 1024
CALLBACKS = 40
AT_ONCE = 1024
READLINES_AT_ONCE = 64

Summary = str | int | list[int]


@dataclass(frozen=True, slots=True)
class Timed:
    """What a run took in seconds, its first start alone, and a summary of its results."""

    seconds: float
    first: float
    summary: Summary


@dataclass(frozen=True, slots=True)
class Regime:
    """One way to use a class; `run` is given the number of iterations."""

    iterations: int
    quick: int
    warm_up: int
    run: Callable[[System, Work, int], Timed]
    whole_life: bool = False


def _timed(calls: Callable[[int], Summary], iterations: int) -> Timed:
    begun = time.perf_counter()
    summary = calls(iterations)
    return Timed(time.perf_counter() - begun, 0.0, summary)


def _batched(
    system: System, method: Callable[..., object], argument: Callable[[int], tuple[object, ...]]
) -> Callable[[int, int], list[object]]:
    def calls(iterations: int, at_once: int) -> list[object]:
        results: list[object] = []
        for start in range(0, iterations, at_once):
            indices = range(start, min(start + at_once, iterations))
            results += system.batch(method, [argument(index) for index in indices])
        return results

    return calls


def ping_batched(system: System, work: Work, iterations: int) -> Timed:
    calls = _batched(system, work.ping, lambda _: ())
    return _timed(lambda count: sum(cast("list[int]", calls(count, AT_ONCE))), iterations)


def ping_single(system: System, work: Work, iterations: int) -> Timed:
    def calls(count: int) -> Summary:
        total = 0
        for _ in range(count):
            total += work.ping()
        return total

    return _timed(calls, iterations)


def increment_batched(system: System, work: Work, iterations: int) -> Timed:
    work.set_value(0)
    calls = _batched(system, work.increment, lambda _: (1,))
    return _timed(lambda count: cast("list[int]", calls(count, AT_ONCE))[-1], iterations)


def increment_single(system: System, work: Work, iterations: int) -> Timed:
    work.set_value(0)

    def calls(count: int) -> Summary:
        value = 0
        for _ in range(count):
            value = work.increment(1)
        return value

    return _timed(calls, iterations)


def payload_small(system: System, work: Work, iterations: int) -> Timed:
    def calls(count: int) -> Summary:
        found = 0
        for index in range(count):
            payload = {"index": index, "scaled": index / 10.0, "label": f"label-{index % 13}"}
            found ^= work.payload_checksum(payload)
        return found

    return _timed(calls, iterations)


def payload_large(system: System, work: Work, iterations: int) -> Timed:
    payload = list(range(LARGE))
    return _timed(lambda count: [work.sum_values(payload) for _ in range(count)], iterations)


def bytes_hashed(system: System, work: Work, iterations: int) -> Timed:
    payload = b"x" * BYTES
    expected = hashlib.sha256(payload).digest()

    def calls(count: int) -> Summary:
        for _ in range(count):
            assert hashlib.sha256(work.echo_bytes(payload)).digest() == expected
        return count

    return _timed(calls, iterations)


def bytes_unhashed(system: System, work: Work, iterations: int) -> Timed:
    """Time the calls alone; what they return is compared in between."""
    payload = bytes(range(256)) * (BYTES // 256)
    seconds = 0.0
    for _ in range(iterations):
        begun = time.perf_counter()
        echoed = work.echo_bytes(payload)
        seconds += time.perf_counter() - begun
        assert echoed == payload
    return Timed(seconds, 0.0, iterations)


def _called_back(accumulate: Callable[[Callable[[int], int], int], int], iterations: int) -> Timed:
    """Pass a closure, and count that it runs here."""
    offset, called = 17, 0

    def callback(index: int) -> int:
        nonlocal called
        called += 1
        return index * 3 + offset

    timed = _timed(
        lambda count: [accumulate(callback, CALLBACKS) for _ in range(count)], iterations
    )
    assert called == iterations * CALLBACKS, "a callback ran elsewhere"
    return timed


def callback(system: System, work: Work, iterations: int) -> Timed:
    return _called_back(work.callback_accumulate, iterations)


def callback_single(system: System, work: Work, iterations: int) -> Timed:
    return _called_back(work.callback_each, iterations)


def readline(system: System, work: Work, iterations: int) -> Timed:
    calls = _batched(system, work.readline_digest, lambda index: ("bench", index * 2, 24))
    return _timed(lambda count: _folded(calls(count, READLINES_AT_ONCE)), iterations)


def readline_single(system: System, work: Work, iterations: int) -> Timed:
    return _timed(
        lambda count: _folded([work.readline_digest("bench", 2 * i, 24) for i in range(count)]),
        iterations,
    )


def cpu(system: System, work: Work, iterations: int) -> Timed:
    return _timed(
        lambda count: [work.compute_checksum("cpu", 3 * index, 20) for index in range(count)],
        iterations,
    )


def mixed(system: System, work: Work, iterations: int) -> Timed:
    values = list(range(512))
    work.set_value(0)
    return _timed(
        lambda count: str(
            [sorted(work.mixed_pipeline("mixed", 5 * i, 18, values).items()) for i in range(count)]
        ),
        iterations,
    )


def _folded(digests: list[object] | list[str]) -> Summary:
    return reduce(xor, (int(str(digest)[:16], 16) for digest in digests))


def cold(name: str) -> Callable[[System, Work, int], Timed]:
    """Return the regime that opens, pings and closes, from nothing to nothing each time.

    Each start counts for itself, as a median: what the first one of a process does once and for all
    (imports, a zygote) is `first`.
    """

    def run(system: System, _: Work, iterations: int) -> Timed:
        life = system.cold[name]
        seconds: list[float] = []
        pinged = 0
        for _index in range(iterations):
            begun = time.perf_counter()
            with life() as work:
                pinged += work.ping()
            seconds.append(time.perf_counter() - begun)
        return Timed(statistics.median(seconds) * iterations, seconds[0], pinged)

    return run


def warm(system: System, _: Work, iterations: int) -> Timed:
    """Open, ping and close on top of what stays; that is opened within the time."""
    begun = time.perf_counter()
    pinged = 0
    with ExitStack() as kept:
        life = kept.enter_context(system.warmed())
        for _index in range(iterations):
            with life() as work:
                pinged += work.ping()
        seconds = time.perf_counter() - begun
    return Timed(seconds, 0.0, pinged)


REGIMES = {
    "cold_start": Regime(20, 4, 0, cold("cold_start"), whole_life=True),
    "cold_start_preloaded": Regime(20, 4, 0, cold("cold_start_preloaded"), whole_life=True),
    "warm": Regime(20, 4, 0, warm, whole_life=True),
    "ping_batched": Regime(20_000, 2000, 500, ping_batched),
    "ping_single": Regime(5000, 500, 200, ping_single),
    "increment_batched": Regime(15_000, 1500, 250, increment_batched),
    "increment_single": Regime(5000, 500, 200, increment_single),
    "payload_small": Regime(5000, 500, 200, payload_small),
    "payload_large": Regime(500, 50, 20, payload_large),
    "bytes": Regime(120, 20, 5, bytes_hashed),
    "bytes_nohash": Regime(120, 20, 5, bytes_unhashed),
    "callback": Regime(400, 40, 10, callback),
    "callback_single": Regime(100, 10, 5, callback_single),
    "readline": Regime(400, 40, 10, readline),
    "readline_single": Regime(400, 40, 10, readline_single),
    "cpu": Regime(20, 10, 4, cpu),
    "mixed": Regime(44, 20, 6, mixed),
}
"""By the names of their figures; iterations and warm-ups are those that extradite measures with,
where it has the regime: those with `single`, `nohash` and `preloaded` in their names it has not. Of
`cpu` and `mixed`, 10 to 50 ms a call in every system, it has four times as many iterations, which
took most of the time of all.
"""
