"""The steps of a launch as they tick off on standard error."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.events import SnapshotMissed, StepChanged
from fairlead_sdk.kept_blobs import ReadProgress
from fairlead_sdk.repository import Repository, has_changes
from fairlead_sdk.workspace_records import Freshness

_MIB = 1024**2
_SHOWN_SECONDS = 0.1
# Why the workspace is not of the upstream's tip, and what to do about it.
_FALLBACK = {
    "no_base": ("the host had nothing of this project yet", "Launch again."),
    "origin_timeout": ("origin did not answer the host in time", "Launch again."),
    "origin_unreachable": (
        "the host cannot reach origin",
        "Look at the address, git remote get-url origin, and at the host's network.",
    ),
    "origin_denied": (
        "the host does not dial or trust origin",
        "Name it in the host's FAIRLEAD_WORKSPACE_ORIGIN_ALLOW, or its key in known_hosts there.",
    ),
    "origin_unauthorized": (
        "origin wants credentials that the host does not have",
        "Put them into the host's FAIRLEAD_WORKSPACE_CREDENTIALS.",
    ),
    "origin_branch_missing": (
        "origin has no such branch",
        "git remote set-head origin --auto, and launch again.",
    ),
    "origin_redirected": (
        "origin redirects to another place",
        "git remote set-url origin URL, with the address that it redirects to.",
    ),
    "origin_malformed": (
        "what origin sent was refused",
        "See whether git ls-remote origin works; the host's log says more.",
    ),
    "origin_commit_missing": ("origin did not give its tip's commit", "Launch again."),
}
_MISS = {
    "no_base": "the host does not have this project yet",
    "unknown_commit": "the host does not have this commit yet",
    "unknown_changes": "the host does not have the uncommitted changes yet",
    "ref_drift": "what the host has of this project is not what it recorded",
    "snapshot_not_durable": "the host has not finished checking this snapshot",
    "missing_objects": "the host lost objects of this project",
}


class Ticks:
    """Shows steps: a line for each that ended, and on a terminal those under way below."""

    def __init__(
        self,
        *,
        terminal: Terminal,
        shows_rung: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terminal = terminal
        self._shows_rung = shows_rung
        self._clock = clock
        self._under_way: dict[str, None] = {}
        self._upload_began = 0.0

    def step(self, change: StepChanged, *, left_changes: bool = False) -> None:
        """Take a change of a step; `left_changes` as in `fresh`."""
        match change.state:
            case "started":
                self._under_way[change.step] = None
            case "done":
                self._under_way.pop(change.step, None)
                self._line("✓", "32", change)
                if change.freshness is not None:
                    self.fresh(change.freshness, left_changes=left_changes)
                self.pointers(change.lfs_pointers)
                if change.step == "sandbox":
                    self._walls(change.detail)
            case "failed":
                self._under_way.pop(change.step, None)
                self._line("✗", "31", change)
            case "undone":
                self._under_way.pop(change.step, None)
                self._line("↶", "33", change)
        self._show()

    def miss(self, miss: SnapshotMissed) -> None:
        """Take a miss of a launch."""
        self.lacks(miss.reason)

    def lacks(self, reason: str) -> None:
        """Say what is lacking, and that it is being sent."""
        self._upload_began = self._clock()
        self._terminal.say(
            f"{_MISS.get(reason, 'the host lacks objects')}; sending what is lacking"
        )

    def upload(self, sent: int, written: int | None) -> None:
        """Take the number of bytes that have been sent, and how many percent git has written."""
        elapsed = self._clock() - self._upload_began
        shown = [_shown_size(sent)]
        if elapsed >= 0.1:
            shown.append(f"{_shown_size(sent / elapsed)}/s")
        if written and elapsed >= 1:
            left = elapsed * (100 - written) / written
            shown.append(f"{shown_seconds(left)} left" if left >= 1 else "nearly done")
        self._terminal.status(f"  … sending: {', '.join(shown)}")

    def uploaded(self, sent: int) -> None:
        """Say how much was sent."""
        elapsed = self._clock() - self._upload_began
        if sent and elapsed > 0:
            took, rate = shown_seconds(elapsed), _shown_size(sent / elapsed)
            self._terminal.say(f"sent {_shown_size(sent)} in {took}, {rate}/s")
        self._show()

    def _line(self, mark: str, colour: str, change: StepChanged) -> None:
        if self._terminal.is_json or change.step == "execution":
            return
        took = f"{shown_seconds(change.elapsed):>9}" if change.elapsed is not None else " " * 9
        is_told = change.detail and (change.step != "workspace" or self._shows_rung)
        detail = f"  {change.detail}" if is_told else ""
        if self._terminal.is_live:
            mark = f"\x1b[{colour}m{mark}\x1b[0m"
        else:
            mark = {"✓": "done", "✗": "failed", "↶": "undone"}[mark]
        self._terminal.line(f"  {mark} {change.step:<9} {took}{detail}")

    def _walls(self, isolation: str) -> None:
        """Warn of a sandbox that has none."""
        if isolation.startswith("process"):
            who = "as root" if isolation.endswith("as root") else "as an ordinary user"
            self._terminal.warn(
                f"no walls: the program runs on the host {who}, and sees its files, processes and"
                " network; `fairlead doctor` says why."
            )

    def pointers(self, count: int) -> None:
        """Warn of files whose content does not travel."""
        if count:
            files = "1 file is an LFS pointer; its content stays"
            if count > 1:
                files = f"{count} files are LFS pointers; their contents stay"
            self._terminal.warn(f"{files} home.")

    def fresh(self, freshness: Freshness, *, left_changes: bool = False) -> None:
        """Warn where it is not the upstream's tip, and where uncommitted changes were left out for
        it; else say how old what is known of it is.
        """
        if freshness.fallback:
            reason = freshness.reason or "the host gave no reason"
            why, remedy = _FALLBACK.get(reason, (reason, ""))
            left = "; uncommitted changes were left out too" if left_changes else ""
            told = f"this is your own commit, not the tip of {freshness.branch}: {why}{left}."
            self._terminal.warn(f"{told}\n  remedy: {remedy}" if remedy else told)
        elif freshness.as_of is not None:
            at = freshness.as_of.astimezone().strftime("%H:%M:%S")
            self._terminal.say(f"the tip of {freshness.branch} as of {at}")

    def _show(self) -> None:
        names = [name for name in self._under_way if name != "execution"]
        self._terminal.status(f"  … {', '.join(names)}" if names else "")


async def left_changes(repository: Repository, freshness: Freshness | None, *, clean: bool) -> bool:
    """Say whether a fallback left uncommitted changes out that nobody asked to leave."""
    if clean or repository.changes is not None or freshness is None or not freshness.fallback:
        return False
    return await asyncio.to_thread(has_changes, repository)


def _shown_size(size: float) -> str:
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


def reading(terminal: Terminal) -> ReadProgress | None:
    """Show on a terminal how much of large changes was read, and how fast; called in any thread."""
    if not terminal.is_live:
        return None
    loop = asyncio.get_running_loop()
    began = shown = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < _SHOWN_SECONDS and done < total:
            return
        shown = now
        rate = _shown_size(done / max(now - began, 0.001))
        text = f"  … reading changes: {_shown_size(done)} of {_shown_size(total)}, {rate}/s"
        with contextlib.suppress(RuntimeError):  # whoever waited has left, and its loop with it
            loop.call_soon_threadsafe(terminal.status, text if done < total else "")

    return show
