"""The launch half of signalling over fakes: start it, stop it, kill it and start it again over the
same world.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TypeVar

from signalling.execution import Command, OutputRecord
from signalling.executor import Executor
from signalling.launch import Failure, Launch, LaunchEvent, LaunchFailed, StepChanged
from signalling.launch_mirror import LaunchMirror
from signalling.launch_record import LaunchTimings
from signalling.launch_request import LaunchRequest
from signalling.launch_runs import LaunchRuns
from signalling.launch_watcher import LaunchWatcher
from signalling.launcher import Launcher
from signalling.launches import Launches
from signalling.placement import Placer
from signalling.ports import Mesh
from signalling.sandbox_keeper import SandboxKeeper
from signalling.snapshot import Source
from signalling.span_store_client import NoSpanStore
from signalling.uploads import Uploads
from signalling.workspace_keeper import WorkspaceKeeper
from tests.fakes.faults import Faults
from tests.fakes.launch_store import FakeLaunchStore
from tests.fakes.mesh import HOST, FakeChannels, FakeDirectory, FakeHosts
from tests.fakes.virtual_time import VirtualClock
from tests.fakes.worker import FakeExecutions, FakeWorker
from tests.fakes.workspaces import FakeWorkspaceDirectory, FakeWorkspaces

COMMIT = "c" * 40
OFFER = (
    "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n"
    "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\nc=IN IP4 0.0.0.0\r\n"
    "a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=fingerprint:sha-256 AA\r\n"
)
TENANT = "default"
_Told = TypeVar("_Told")


def request(**changes: object) -> LaunchRequest:
    """Return a request for a commit that the fake host has, running `true`."""
    fields: dict[str, object] = {
        "source": Source(project="p", commit=COMMIT, branch="main"),
        "command": Command(arguments=("true",)),
    }
    return LaunchRequest(**(fields | changes))  # type: ignore[arg-type]


class _Span:
    trace_id = "f" * 32
    traceparent = f"00-{trace_id}-{'e' * 16}-01"

    def tell(self, launch: Launch) -> None:
        """Take no notice."""


class _Spans:
    @contextmanager
    def launch(self, tenant: str, launch_id: str) -> Iterator[_Span]:
        yield _Span()


class Room:
    """One life of a replica."""

    def __init__(self, *, world: World, replica: str) -> None:
        clock, timings, store = world.clock, world.timings, world.store
        self.mirror = LaunchMirror(
            store=store,
            owner=replica,
            gather_seconds=0.0,
            check_period=2.0,
            retry_pause=timings.retry_pause,
        )
        executions = FakeExecutions(worker=world.worker)
        self.launches = Launches(
            mirror=self.mirror,
            store=store,
            hosts=world.hosts,
            sandboxes=world.worker,
            clock=clock,
        )
        self.uploads = Uploads(
            workspaces=world.workspaces,
            clock=clock,
            make_token=lambda: f"token-{next(world.tokens)}",
            timeout_seconds=timings.upload_timeout,
        )
        self.runs = LaunchRuns(
            mirror=self.mirror,
            store=store,
            log=store,
            mesh=Mesh(
                hosts=world.hosts,
                workspaces=world.workspaces,
                sandboxes=world.worker,
                executions=executions,
                channels=world.channels,
            ),
            uploads=self.uploads,
            timings=timings,
            clock=clock,
            replica=replica,
        )
        placement = Placer(hosts=world.hosts, directory=world.directory)
        keeper = WorkspaceKeeper(
            workspaces=world.workspaces,
            directory=world.places,
            placement=placement,
            hosts=world.hosts,
            uploads=self.uploads,
            launches=self.launches,
            own=self.runs.own,
            id_key=b"key",
        )
        self.sandboxes = SandboxKeeper(
            sandboxes=world.worker,
            workspaces=keeper,
            directory=world.places,
            placement=placement,
            hosts=world.hosts,
            channels=world.channels,
            own=self.runs.own,
            id_key=b"key",
        )
        self.launcher = Launcher(
            launches=self.launches,
            runs=self.runs,
            mirror=self.mirror,
            store=store,
            watcher=LaunchWatcher(
                launches=self.launches,
                log=store,
                executions=executions,
                timings=timings,
                clock=clock,
            ),
            placement=placement,
            workspaces=keeper,
            hosts=world.hosts,
            spans=_Spans(),
            span_store=NoSpanStore(),
            timings=timings,
            clock=clock,
            replica=replica,
            id_key=b"key",
        )
        self.executor = Executor(
            launches=self.launches,
            locations=store,
            hosts=world.hosts,
            executions=executions,
            sandboxes=self.sandboxes,
            timings=timings,
        )

    async def watch(self, launch_id: str, cursor: str | None = None) -> list[LaunchEvent]:
        """Return every event of a launch until its terminal one."""
        async with aclosing(self.launcher.watch(TENANT, launch_id, cursor)) as events:
            return [event async for event in events]

    async def until(self, launch_id: str, kind: str) -> LaunchEvent:
        """Return the first event of a kind."""
        async with aclosing(self.launcher.watch(TENANT, launch_id, None)) as events:
            async for event in events:
                if event.type == kind:
                    return event
        raise AssertionError(f"no {kind} event")


class World:
    """Everything that outlives a replica."""

    def __init__(self, *, timings: LaunchTimings | None = None) -> None:
        self.clock = VirtualClock()
        self.timings = timings or LaunchTimings()
        self.faults = Faults()
        self.store = FakeLaunchStore()
        self.hosts = FakeHosts(HOST)
        self.directory = FakeDirectory()
        self.places = FakeWorkspaceDirectory(faults=self.faults)
        self.workspaces = FakeWorkspaces(faults=self.faults, known={COMMIT})
        self.worker = FakeWorker(faults=self.faults, clock=self.clock)
        self.channels = FakeChannels(faults=self.faults)
        self.tokens = itertools.count(1)

    @asynccontextmanager
    async def room(self, replica: str = "one", *, killed: bool = False) -> AsyncIterator[Room]:
        """Run a replica; a killed one writes nothing down when it ends."""
        room = Room(world=self, replica=replica)
        writing = asyncio.ensure_future(room.mirror.run())
        try:
            async with room.runs:
                room.runs.own(room.runs.recover())
                yield room
                if killed:
                    writing.cancel()
            if not killed:
                await room.mirror.settle()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    @property
    def leftovers(self) -> list[object]:
        """Return everything that is still held or open on the host."""
        running = [
            program.execution.execution_id
            for program in self.worker.programs.values()
            if program.execution.exit is None
        ]
        return [*self.workspaces.held, *self.worker.held, *self.channels.open, *running]


def told(event: LaunchEvent, kind: type[_Told]) -> _Told:
    """Return what an event tells, which has to be of a kind."""
    assert isinstance(event.event, kind)
    return event.event


def failure(events: Sequence[LaunchEvent]) -> Failure:
    """Return why a launch failed, whose events these are."""
    return told(events[-1], LaunchFailed).failure


def kinds(events: Sequence[LaunchEvent]) -> list[str]:
    """Return the types of events."""
    return [event.type for event in events]


def steps(events: Sequence[LaunchEvent]) -> list[StepChanged]:
    """Return what became of steps."""
    return [event.event for event in events if isinstance(event.event, StepChanged)]


def outputs(events: Sequence[LaunchEvent]) -> list[OutputRecord]:
    """Return the output in events."""
    return [event.event for event in events if isinstance(event.event, OutputRecord)]


def contents(events: Sequence[LaunchEvent]) -> list[bytes]:
    """Return the bytes of the output in events."""
    return [record.content for record in outputs(events)]


def sequences(events: Sequence[LaunchEvent]) -> list[int]:
    """Return the numbers of the output in events."""
    return [record.sequence for record in outputs(events)]


def ends(events: Sequence[LaunchEvent]) -> int:
    """Count terminal events."""
    return sum(event.terminal for event in events)


def echo(*contents: bytes, code: int = 0) -> Callable[[FakeWorker, str], None]:
    """Return a script: write `contents` and exit."""

    def script(worker: FakeWorker, execution_id: str) -> None:
        worker.write(execution_id, *contents)
        worker.finish(execution_id, code=code)

    return script
