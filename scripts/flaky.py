"""Run new and changed tests many times at four speeds of the machine; run by `make flaky`.

A test that depends on the machine's speed passes where it was written and fails elsewhere. Each
speed is bounded in time, and what is started here is ended here.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox_worker.isolation.cgroup_files import own_places, write

ROOT = Path(__file__).resolve().parents[1]
_ROUNDS_AT_ONCE = 5
"""Rounds in one process: a fault may need a new process, or one that has run before."""
_QUOTA = 0.5
_PERIOD_MICROSECONDS = 100_000
_TEST_SECONDS = 300.0
_INTERRUPT_SECONDS = 60.0

_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_OUTCOME = re.compile(r"^(tests/.+?) (PASSED|FAILED|ERROR|SKIPPED)\b")
_ROUND = re.compile(r"(\[|-)\d+-\d+\]$")


def changed_lines(diff: str) -> set[int]:
    """Return the lines of the new side that a diff without context adds or changes."""
    lines: set[int] = set()
    for first, count in _HUNK.findall(diff):
        lines |= set(range(int(first), int(first) + int(count or 1)))
    return lines


def functions_at(source: str, lines: set[int]) -> list[str] | None:
    """Return the tests of a module that hold all these lines; None if some are in no test."""
    found: list[str] = []
    left = set(lines)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            own = set(range(first, (node.end_lineno or first) + 1))
            if node.name.startswith("test_") and own & left:
                found.append(node.name)
                left -= own
    text = source.splitlines()
    return None if any(text[each - 1].strip() for each in left if each <= len(text)) else found


def git(*arguments: str) -> str:
    """Return what git prints; raises CalledProcessError."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def default_base() -> str:
    """Return origin/main if it is there and is not HEAD, else the commit before HEAD."""
    with contextlib.suppress(subprocess.CalledProcessError):
        if git("rev-parse", "origin/main") != git("rev-parse", "HEAD") or git("status", "-s"):
            return "origin/main"
    return "HEAD~"


def changed_tests(base: str) -> list[str]:
    """Return the tests that are new or changed since they left `base`, the work tree included."""
    start = git("merge-base", base, "HEAD").strip()
    names = git("diff", "--name-only", "--diff-filter=d", start, "--", "tests").split()
    new = git("ls-files", "--others", "--exclude-standard", "--", "tests").split()
    chosen: list[str] = []
    for name in sorted({*names, *new}):
        if not re.fullmatch(r"tests/(unit|contract|e2e)/.*test_[^/]*\.py", name):
            continue
        source = (ROOT / name).read_text()
        lines = changed_lines(git("diff", "-U0", start, "--", name)) if name in names else set()
        functions = functions_at(source, lines) if lines else None
        chosen += [name] if functions is None else [f"{name}::{each}" for each in functions]
    return chosen


@contextlib.contextmanager
def as_it_is() -> Iterator[Callable[[], None]]:
    """Change nothing."""
    yield lambda: None


@contextlib.contextmanager
def one_core() -> Iterator[Callable[[], None]]:
    """Let the tests use one core."""
    core = min(os.sched_getaffinity(0))
    yield lambda: os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def quota() -> Iterator[Callable[[], None]]:
    """Let the tests have half a core by a cgroup's quota, which stops them for tens of
    milliseconds. Raises OSError where no cgroup can be made.
    """
    places = own_places(
        Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )
    most = int(_QUOTA * _PERIOD_MICROSECONDS)
    for place in places:
        group = place.path / f"fairlead-flaky-{os.getpid()}"
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            group.mkdir()
            stack.callback(_remove, group)
            if "cpu" in place.controllers:
                write(group / "cpu.cfs_quota_us", str(most))
            elif not place.controllers:
                write(group / "cpu.max", f"{most} {_PERIOD_MICROSECONDS}")
            else:
                continue
            joined = str(group / "cgroup.procs")
            cleanup = stack.pop_all()
            break
    else:
        raise OSError("no cgroup with a CPU quota can be made here")
    with cleanup:
        yield lambda: write(joined, "0")


def _remove(group: Path) -> None:
    """Remove a cgroup and what tests left below it."""
    for each in sorted(group.rglob("*/"), reverse=True):
        each.rmdir()
    group.rmdir()


