"""What every way to call a class in another process offers to the regimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

TARGET = "benchmarks.membrane.workload:Workload"
SEED = "membrane-benchmark-seed"
ROUNDS = 2000


class Work(Protocol):
    """A workload, wherever it lives."""

    ping: Callable[[], int]
    set_value: Callable[[int], int]
    increment: Callable[[int], int]
    payload_checksum: Callable[[Mapping[str, object]], int]
    sum_values: Callable[[Sequence[int]], int]
    echo_bytes: Callable[[bytes], bytes]
    callback_accumulate: Callable[[Callable[[int], int], int], int]
    callback_each: Callable[[Callable[[int], int], int], int]
    compute_checksum: Callable[[str, int, int], int]
    readline_digest: Callable[[str, int, int], str]
    mixed_pipeline: Callable[[str, int, int, Sequence[int]], dict[str, int | str]]


Life = Callable[[], AbstractContextManager[Work]]
"""Opens a workload and closes all that it needed."""


def one_by_one(
    method: Callable[..., object], calls: Sequence[tuple[object, ...]]
) -> Sequence[object]:
    """Call a method many times, where there is no way to say so at once."""
    return [method(*arguments) for arguments in calls]


@dataclass(frozen=True, slots=True)
class System:
    """A way to call a class in another process.

    `cold` has a whole life, from nothing to nothing, for each regime of cold starts; `warmed` opens
    what stays between lives, and gives the life on top of it. `lacks` names regimes it cannot do.
    """

    cold: Mapping[str, Life]
    warmed: Callable[[], AbstractContextManager[Life]]
    batch: Callable[[Callable[..., object], Sequence[tuple[object, ...]]], Sequence[object]] = (
        one_by_one
    )
    lacks: frozenset[str] = frozenset()
    describe: Callable[[], str] = str
