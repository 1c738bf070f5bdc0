"""A zygote that stops at a named step, its own or that of an init that it forked, so that a test
kills it there: the real program, with a stop before or after one of its functions.

`FifoStop` is the test's side. Run in the zygotes and inits: standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = (
    # In the zygote.
    "create is read",
    "clone is made",
    "clone is admitted",
    "clone is told of",
    "clone may go on",
    "next network is made",
    # In the init.
    "cgroup is joined",
    "walls are begun",
    "end with the parent is asked for",
    "root is made",
    "walls are entered",
    "ready is sent",
    "walls are prepared",
    # From the take to the first execution.
    "take is read",
    "files are bounded",
    "workspace is opened",
    "workspace is bound",
    "taken is sent",
    "sealing is begun",
    "rights are given up",
    "init is sealed",
    "start is read",
    "program is spawned",
    "started is sent",
)
MAPPED = ("user map is asked for", "user map is sent")
"""For the first sandbox that has a uid, when it has a workspace."""

REHEARSED = "rehearsal is done"
"""Only in what a pool keeps ready."""

_STEP, _TOKEN, _TOLD, _GO = "step", "token", "told", "go"
_LONGEST = 64


def program(place: Path, root: Path) -> str:
    """Return what runs a module of the isolation, as ForkerProcess has it, with the stop at
    `place`; `root` is where this package is found.
    """
    return (
        "import sys; sys.path[:0] = sys.argv[1], sys.argv.pop(2); "
        f"sys.path.append({str(root)!r}); "
        "from tests.fakes.stopped_zygote import run; "
        f"run('{{module}}', {str(place)!r})"
    )


class FifoStop:
    """Lets one process stop at a time."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self._step = place / _STEP
        self._step.touch()
        for name in (_TOKEN, _TOLD, _GO):
            os.mkfifo(place / name)
        _, *self._fifos = _opened(place)
        self._token, self._told, self._go = self._fifos
        os.set_blocking(self._told, False)

    def arm(self, step: str) -> None:
        """Let the next one that comes to this step stop there."""
        self._step.write_text(step)
        os.write(self._token, b"t")

    def stopped(self) -> int:
        """Return the pid of the zygote of who has stopped; 0 while nobody has."""
        try:
            return int(os.read(self._told, _LONGEST))
        except BlockingIOError:
            return 0

    def go_on(self) -> None:
        """Let who has stopped go on, if they live."""
        os.write(self._go, b"g")

    def settle(self) -> None:
        """Take back what a dead one could not read any more."""
        os.set_blocking(self._go, False)
        with contextlib.suppress(BlockingIOError):
            os.read(self._go, _LONGEST)
        os.set_blocking(self._go, True)

    def close(self) -> None:
        """Close the FIFOs."""
        for descriptor in self._fifos:
            os.close(descriptor)


def _opened(place: Path) -> tuple[int, int, int, int]:
    flags = os.O_RDWR | os.O_CLOEXEC
    step = os.open(place / _STEP, os.O_RDONLY | os.O_CLOEXEC)
    token = os.open(place / _TOKEN, flags | os.O_NONBLOCK)
    return step, token, os.open(place / _TOLD, flags), os.open(place / _GO, flags)


class _Stop:
    """The stop as the zygote and its inits have it."""

    def __init__(self, place: Path) -> None:
        self._zygote = b"%d" % os.getpid()
        self._descriptors = _opened(place)

    def at(self, step: str) -> None:
        """Stop here if this is the step and nobody has stopped yet."""
        wanted, token, told, go = self._descriptors
        if os.pread(wanted, _LONGEST, 0) != step.encode():
            return
        try:
            os.read(token, 1)
        except BlockingIOError:
            return
        os.write(told, self._zygote)
        os.read(go, 1)

    def before(self, owner: Any, name: str, step: str, is_meant: Callable[..., bool]) -> None:
        """Stop before a function is called with arguments that are meant."""
        whole = getattr(owner, name)

        def stopping(*arguments: Any, **named: Any) -> Any:
            if is_meant(*arguments, **named):
                self.at(step)
            return whole(*arguments, **named)

        setattr(owner, name, stopping)

    def after(self, owner: Any, name: str, step: str, is_meant: Callable[..., bool]) -> None:
        """Stop after a function has returned what is meant; `is_meant` gets the arguments too."""
        whole = getattr(owner, name)

        def stopping(*arguments: Any, **named: Any) -> Any:
            result = whole(*arguments, **named)
            if is_meant(result, *arguments):
                self.at(step)
            return result

        setattr(owner, name, stopping)

    def keep_open(self, owner: Any) -> None:
        """Keep the FIFOs across `enter`, which closes what it is not told to keep."""
        whole = owner.enter

        def enter(tier: Any, keep: set[int]) -> None:
            whole(tier, keep | set(self._descriptors))

        owner.enter = enter


def _always(*_arguments: Any, **_named: Any) -> bool:
    return True


def _says(verb: bytes) -> Callable[..., bool]:
    """Return what knows a packet by its first field, among the arguments of who sends it."""
    return lambda *arguments, **_named: verb in arguments


def run(module: str, place: str) -> None:
    """Be this program of the isolation; only zygotes and their inits stop."""
    if module != "zygote":
        from sandbox_worker.isolation import spawner

        spawner.main()
        return
    from fairlead_walls import kernel_calls, raising
    from sandbox_worker.isolation import init, walled_tier, zygote

    stop = _Stop(Path(place))
    forks, walls, tier, served = zygote.Zygote, raising.Walls, walled_tier.WalledTier, init.Init
    stop.keep_open(tier)
    stop.before(forks, "_create", "create is read", _always)
    stop.after(walls, "clone", "clone is made", lambda pid, *_: pid > 0)
    stop.after(walls, "admit", "clone is admitted", _always)
    stop.after(forks, "_tell", "clone is told of", _says(b"born"))
    stop.after(forks, "_fork", "clone may go on", _always)
    stop.before(forks, "_map", "user map is asked for", _always)
    stop.after(forks, "_tell", "user map is sent", _says(b"mapped"))
    stop.after(walls, "begin", "next network is made", _always)
    stop.after(walled_tier, "join", "cgroup is joined", _always)
    stop.before(walls, "enter", "walls are begun", _always)
    stop.after(kernel_calls, "end_with_parent", "end with the parent is asked for", _always)
    stop.after(walls, "_make_root", "root is made", _always)
    stop.after(tier, "enter", "walls are entered", _always)
    stop.after(served, "_send", "ready is sent", _says(b"ready"))
    stop.after(walls, "prepare", "walls are prepared", _always)
    stop.after(zygote, "rehearse", REHEARSED, _always)
    stop.before(served, "_take", "take is read", _always)
    stop.after(tier, "hold_files", "files are bounded", _always)
    stop.before(tier, "bind", "workspace is opened", _always)
    stop.after(tier, "bind", "workspace is bound", _always)
    stop.after(served, "_send", "taken is sent", _says(b"taken"))
    stop.before(walls, "seal", "sealing is begun", _always)
    stop.after(kernel_calls, "drop_capabilities", "rights are given up", _always)
    stop.after(walls, "seal", "init is sealed", _always)
    stop.before(served, "_start", "start is read", _always)
    stop.after(init, "spawn", "program is spawned", _always)
    stop.after(served, "_send", "started is sent", _says(b"started"))
    zygote.main()