@contextlib.contextmanager
def busy() -> Iterator[Callable[[], None]]:
    """Keep two processes busy on each core."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield lambda: None
    finally:
        for each in others:
            each.kill()
            each.wait()


SPEEDS: dict[str, Callable[[], contextlib.AbstractContextManager[Callable[[], None]]]] = {
    "one core": one_core,
    "quota": quota,
    "busy": busy,
    "as it is": as_it_is,
}


@dataclass
class Outcome:
    """What came of the tests at one speed."""

    rounds: int = 0
    is_cut: bool = False
    ran: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def note(self, output: str) -> None:
        """Count the outcomes that pytest printed."""
        for line in output.splitlines():
            if found := _OUTCOME.match(line):
                name = _ROUND.sub(lambda cut: "" if cut[1] == "[" else "]", found[1])
                if found[2] != "ERROR":
                    self.ran[name] += 1
                if found[2] in ("FAILED", "ERROR"):
                    self.failed[name] += 1


def run_rounds(
    tests: Sequence[str], count: int, slow_down: Callable[[], None], log: Path, seconds: float
) -> int | None:
    """Run the tests `count` times in one process; returns its exit code, None if it was ended.

    A test that hangs fails after half of the time that there is.
    """
    command = [
        *(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-n", "0"),
        *("--timeout", str(min(_TEST_SECONDS, seconds / 2))),
        *("--count", str(count), "--repeat-scope", "session", *tests),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, preexec_fn=slow_down
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_INTERRUPT_SECONDS)
                process.kill()
                process.wait()


def at_speed(speed: str, tests: Sequence[str], times: int, seconds: float, logs: Path) -> Outcome:
    """Run the tests `times` times, or for as long as there is time."""
    outcome = Outcome()
    until = time.monotonic() + seconds
    with SPEEDS[speed]() as slow_down:
        while outcome.rounds < times and not outcome.is_cut:
            count = min(_ROUNDS_AT_ONCE, times - outcome.rounds)
            log = logs / f"{speed.replace(' ', '-')}-{outcome.rounds}.log"
            left = max(until - time.monotonic(), 1.0)
            code = run_rounds(tests, count, slow_down, log, left)
            failures = outcome.failed.total()
            outcome.note(log.read_text(errors="replace"))
            if code not in (None, 0, 1):
                sys.exit(f"flaky: pytest ended with {code}; see {log}")
            if outcome.failed.total() == failures:
                log.unlink()
            outcome.is_cut = code is None
            outcome.rounds += 0 if outcome.is_cut else count
    return outcome


def main() -> int:
    """Print a table of failures by name; returns 1 if there was any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", help="tests as pytest names them, not the changed ones")
    parser.add_argument("--base", default="", help="the revision that changes are counted from")
    parser.add_argument("--times", type=int, default=30, help="rounds at each speed")
    parser.add_argument("--seconds", type=float, default=600, help="longest time at each speed")
    parser.add_argument("--speed", action="append", choices=SPEEDS, help="only this speed")
    options = parser.parse_args()
    tests = options.tests or changed_tests(options.base or default_base())
    if not tests:
        print("flaky: no test is new or changed")
        return 0
    print("flaky:", *tests, sep="\n  ", flush=True)
    logs = Path(tempfile.mkdtemp(prefix="fairlead-flaky-"))
    outcomes: dict[str, Outcome] = {}
    for speed in options.speed or SPEEDS:
        try:
            outcomes[speed] = at_speed(speed, tests, options.times, options.seconds, logs)
        except OSError as error:
            print(f"{speed:>10}: not run: {error}", flush=True)
            continue
        found = outcomes[speed]
        print(
            f"{speed:>10}: {found.rounds} of {options.times} rounds, {found.ran.total()} tests, "
            f"{found.failed.total()} failed{', out of time' if found.is_cut else ''}",
            flush=True,
        )
    names = sorted({name for found in outcomes.values() for name in found.failed})
    if not names:
        logs.rmdir()
        return 0
    print("\nfailures " + "".join(f"{speed:>10}" for speed in outcomes))
    for name in names:
        counts = "".join(f"{found.failed[name]:>10}" for found in outcomes.values())
        print(f"         {counts}  {name}")
    print(f"\nThe output of runs that failed is in {logs}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
