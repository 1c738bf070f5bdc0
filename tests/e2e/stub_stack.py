"""`python -m tests.e2e.stub_stack VERB…`: devstack with stub rooms, for tests of the supervisor
alone.

`STUB_ROOMS` lists their behaviours: `good`, `failing` (ends while it starts), `deaf` (SIGTERM does
nothing to it), `parent` (starts a program in a session of its own, which outlives it).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

from devstack import health
from devstack.command_line import main
from devstack.ports import LOOPBACK, PortReservation
from devstack.rooms import Places, Plan, Planner, Probe, Room, SpanDestination


def stub_rooms(first_port: int) -> Planner:
    """Plan as many rooms as STUB_ROOMS has words."""

    def plan(
        places: Places, ports: PortReservation, redis_url: str, spans: SpanDestination | None
    ) -> Plan:
        behaviours = os.environ.get("STUB_ROOMS", "good good").split()
        binds = [f"{LOOPBACK}:{ports.pick(first_port + 20 + n)}" for n, _ in enumerate(behaviours)]
        places.api_key.write_text("stub")
        return Plan(
            http=binds[0],
            grpc=binds[-1],
            gateway=binds[-1],
            environment=os.environ | {"FAIRLEAD_REDIS_URL": redis_url},
            rooms=tuple(
                Room(
                    name=f"stub-{number}",
                    command=(sys.executable, "-m", "tests.e2e.stub_stack", "room", kind, bind),
                    address=bind,
                    is_ready=_probe(bind),
                    environment={"PYTHONPATH": os.getcwd()},
                )
                for number, (kind, bind) in enumerate(zip(behaviours, binds, strict=True))
            ),
            sandboxes=_usable(binds[0]),
        )

    return plan


def _probe(bind: str) -> Probe:
    async def probe() -> bool:
        status, _ = await health.http_answer(f"http://{bind}/readyz")
        return status == 200

    return probe


def _usable(bind: str) -> Callable[[], Awaitable[str]]:
    async def probe() -> str:
        return "walled" if await _probe(bind)() else ""

    return probe


async def _serve(bind: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nready")
        writer.close()

    host, _, port = bind.rpartition(":")
    async with await asyncio.start_server(answer, host, int(port)) as server:
        await server.serve_forever()


def _room(kind: str, bind: str) -> int:
    match kind:
        case "failing":
            sys.stderr.write("the stub has no wish to start\n")
            return 3
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "parent":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        case _:
            pass
    asyncio.run(_serve(bind))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "room":
        raise SystemExit(_room(*sys.argv[2:]))
    raise SystemExit(main(planned=stub_rooms, module="tests.e2e.stub_stack"))
