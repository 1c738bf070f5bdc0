"""Processes that each measure one system, and the rounds in which they take turns."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypedDict, cast

from benchmarks.membrane.lane import SYSTEMS
from benchmarks.membrane.regimes import REGIMES, Summary

_ROOT = Path(__file__).resolve().parents[2]
_MEASURED = ("direct", "membrane")
_SLOW = 2.0
"""Whoever takes so many times as long as the best is measured less often, after one repetition."""


class Answer(TypedDict):
    """What a lane says after a regime; see `regimes.Timed`."""

    seconds: float
    first: float
    summary: Summary
    said: str


class Lane:
    """A process with one system in it."""

    def __init__(self, *, name: str, process: subprocess.Popen[str]) -> None:
        self._name = name
        self._process = process
        self.lacks = frozenset(cast("dict[str, list[str]]", self._line())["lacks"])

    def run(self, regime: str, iterations: int, warm_up: int) -> Answer:
        """Measure a regime once."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{regime} {iterations} {warm_up}\n")
        self._process.stdin.flush()
        return cast("Answer", self._line())

    def _line(self) -> object:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the lane of {self._name} ended early"
        return json.loads(line)


@contextmanager
def opened_lane(name: str) -> Iterator[Lane]:
    """Start a process for one system; it ends with the context."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.membrane.lane", name],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Lane(name=name, process=process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0, f"the lane of {name} failed at its end"


def present(notes: list[str]) -> list[str]:
    """Return the systems that can be measured here; a note says what to do about the others."""
    absent = set()
    for name in ("rpyc", "loky"):
        if importlib.util.find_spec(name) is None:
            absent.add(name)
            notes.append(f"{name} is not installed here: `make bench-peers`")
    checkout = os.environ.get("EXTRADITE_PATH", "")
    if not (Path(checkout) / "src" / "extradite" / "__init__.py").is_file() or not checkout:
        absent.add("extradite")
        notes.append(
            "extradite was not measured: set EXTRADITE_PATH to a checkout of"
            " github.com/tanmay-bakshi/extradite"
        )
    return [name for name in SYSTEMS if name not in absent]


class Measured:
    """What all lanes took, by regime and system, in microseconds of one operation."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._firsts: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.said: dict[str, str] = {}

    def add(self, regime: str, name: str, answer: Answer, iterations: int) -> None:
        """Take one answer in."""
        self._samples[regime, name].append(answer["seconds"] / iterations * 1e6)
        self._firsts[regime, name].append(answer["first"] * 1e6)
        self.said[name] = answer["said"]

    def median(self, regime: str, name: str) -> float | None:
        """Return the median of the repetitions; None where there is none."""
        samples = self._samples.get((regime, name))
        return statistics.median(samples) if samples else None

    def is_slow(self, regime: str, name: str) -> bool:
        """Say whether it is none of those that are compared, and far behind the best of them."""
        own = self.median(regime, name)
        if own is None or name in _MEASURED:
            return False
        best = min(
            statistics.median(samples)
            for (of, each), samples in self._samples.items()
            if of == regime and each != "direct"
        )
        return own > _SLOW * best

    def first(self, regime: str, name: str) -> float | None:
        """Return the median of what the first iteration of each process took."""
        firsts = self._firsts.get((regime, name))
        return statistics.median(firsts) if firsts else None


def measure(
    names: Sequence[str], *, repetitions: int, turns: int = 1, divisor: int = 1, quick: bool
) -> Measured:
    """Run every regime in every lane, with fresh processes for each repetition.

    The iterations of a regime are spread over `turns`, in which the lanes take turns, since the
    speed of a shared machine changes by the second; whole lives are measured in one. `divisor`
    makes the counts smaller still, for a test. Whatever comes out differently than from the direct
    call, the first of the names, is an error.

    After the first repetition the slow ones have one turn of each repetition, and their whole lives
    are measured in every second one: they take most of the time, and say nothing by it.
    """
    measured = Measured()
    for repetition in range(repetitions):
        with ExitStack() as stack:
            lanes = {name: stack.enter_context(opened_lane(name)) for name in names}
            for regime, shape in REGIMES.items():
                counted = (shape.quick if quick else shape.iterations) // divisor
                spread = 1 if shape.whole_life else turns
                slow = {each for each in names if repetition and measured.is_slow(regime, each)}
                for turn in range(spread):
                    is_theirs = (
                        (repetition % 2 == 0) if spread == 1 else turn == repetition % spread
                    )
                    warm_up = shape.warm_up // divisor if turn == 0 else 0
                    # Whoever always follows the same neighbour always pays for its caches.
                    first = (repetition + turn) % len(names)
                    in_turn = [
                        name
                        for name in (*names[first:], *names[:first])
                        if regime not in lanes[name].lacks and (is_theirs or name not in slow)
                    ]
                    iterations = max(1, counted // spread)
                    answers = {
                        name: lanes[name].run(regime, iterations, warm_up) for name in in_turn
                    }
                    for name, answer in answers.items():
                        measured.add(regime, name, answer, iterations)
                        same = answer["summary"] == answers["direct"]["summary"]
                        assert same, f"{regime} of {name} differs"
    return measured
