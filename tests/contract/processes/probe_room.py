"""A room for tests: `python probe_room.py`, with FAIRLEAD_PROBE_MODE saying what goes wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opentelemetry.sdk.trace import SpanProcessor
from pydantic import Field

from chassis.errors import FailedPrecondition
from chassis.service import Service, run
from chassis.settings import RoomSettings, room_config
from chassis.telemetry import start_telemetry


class ProbeSettings(RoomSettings):
    model_config = room_config("FAIRLEAD_PROBE_")

    mode: str = Field(default="good", description="What goes wrong.")


class ProbeService:
    """A room that does nothing, some of it for ever."""

    def __init__(self, *, mode: str) -> None:
        self._mode = mode

    async def drain(self) -> None:
        if self._mode == "slow_drain":
            await asyncio.Event().wait()


class StuckFlush(SpanProcessor):
    """Spans that never get to where they go."""

    def shutdown(self) -> None:
        threading.Event().wait()


@asynccontextmanager
async def build(settings: ProbeSettings) -> AsyncIterator[Service]:
    match settings.mode:
        case "refuses":
            raise FailedPrecondition("No root.", reason="no_root", remedy="Make one.")
        case "bind":
            raise OSError(98, "Address already in use")
        case "slow_start":
            sys.stderr.write('{"message": "starting"}\n')
            await asyncio.Event().wait()
        case "crashes":
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_crash())
                yield ProbeService(mode=settings.mode)
            return
    provider = start_telemetry("probe")
    if settings.mode == "stuck_flush":
        provider.add_span_processor(StuckFlush())
    with provider.get_tracer("probe").start_as_current_span("probe.start"):
        pass
    try:
        yield ProbeService(mode=settings.mode)
    finally:
        sys.stderr.write('{"message": "closed"}\n')


async def _crash() -> None:
    raise ValueError("a bug")


if __name__ == "__main__":
    if sys.argv[1:] == ["parent"]:
        # Starts itself as a supervised child and then waits to be killed.
        child = subprocess.Popen([sys.executable, __file__])
        sys.stdout.write(f"{child.pid}\n")
        sys.stdout.flush()
        child.wait()
    raise SystemExit(run("probe", ProbeSettings, build))
