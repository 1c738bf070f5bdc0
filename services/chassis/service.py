"""Runs a room as a process: command line, logging, signals, drain, exit code."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from pydantic import ValidationError
from pydantic_settings import SettingsError

from chassis.errors import FairleadError
from chassis.logs import start_logging
from chassis.settings import RoomSettings, misspelt, settings_of, shown_settings

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_SECONDS = 1.0

log = logging.getLogger(__name__)


class Service(Protocol):
    """A room that runs."""

    async def drain(self) -> None:
        """Take nothing new and finish what is open; cut short after FAIRLEAD_DRAIN_SECONDS."""
        ...


AnySettings = TypeVar("AnySettings", bound=RoomSettings)
Build = Callable[[AnySettings], AbstractAsyncContextManager[Service]]


def run(
    room: str,
    settings_class: type[AnySettings],
    build: Build[AnySettings],
    argv: Sequence[str] | None = None,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run `room` until SIGTERM or SIGINT and return the exit code; a second signal ends it at once.

    `loop_factory` makes its event loop; without one it is asyncio's.

    0 after a signal, 1 when the room fails, 2 when its settings are wrong. FAIRLEAD_SUPERVISED=1
    ties the process to its parent: it stops, as by SIGTERM, when the parent dies.
    """
    parent = os.getppid()
    arguments = _parser(room, settings_class).parse_args(argv)
    try:
        settings = settings_class()
    except (ValidationError, SettingsError) as error:
        sys.stderr.write(f"{room}: {_settings_fault(settings_class, error)}\n")
        return 2
    if arguments.show_settings:
        sys.stdout.write(shown_settings(settings))
        return 0
    start_logging(room, settings.log_level)
    for name, near in misspelt(settings_class, os.environ):
        log.warning("unknown setting", extra={"setting": name, "nearest": near})
    supervised = os.environ.get("FAIRLEAD_SUPERVISED") == "1"
    if supervised:
        _end_with_parent()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_serve(settings, build, parent if supervised else None))
    except FairleadError as error:
        log.error(
            error.message,
            extra={"reason": error.reason, "remedy": error.remedy, "fields": error.fields},
        )
        return 1
    except OSError as error:
        log.error("the room cannot start or go on", extra={"cause": str(error)})
        return 1
    except Exception:
        log.exception("the room failed")
        return 1
    return 0


async def _serve(settings: AnySettings, build: Build[AnySettings], parent: int | None) -> None:
    stop = _Stop()
    stop.listen()
    try:
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_watch_parent(parent, stop))
            try:
                async with build(settings) as service:
                    # What start-up made stays: left in the collector's oldest generation it costs
                    # a pause of tens of milliseconds again and again.
                    gc.collect()
                    gc.freeze()
                    log.info("ready")
                    await stop.wait()
                    log.info("draining")
                    await _drain(service, settings.drain_seconds)
            finally:
                watch.cancel()
    except* asyncio.CancelledError:
        if not stop.requested:
            raise
    except* Exception as group:
        raise _single(group) from None
    log.info("stopped")


class _Stop:
    """The wish to stop: during the start it cancels the start, later it wakes `wait`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._task = asyncio.current_task()
        self._ready = False
        self._signalled = False

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    async def wait(self) -> None:
        self._ready = True
        await self._event.wait()

    def request(self) -> None:
        if self.requested:
            return
        self._event.set()
        if not self._ready and self._task is not None:
            self._task.cancel()

    def _on_signal(self, number: signal.Signals) -> None:
        # Signals are counted apart: a dead parent is noticed by its signal and by the watch.
        if self._signalled:
            os._exit(128 + number)
        self._signalled = True
        self.request()


async def _drain(service: Service, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await service.drain()
    except TimeoutError:
        log.warning("drain cut short", extra={"seconds": seconds})


async def _watch_parent(parent: int | None, stop: _Stop) -> None:
    """Ask for a stop when `parent` is no longer our parent; PR_SET_PDEATHSIG is Linux only."""
    while parent is not None:
        if os.getppid() != parent:
            stop.request()
            return
        await asyncio.sleep(_PARENT_CHECK_SECONDS)


def _end_with_parent() -> None:
    """Let the kernel send SIGTERM when the parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _single(group: ExceptionGroup[Exception]) -> Exception:
    """Return the one exception in nested groups, or the group itself when there are several."""
    found: Exception = group
    while isinstance(found, ExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found


def _parser(room: str, settings_class: type[RoomSettings]) -> argparse.ArgumentParser:
    rows = settings_of(settings_class)
    width = max(len(row.name) for row in rows)
    parser = argparse.ArgumentParser(
        prog=f"python -m {room.replace('-', '_')}",
        description=f"Run the {room} of Fairlead. Settings come from the environment.",
        epilog="settings:\n"
        + "\n".join(f"  {row.name:<{width}}  {row.description}" for row in rows),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--show-settings",
        action="store_true",
        help="print the effective settings, with secrets masked, and exit",
    )
    return parser


def _settings_fault(
    settings_class: type[RoomSettings], error: ValidationError | SettingsError
) -> str:
    if isinstance(error, SettingsError):
        return str(error)
    names = {row.field: row.name for row in settings_of(settings_class)}
    faults = []
    for fault in error.errors(include_url=False, include_input=False):
        field = str(fault["loc"][0]) if fault["loc"] else ""
        faults.append(f"{names.get(field, field)}: {fault['msg']}")
    return "; ".join(faults)
