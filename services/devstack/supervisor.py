"""Runs one local stack: Redis, the span store and the rooms; starts them at once, keeps them up,
leaves nothing behind.

One thread, so that forking is safe. Every resource is recorded before it exists and undone in
reverse.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from devstack import redis_server
from devstack.errors import StackError
from devstack.ports import LOOPBACK, PortReservation
from devstack.processes import (
    Child,
    adopt_orphans,
    kill_strangers,
    last_lines,
    reap_strangers,
    start_child,
    start_guest,
)
from devstack.rooms import (
    Places,
    Plan,
    Planner,
    Probe,
    Room,
    SpanDestination,
    dialled,
    user_collector,
)
from devstack.state import StateDirectory

if TYPE_CHECKING:
    from devstack.span_store import SpanStoreServer

START_SECONDS = 60.0
GRACE_SECONDS = 5.0
_PROBE_PAUSE = 0.03
_FIRST_PAUSE, _LONGEST_PAUSE, _STEADY_SECONDS = 0.2, 5.0, 10.0

Report = Callable[[str, str], None]


@dataclass(slots=True)
class Part:
    """One supervised program: what it is, its present child and how often it has come back."""

    name: str
    address: str
    start: Callable[[], Child]
    is_ready: Probe
    child: Child | None = None
    restarts: int = 0
    started: float = field(default_factory=time.monotonic)


class Supervisor:
    """A stack in one state directory; `state` has been acquired by the caller, who releases it
    afterwards.

    `report(name, text)` is told of each part that has become ready, has ended and has come back.
    """

    def __init__(self, *, state: StateDirectory, planner: Planner, report: Report) -> None:
        self._state = state
        self._planner = planner
        self._report = report
        self._ports = PortReservation()
        self._parts: list[Part] = []
        self._guests: list[Child] = []
        self._hurry = asyncio.Event()
        self._span_listener: socket.socket | None = None
        self._span_server: SpanStoreServer | None = None
        self._span_task: asyncio.Task[None] | None = None
        self._keepers: asyncio.Task[None] | None = None
        self._description: dict[str, object] = {}

    async def start(self, announce: Callable[[Plan, str], None]) -> Plan:
        """Start everything and return when all of it is ready; StackError when a part cannot be.

        `announce` gets the plan and what Redis is used, as soon as the addresses are known.
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._on_child)
        adopt_orphans()
        started = time.monotonic()
        redis_url = os.environ.get("FAIRLEAD_REDIS_URL") or ""
        redis_part = None if redis_url else self._redis()
        if redis_part:
            self._spawn(redis_part)
            redis_url = f"unix://{self._redis_socket()}"
        else:
            await redis_server.require_external(redis_url)
        spans = self._open_span_store()
        plan = self._planner(self._places(), self._ports, redis_url, spans)
        announce(plan, redis_part.address if redis_part else "FAIRLEAD_REDIS_URL")
        if redis_part:
            await self._wait_ready(redis_part, started)
        else:
            self._report("redis", "ready")
        parts = [self._room(room, plan) for room in plan.rooms]
        for part in parts:
            self._spawn(part)
        self._serve_spans(spans)
        try:
            async with asyncio.TaskGroup() as waits:
                for part in parts:
                    waits.create_task(self._wait_ready(part, started))
        except BaseExceptionGroup as faults:
            raise _first(faults) from None
        sandboxes = await self._wait_usable(plan)
        self._describe(plan, redis_url, spans, sandboxes)
        self._keepers = asyncio.create_task(self._keep_all())
        return plan

    async def wait(self) -> None:
        """Wait for the end of supervision, which comes only by cancellation or a fault of ours."""
        if self._keepers:
            await self._keepers

    async def run_guest(self, command: tuple[str, ...], environment: dict[str, str]) -> int:
        """Run a client of the stack on this terminal and return its exit status."""
        guest = start_guest(name=command[0], command=command, environment=environment)
        self._guests.append(guest)
        self._on_child()
        await guest.ended.wait()
        return guest.status or 0

    def hurry(self) -> None:
        """Stop being patient: what has not ended yet is killed."""
        self._hurry.set()

    async def stop(self) -> None:
        """End every part and give everything back; safe at any moment of the start, once."""
        self._state.description.unlink(missing_ok=True)
        if self._keepers:
            self._keepers.cancel()
            with suppress(asyncio.CancelledError):
                await self._keepers
        rooms = [part.child for part in self._parts if part.child and part.name != "redis"]
        redis = [part.child for part in self._parts if part.child and part.name == "redis"]
        # Redis goes last: a room that drains still wants to take its registration back.
        for group in (self._guests, rooms, redis):
            await asyncio.gather(
                *(child.end(grace_seconds=GRACE_SECONDS, hurry=self._hurry) for child in group)
            )
        while kill_strangers(frozenset()):
            continue
        if self._span_server:
            self._span_server.stop()
        if self._span_task:
            await asyncio.wait({self._span_task}, timeout=2)
            self._span_task.cancel()
        if self._span_listener:
            self._span_listener.close()
        self._ports.close()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def _runtime(self) -> Path:
        if self._state.runtime is None:
            raise StackError("The state directory is not held.")
        return self._state.runtime

    def _places(self) -> Places:
        secret = os.environ.get("FAIRLEAD_SECRET_FILE")
        api_key = os.environ.get("FAIRLEAD_SIGNALLING_BOOTSTRAP_KEY_FILE")
        return Places(
            runtime=self._runtime(),
            state=self._state.path,
            host=self._state.host,
            secret=Path(secret) if secret else self._state.secret,
            api_key=Path(api_key) if api_key else self._state.api_key,
        )

    def _redis_socket(self) -> Path:
        return self._runtime() / "redis.sock"

    def _redis(self) -> Part:
        program = redis_server.find_redis()
        unix_socket = self._redis_socket()
        arguments = program.arguments(unix_socket=unix_socket, directory=self._runtime())

        def start() -> Child:
            return self._start("redis", tuple(arguments), dict(os.environ))

        async def probe() -> bool:
            return await redis_server.answers_ping(unix_socket)

        version = ".".join(map(str, program.version))
        return Part("redis", f"{unix_socket} ({version}, {program.origin})", start, probe)

    def _room(self, room: Room, plan: Plan) -> Part:
        def start() -> Child:
            environment = {**plan.environment, **room.environment}
            return self._start(room.name, room.command, environment)

        return Part(room.name, room.address, start, room.is_ready)

    def _start(self, name: str, command: tuple[str, ...], environment: dict[str, str]) -> Child:
        log = self._state.logs / f"{name}.log"
        return start_child(
            name=name,
            command=command,
            environment=environment,
            log=log,
            directory=self._state.path,
        )

    def _spawn(self, part: Part) -> None:
        part.started = time.monotonic()
        part.child = part.start()
        if part not in self._parts:
            self._parts.append(part)

    def _on_child(self) -> None:
        children = [*self._guests, *(part.child for part in self._parts if part.child)]
        for child in children:
            child.poll()
        reap_strangers(frozenset(child.pid for child in children))

    async def _wait_ready(self, part: Part, since: float) -> None:
        child = part.child
        deadline = time.monotonic() + START_SECONDS
        while child and not child.ended.is_set():
            if await part.is_ready():
                self._report(part.name, f"ready in {time.monotonic() - since:.1f} s")
                return
            if time.monotonic() > deadline:
                raise StackError(
                    f"{part.name} is not ready after {START_SECONDS:.0f} seconds.",
                    excerpt=child.last_lines(),
                    remedies=(f"Its log is {child.log}.",),
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(child.ended.wait(), _PROBE_PAUSE)
        self._require_running(part)

    def _require_running(self, part: Part) -> None:
        child = part.child
        if child and child.ended.is_set():
            raise StackError(
                f"{part.name} {child.exit_text()} while it started.",
                excerpt=child.last_lines(),
                remedies=(f"Its whole log is {child.log}.",),
            )

    async def _wait_usable(self, plan: Plan) -> str:
        """Wait until a host has registered; tells how sandboxes are isolated there."""
        deadline = time.monotonic() + START_SECONDS / 2
        while not (line := await plan.sandboxes()):
            for part in self._parts:
                self._require_running(part)
            if time.monotonic() > deadline:
                raise StackError(
                    "All rooms serve, but no host has registered with signalling.",
                    excerpt=last_lines(self._state.logs / "signalling.log", 15),
                    remedies=(f"The rooms' logs are in {self._state.logs}.",),
                )
            await asyncio.sleep(_PROBE_PAUSE)
        return line

    async def _keep_all(self) -> None:
        async with asyncio.TaskGroup() as keepers:
            for part in self._parts:
                keepers.create_task(self._keep(part))

    async def _keep(self, part: Part) -> None:
        """Start the part again whenever it ends, after a pause that grows if it does not hold."""
        pause = _FIRST_PAUSE
        while part.child:
            await part.child.ended.wait()
            if time.monotonic() - part.started > _STEADY_SECONDS:
                pause = _FIRST_PAUSE
            self._report(part.name, f"{part.child.exit_text()}; starting it again in {pause:.1f} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            self._spawn(part)
            part.restarts += 1
            self._publish()
            with suppress(StackError):
                await self._wait_ready(part, part.started)

    def _open_span_store(self) -> SpanDestination | None:
        if user_collector(os.environ) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        listener = socket.socket()
        listener.setblocking(False)
        listener.bind((LOOPBACK, 0))
        listener.listen(128)
        self._span_listener = listener
        url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        return SpanDestination(url=url, write_token=secrets.token_urlsafe(24))

    def _serve_spans(self, spans: SpanDestination | None) -> None:
        """Begin to serve; the listener has queued what came before, and the imports overlap with
        the rooms' own.
        """
        if spans is None or self._span_listener is None:
            return
        from devstack.span_store import Limits, SpanStore, SpanStoreApi, SpanStoreServer

        api = SpanStoreApi(
            store=SpanStore(limits=Limits()),
            write_token=spans.write_token,
            read_token=self._places().secret.read_text().strip(),
        )
        self._span_server = SpanStoreServer(api=api)
        self._span_task = asyncio.create_task(self._span_server.serve(self._span_listener))

    def _describe(
        self, plan: Plan, redis_url: str, spans: SpanDestination | None, sandboxes: str
    ) -> None:
        self._description = {
            "pid": os.getpid(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "state": str(self._state.path),
            "runtime": str(self._runtime()),
            "url": plan.url,
            "grpc": dialled(plan.grpc),
            "gateway": f"http://{dialled(plan.gateway)}",
            "api_key_file": str(self._places().api_key),
            "secret_file": str(self._places().secret),
            "redis_url": redis_url,
            "span_store": spans.url if spans else None,
            "collector": user_collector(os.environ),
            "sandboxes": sandboxes,
        }
        self._publish()

    def _publish(self) -> None:
        parts = [
            {
                "name": part.name,
                "pid": part.child.pid if part.child else None,
                "address": part.address,
                "restarts": part.restarts,
            }
            for part in self._parts
        ]
        self._state.describe({**self._description, "parts": parts})


def _first(error: BaseException) -> BaseException:
    """Return the first leaf of nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
