"""The REST application over fakes, and a client whose requests carry a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.types import ASGIApp

from signalling.api_keys import ApiKeys
from signalling.event_stream import EventStreams
from signalling.file_ports import Files
from signalling.open_calls import OpenCalls
from signalling.rate_limits import RateLimits
from signalling.rest_api import RestParts, rest_application
from signalling.session_ports import Sessions
from signalling.tracing import HttpTracing
from tests.fakes.answers import FakeAnswers
from tests.fakes.fixed_sessions import FakeSessions
from tests.fakes.front_door import (
    FakeCheck,
    FakeExecutions,
    FakeLaunches,
    FakeMesh,
    FakeUploads,
    NoFiles,
)
from tests.fakes.objects import EchoObjects
from tests.fakes.rate_limits import no_rate_limits
from tests.fakes.sandbox_room import SandboxRoom
from tests.fakes.terminals import EchoTerminals
from tests.fakes.workspace_room import COMMIT, WorkspaceRoom


@dataclass(frozen=True, kw_only=True)
class Door:
    """The application with everything behind it."""

    app: ASGIApp
    parts: RestParts
    key: str
    other_key: str
    launches: FakeLaunches
    executions: FakeExecutions
    terminals: EchoTerminals
    objects: EchoObjects
    uploads: FakeUploads
    room: WorkspaceRoom
    sandboxes: SandboxRoom
    check: FakeCheck
    streams: EventStreams
    spans: InMemorySpanExporter
    answers: FakeAnswers
    keys: ApiKeys
    calls: OpenCalls

    @asynccontextmanager
    async def client(self, key: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
        """Return a client with the default tenant's key, another one, or with "" none."""
        chosen = self.key if key is None else key
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=self.app),
            base_url="http://fairlead",
            headers={"Authorization": f"Bearer {chosen}"} if chosen else {},
        ) as client:
            yield client


def make_door(
    state: Path,
    *,
    keep_alive_seconds: float = 15.0,
    real_uploads: bool = False,
    files: Files | None = None,
    sessions: Sessions | None = None,
    limits: RateLimits | None = None,
) -> Door:
    """Build the application over fakes, with a key each for two tenants; with `real_uploads` they
    answer the misses of workspaces. Without `files` no sandbox has any, without `sessions` there is
    one.
    """
    keys = ApiKeys(state=state)
    calls = OpenCalls()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    launches, executions, uploads = FakeLaunches(), FakeExecutions(), FakeUploads()
    terminals = EchoTerminals(executions=executions)
    objects = EchoObjects()
    check, mesh = FakeCheck(), FakeMesh()
    room = WorkspaceRoom(known={COMMIT})
    sandboxes = SandboxRoom(workspaces=room)
    answers = FakeAnswers()
    streams = EventStreams(keep_alive_seconds=keep_alive_seconds)
    parts = RestParts(
        launches=launches,
        executions=executions,
        terminals=terminals,
        objects=objects,
        files=files or NoFiles(),
        uploads=room.uploads if real_uploads else uploads,
        workspaces=room.keeper,
        sandboxes=sandboxes.keeper,
        sessions=sessions or FakeSessions(),
        hosts=mesh,
        gateways=mesh,
        checks={"redis": check},
        answers=answers,
    )
    return Door(
        app=rest_application(
            parts,
            keys=keys,
            calls=calls,
            limits=limits or no_rate_limits(),
            streams=streams,
            traced=lambda inner: HttpTracing(inner, tracer_provider=provider),
        ),
        parts=parts,
        key=keys.add("default"),
        other_key=keys.add("other"),
        launches=launches,
        executions=executions,
        terminals=terminals,
        objects=objects,
        uploads=uploads,
        room=room,
        sandboxes=sandboxes,
        check=check,
        streams=streams,
        spans=exporter,
        answers=answers,
        keys=keys,
        calls=calls,
    )


LAUNCH = {
    "source": {"project": "project", "commit": "a" * 40, "branch": "main"},
    "command": {"arguments": ["pytest", "-q"]},
}


def assert_problem(response: httpx2.Response, status: int, reason: str) -> None:
    """Fail unless a response is a problem document with this reason."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["reason"] == reason
    assert problem["status"] == status
    assert problem["type"] == f"urn:fairlead:problem:{reason}"
    assert problem["detail"]
    assert {"title", "remedy", "trace_id"} <= problem.keys()
