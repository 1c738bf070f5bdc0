"""A sandbox-worker of its own for the wire tests: in this process, or as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
from opentelemetry.sdk.trace import TracerProvider

from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.rpc_channel import closing, open_channel
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2, execution_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from sandbox_worker.settings import Settings
from sandbox_worker.wiring import build
from tests.fakes.cells import PYTHON as PYTHON  # one that every user may run

TENANT = "default"
SERVICES = Path(__file__).resolve().parents[3] / "services"
GENERATED = Path(__file__).resolve().parents[3] / "proto" / "gen"


@dataclass(frozen=True, slots=True)
class Output:
    """What a watcher saw: the bytes of each stream, the highest sequence, and the exit."""

    stdout: bytes
    stderr: bytes
    sequences: Sequence[int]
    exit: execution_pb2.Exit


class SandboxRoom:
    """A client of one worker, with the calls that tests make; errors come as ours."""

    def __init__(self, *, channel: grpc.aio.Channel, host_root: Path) -> None:
        self.sandboxes = sandbox_pb2_grpc.SandboxServiceStub(channel)
        self.executions = execution_pb2_grpc.ExecutionServiceStub(channel)
        self.host_root = host_root

    async def create(
        self,
        key: str = "",
        *,
        isolation: str = "process",
        limits: sandbox_pb2.Limits | None = None,
        tenant: str = TENANT,
    ) -> sandbox_pb2.Sandbox:
        with neighbour_errors("worker"):
            answer = await self.sandboxes.CreateSandbox(
                sandbox_pb2.CreateSandboxRequest(
                    tenant=tenant,
                    idempotency_key=key or random_id("lch"),
                    isolation=isolation,
                    limits=limits,
                )
            )
        return answer.sandbox

    async def bound(self) -> sandbox_pb2.Sandbox:
        """Create a sandbox with a new, empty workspace."""
        sandbox = await self.create()
        workspace_id = random_id("wsp")
        self.tree(workspace_id).mkdir(parents=True)
        return await self.bind(sandbox.sandbox_id, workspace_id)

    async def bind(self, sandbox_id: str, workspace_id: str) -> sandbox_pb2.Sandbox:
        with neighbour_errors("worker"):
            answer = await self.sandboxes.BindWorkspace(
                sandbox_pb2.BindWorkspaceRequest(
                    tenant=TENANT, sandbox_id=sandbox_id, workspace_id=workspace_id
                )
            )
        return answer.sandbox

    def tree(self, workspace_id: str) -> Path:
        return self.host_root / "trees" / workspace_id

    async def start(
        self,
        sandbox_id: str,
        *arguments: str,
        key: str = "",
        environment: dict[str, str] | None = None,
        directory: str = "",
        stdin: bool = False,
        seconds: float = 0,
        grace: float | None = None,
        on_full: execution_pb2.OnFull.ValueType = execution_pb2.ON_FULL_UNSPECIFIED,
        terminal: tuple[int, int] | None = None,
    ) -> execution_pb2.Execution:
        command = execution_pb2.Command(
            arguments=arguments,
            environment=environment,
            directory=directory,
            stdin=stdin,
            on_full=on_full,
        )
        if terminal is not None:
            command.terminal.CopyFrom(
                execution_pb2.TerminalSize(rows=terminal[0], columns=terminal[1])
            )
        if seconds:
            command.timeout.FromMilliseconds(int(seconds * 1000))
        if grace is not None:
            command.grace.FromMilliseconds(int(grace * 1000))
        with neighbour_errors("worker"):
            answer = await self.executions.StartExecution(
                execution_pb2.StartExecutionRequest(
                    tenant=TENANT, idempotency_key=key, sandbox_id=sandbox_id, command=command
                )
            )
        return answer.execution

    async def get(self, execution_id: str) -> execution_pb2.Execution:
        with neighbour_errors("worker"):
            answer = await self.executions.GetExecution(
                execution_pb2.GetExecutionRequest(tenant=TENANT, execution_id=execution_id)
            )
        return answer.execution

    async def run(self, sandbox_id: str, *arguments: str) -> Output:
        """Start a command and watch it to its end."""
        execution = await self.start(sandbox_id, *arguments)
        return await self.output(execution.execution_id)

    async def frames(
        self, execution_id: str, after: int = 0
    ) -> AsyncGenerator[execution_pb2.WatchOutputResponse, None]:
        call = self.executions.WatchOutput(
            execution_pb2.WatchOutputRequest(
                tenant=TENANT, execution_id=execution_id, after_sequence=after
            )
        )
        async with closing(call):
            with neighbour_errors("worker"):
                async for frame in call:
                    yield frame

    async def output(self, execution_id: str, after: int = 0) -> Output:
        """Watch an execution to its end."""
        streams = {1: bytearray(), 2: bytearray()}
        sequences = []
        exit_ = None
        async for frame in self.frames(execution_id, after):
            if frame.HasField("output"):
                streams[frame.output.stream] += frame.output.content
                sequences.append(frame.output.sequence)
            elif frame.HasField("exit"):
                assert exit_ is None
                exit_ = frame.exit
        assert exit_ is not None
        return Output(bytes(streams[1]), bytes(streams[2]), sequences, exit_)

    async def write(
        self, execution_id: str, offset: int, content: bytes, *, close: bool = False
    ) -> int:
        with neighbour_errors("worker"):
            answer = await self.executions.WriteStdin(
                execution_pb2.WriteStdinRequest(
                    tenant=TENANT,
                    execution_id=execution_id,
                    offset=offset,
                    content=content,
                    close=close,
                )
            )
        return answer.offset

    async def signal(self, execution_id: str, number: int) -> None:
        with neighbour_errors("worker"):
            await self.executions.SignalExecution(
                execution_pb2.SignalExecutionRequest(
                    tenant=TENANT, execution_id=execution_id, signal=number
                )
            )

    async def release(self, sandbox_id: str = "", *, key: str = "") -> bool:
        request = sandbox_pb2.ReleaseSandboxRequest(tenant=TENANT)
        if key:
            request.idempotency_key = key
        else:
            request.sandbox_id = sandbox_id
        with neighbour_errors("worker"):
            answer = await self.sandboxes.ReleaseSandbox(request)
        return answer.released

    async def open_port(
        self,
        sandbox_id: str,
        port: int,
        address: str = "unix:/nowhere",
        ticket: bytes = bytes(32),
        execution_id: str = "",
    ) -> None:
        with neighbour_errors("worker"):
            await self.sandboxes.OpenPort(
                sandbox_pb2.OpenPortRequest(
                    tenant=TENANT,
                    sandbox_id=sandbox_id,
                    port=port,
                    address=address,
                    ticket=ticket,
                    execution_id=execution_id,
                )
            )


def room_settings(host_root: Path, sockets: Path, **fields: object) -> Settings:
    """Settings of a worker on unix sockets, without a Redis that answers; it also offers processes,
    since most tests need no walls.
    """
    return Settings.model_validate(
        {
            "bind": f"unix:{sockets}/worker",
            "host_root": host_root,
            "redis_url": f"unix://{sockets}/no-redis",
            "expose_host_to_one_tenant": True,
            **fields,
        }
    )


@asynccontextmanager
async def room_client(address: str, host_root: Path) -> AsyncIterator[SandboxRoom]:
    async with open_channel(address, tracer_provider=TracerProvider()) as channel:
        yield SandboxRoom(channel=channel, host_root=host_root)


@asynccontextmanager
async def room_in_process(settings: Settings) -> AsyncIterator[SandboxRoom]:
    async with build(settings) as worker, room_client(worker.address, settings.host_root) as room:
        yield room


@contextmanager
def room_process(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m sandbox_worker`; killed at the end, with what is below it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox_worker"],
        env={
            "PATH": os.defpath,
            "PYTHONPATH": f"{SERVICES}:{GENERATED}",
            "FAIRLEAD_SANDBOX_BIND": settings.bind,
            "FAIRLEAD_HOST_ROOT": str(settings.host_root),
            "FAIRLEAD_REDIS_URL": settings.redis_url,
            "FAIRLEAD_DRAIN_SECONDS": "0.2",
            "FAIRLEAD_SANDBOX_EXPOSE_HOST_TO_ONE_TENANT": str(settings.expose_host_to_one_tenant),
            "WORKER_ONLY": "must not be seen",
        },
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()


@asynccontextmanager
async def own_worker(
    settings: Settings,
) -> AsyncIterator[tuple[subprocess.Popen[bytes], SandboxRoom]]:
    """A worker process, and a client once it serves, however long a busy machine takes."""
    with room_process(settings) as process:
        async with room_client(settings.bind, settings.host_root) as room:
            while not await _serves(room):
                assert process.poll() is None
                await asyncio.sleep(0.02)
            yield process, room


async def _serves(room: SandboxRoom) -> bool:
    try:
        await room.release(key="nothing")
    except FairleadError:
        return False
    return True


def processes_with(text: str) -> list[int]:
    """The processes that run now and have `text` in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(
                text in argument for argument in process.cmdline()
            ):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
