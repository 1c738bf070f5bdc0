"""The steps of a launch as they tick off on standard error."""

from __future__ import annotations

import time

from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.events import SnapshotMissed, StepChanged

_MIB = 1024**2
_MISS = {
    "unknown_project": "the host does not have this project yet",
    "unknown_commit": "the host does not have this commit yet",
    "unknown_changes": "the host does not have the uncommitted changes yet",
    "missing_objects": "the host lost objects of this project",
}


class Ticks:
    """Shows steps: a line for each that ended, and on a terminal those under way below."""

    def __init__(self, *, terminal: Terminal) -> None:
        self._terminal = terminal
        self._under_way: dict[str, None] = {}
        self._upload_began = 0.0

    def step(self, change: StepChanged) -> None:
        """Take a change of a step."""
        match change.state:
            case "started":
                self._under_way[change.step] = None
            case "done":
                self._under_way.pop(change.step, None)
                self._line("✓", "32", change)
            case "failed":
                self._under_way.pop(change.step, None)
                self._line("✗", "31", change)
            case "undone":
                self._under_way.pop(change.step, None)
                self._line("↶", "33", change)
        self._show()

    def miss(self, miss: SnapshotMissed) -> None:
        """Say what is lacking, and that it is being sent."""
        self._upload_began = time.monotonic()
        self._terminal.say(
            f"{_MISS.get(miss.reason, 'the host lacks objects')}; sending what is lacking"
        )

    def upload(self, sent: int) -> None:
        """Take the number of bytes that have been sent."""
        self._terminal.status(f"  … sending: {_shown_size(sent)}")

    def uploaded(self, sent: int) -> None:
        """Say how much was sent."""
        if self._upload_began and sent:
            elapsed = time.monotonic() - self._upload_began
            self._terminal.say(f"sent {_shown_size(sent)} in {shown_seconds(elapsed)}")
        self._show()

    def _line(self, mark: str, colour: str, change: StepChanged) -> None:
        if self._terminal.is_json or change.step == "execution":
            return
        took = f"{shown_seconds(change.elapsed):>9}" if change.elapsed is not None else " " * 9
        detail = f"  {change.detail}" if change.detail else ""
        if self._terminal.is_live:
            mark = f"\x1b[{colour}m{mark}\x1b[0m"
        else:
            mark = {"✓": "done", "✗": "failed", "↶": "undone"}[mark]
        self._terminal.line(f"  {mark} {change.step:<9} {took}{detail}")

    def _show(self) -> None:
        names = [name for name in self._under_way if name != "execution"]
        self._terminal.status(f"  … {', '.join(names)}" if names else "")


def _shown_size(size: int) -> str:
    return f"{size / _MIB:.1f} MiB" if size >= _MIB else f"{size / 1024:.1f} KiB"


def shown_seconds(seconds: float) -> str:
    """Write a duration for a person."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.0f} min"
