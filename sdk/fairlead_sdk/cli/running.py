"""Running one command: signals, errors and exit statuses."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.errors import (
    DeadlineExceeded,
    FairleadError,
    Internal,
    InvalidArgument,
    LaunchFailed,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)

FAILED = 1
USAGE = 2
MESH_UNAVAILABLE = 69
OUR_FAULT = 70
NOT_PERMITTED = 77
CLOSED_BY_ADMIN = 79
CLOSED_BY_POLICY = 80
TIMED_OUT = 124
HUNG_UP = 128 + signal.SIGHUP
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
READER_GONE = 128 + signal.SIGPIPE
_IMPORTED_SECONDS = 2.0
GRACE_SECONDS = 2.0
"""Time that an interrupted command has after SIGINT, and again after SIGTERM."""
# What the host does not have, now or later: not the mesh is away.
_LACKING = frozenset({"isolation_unavailable", "network_unavailable", "submodule_unavailable"})
# Words of the command line.
_UNREADABLE = frozenset({"port_invalid", "target_invalid", "via_invalid", "pump_unknown"})
_FORBIDDEN = frozenset({"host_reserved", "isolation_too_weak", "network_exceeded"})
_MESH_REASONS = frozenset({"no_host", "host_lost", "host_away", "launch_lost", "base_locked"})


def exit_status_of(error: FairleadError) -> int:
    """Give the exit status (sysexits.h where it has one) for an error."""
    match error:
        case LaunchFailed(reason="internal"):
            return OUR_FAULT
        case LaunchFailed(reason=reason) if reason in _FORBIDDEN:
            return NOT_PERMITTED
        case LaunchFailed(reason=reason) if reason in _MESH_REASONS:
            return MESH_UNAVAILABLE
        case LaunchFailed(reason=reason) if reason.endswith("_unavailable"):
            return FAILED if reason in _LACKING else MESH_UNAVAILABLE
        case Unavailable(reason="admin_closed"):
            return CLOSED_BY_ADMIN
        case Unavailable(reason="ai_closed"):
            return CLOSED_BY_POLICY
        case InvalidArgument(reason=reason) if reason in _UNREADABLE:
            return USAGE
        case Unavailable():
            return MESH_UNAVAILABLE
        case Internal():
            return OUR_FAULT
        case Unauthenticated() | PermissionDenied():
            return NOT_PERMITTED
        case DeadlineExceeded():
            return TIMED_OUT
        case _:
            return FAILED


async def stop_command(send: Callable[[signal.Signals], Awaitable[object]]) -> None:
    """Send SIGINT, SIGTERM and SIGKILL, each `GRACE_SECONDS` after the one before it.

    Cancel it when the command has ended. It ends quietly when one cannot be sent: the command is
    gone, or what follows its output says what happened.
    """
    with suppress(FairleadError):
        await send(signal.SIGINT)
        for number in (signal.SIGTERM, signal.SIGKILL):
            await asyncio.sleep(GRACE_SECONDS)
            await send(number)


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP: the first one ends the work in order, the next one at once.

    `instead` is asked at each Ctrl-C before that; it returns whether it took it, and then the work
    goes on. `at_once` is called before leaving at once.
    """

    def __init__(
        self, *, task: asyncio.Future[int], leave: Callable[[int], object] = os._exit
    ) -> None:
        self.status = 0
        self.instead: Callable[[], bool] | None = None
        self.at_once: Callable[[], None] | None = None
        self._task = task
        self._leave = leave

    def install(self) -> None:
        """Take the signals; SIGHUP only where nobody (nohup) has it ignored."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.take, INTERRUPTED)
        loop.add_signal_handler(signal.SIGTERM, self.take, TERMINATED)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            loop.add_signal_handler(signal.SIGHUP, self.take, HUNG_UP)

    def take(self, status: int) -> None:
        """Take one, which is to end the command with `status`."""
        if (
            status == INTERRUPTED
            and not self.status
            and self.instead is not None
            and self.instead()
        ):
            return
        if self.status:
            if self.at_once is not None:
                self.at_once()
            self._leave(status)
            return
        self.status = status
        self._task.cancel()


Work = Callable[[Terminal, Interrupts], Awaitable[int]]


def run(
    work: Work,
    *,
    is_json: bool,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run a command's work and give its exit status; errors are told, not raised.

    `loop_factory` makes its event loop; without one it is asyncio's.
    """
    terminal = Terminal(is_json=is_json)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(ended(work, terminal))
    except BrokenPipeError:
        return READER_GONE
    except KeyboardInterrupt:
        return INTERRUPTED


async def ended(
    work: Work, terminal: Terminal, *, connect: Callable[[Interrupts], None] | None = None
) -> int:
    """Run a command's work here and give its exit status; errors are told, not raised.

    `connect` brings the interrupts; without it they are this process's own signals.
    """
    try:
        return await _supervised(work, terminal, connect)
    except FairleadError as error:
        terminal.error(error)
        return exit_status_of(error)
    except BrokenPipeError:
        return READER_GONE
    except Exception as error:
        terminal.error(
            Internal(
                f"Something is wrong in fairlead itself: {type(error).__name__}: {error}",
                reason="internal",
                remedy="FAIRLEAD_DEBUG=1 shows where; please report it.",
            )
        )
        if os.environ.get("FAIRLEAD_DEBUG"):
            raise
        return OUR_FAULT


async def _supervised(
    work: Work, terminal: Terminal, connect: Callable[[Interrupts], None] | None
) -> int:
    started: asyncio.Future[Interrupts] = asyncio.get_running_loop().create_future()

    async def working() -> int:
        try:
            status = await work(terminal, await started)
        except FairleadError:
            await terminal.raw.drain()
            raise
        await terminal.raw.drain()
        return status

    task = asyncio.ensure_future(working())
    if connect is None:
        interrupts = Interrupts(task=task)
        interrupts.install()
    else:
        interrupts = Interrupts(task=task, leave=lambda status: None)
        connect(interrupts)
    asyncio.get_running_loop().call_later(_IMPORTED_SECONDS, gc.enable)
    started.set_result(interrupts)
    try:
        return await task
    except asyncio.CancelledError:
        if not interrupts.status:
            raise
        return interrupts.status
    finally:
        terminal.status("")
