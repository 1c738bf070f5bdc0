"""What a client sees over gRPC: commands, first bytes, whole lives, a burst, and much output."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from benchmarks.recording import QUICK
from benchmarks.sandboxes.rooms import Client
from fairlead.execution.v1 import execution_pb2 as ex
from fairlead.sandbox.v1 import sandbox_pb2 as sb

TENANT = "bench"
COMMANDS = 20 if QUICK else 400
LIVES = 24 if QUICK else 480
AT_ONCE = 8
BURST = 100
BURSTS = 1 if QUICK else 5
OUTPUT_BYTES = (8 if QUICK else 256) * 1024 * 1024
OUTPUTS = 1 if QUICK else 5
_BLOCK = 1024 * 1024
_WRITE = """
import os, sys
block = bytes(range(256)) * (int(sys.argv[1]) // 256)
for _ in range(int(sys.argv[2])):
    view = memoryview(block)
    while view:
        view = view[os.write(1, view):]
"""


@dataclass
class Wire:
    """A client with one channel, as signalling has one per worker."""

    client: Client
    isolation: str
    workspaces: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def create(self, workspace_id: str = "") -> str:
        """Create a sandbox, bound when a workspace is named; returns its id."""
        answer = await self.client.sandboxes.CreateSandbox(
            sb.CreateSandboxRequest(
                tenant=TENANT,
                idempotency_key=uuid.uuid4().hex,
                isolation=self.isolation,
                workspace_id=workspace_id,
                limits=sb.Limits(memory_bytes=256 * 1024 * 1024, processes=64),
            )
        )
        return answer.sandbox.sandbox_id

    async def release(self, sandbox_id: str) -> None:
        """Give a sandbox back."""
        await self.client.sandboxes.ReleaseSandbox(
            sb.ReleaseSandboxRequest(tenant=TENANT, sandbox_id=sandbox_id)
        )

    async def run(self, sandbox_id: str, command: ex.Command) -> tuple[ex.Exit, float, float]:
        """Run a command; returns its exit and the seconds to the first byte and to the exit."""
        begun = time.perf_counter()
        start = ex.StartExecutionRequest(tenant=TENANT, sandbox_id=sandbox_id, command=command)
        call = self.client.executions.RunExecution(ex.RunExecutionRequest(start=start))
        first = 0.0
        async for answer in call:
            kind = answer.frame.WhichOneof("frame")
            if kind == "output" and not first:
                first = time.perf_counter() - begun
            if kind == "exit":
                return answer.frame.exit, first, time.perf_counter() - begun
        raise AssertionError("no exit was told")

    async def commands(self) -> tuple[list[float], list[float]]:
        """Time `true` to its exit event, and `echo` to its first byte, in one bound sandbox."""
        sandbox = await self.create(self.workspaces[0])
        ends: list[float] = []
        firsts: list[float] = []
        for _ in range(COMMANDS):
            exit_, _, seconds = await self.run(sandbox, ex.Command(arguments=["true"]))
            assert exit_.code == 0, exit_
            ends.append(seconds)
            exit_, first, _ = await self.run(sandbox, ex.Command(arguments=["echo", "one"]))
            assert exit_.code == 0, exit_
            firsts.append(first)
        await self.release(sandbox)
        return ends, firsts

    async def lives(self) -> float:
        """Return how many create, run `true` and release a second, eight at a time."""
        left = iter(range(LIVES))

        async def live(workspace: str) -> None:
            for _ in left:
                sandbox = await self.create(workspace)
                exit_, _, _ = await self.run(sandbox, ex.Command(arguments=["true"]))
                assert exit_.code == 0, exit_
                await self.release(sandbox)

        begun = time.perf_counter()
        await asyncio.gather(*(live(workspace) for workspace in self.workspaces[:AT_ONCE]))
        return LIVES / (time.perf_counter() - begun)

    async def burst(self) -> tuple[float, int]:
        """Create a hundred at once; returns the seconds of the last, and the failures."""
        begun = time.perf_counter()
        made = await asyncio.gather(
            *(self.create(workspace) for workspace in self.workspaces[:BURST]),
            return_exceptions=True,
        )
        last = time.perf_counter() - begun
        good = [each for each in made if isinstance(each, str)]
        for each in made:
            if isinstance(each, BaseException):
                told = each.details() if isinstance(each, grpc.aio.AioRpcError) else repr(each)
                self.notes.append(f"a create of a burst failed: {told}")
        await asyncio.gather(*(self.release(each) for each in good))
        return last, BURST - len(good)

    async def output(self) -> float:
        """Return MB a second from a writing child through its journal, checked by hash."""
        sandbox = await self.create(self.workspaces[0])
        blocks = OUTPUT_BYTES // _BLOCK
        wanted = hashlib.sha256()
        for _ in range(blocks):
            wanted.update(bytes(range(256)) * (_BLOCK // 256))
        command = ex.Command(
            arguments=["python3", "-ISc", _WRITE, str(_BLOCK), str(blocks)],
            on_full=ex.ON_FULL_BLOCK,
        )
        begun = time.perf_counter()
        started = await self.client.executions.StartExecution(
            ex.StartExecutionRequest(tenant=TENANT, sandbox_id=sandbox, command=command)
        )
        call = self.client.executions.WatchOutput(
            ex.WatchOutputRequest(tenant=TENANT, execution_id=started.execution.execution_id)
        )
        seen = hashlib.sha256()
        size = 0
        async for answer in call:
            kind = answer.WhichOneof("frame")
            assert kind != "gap", answer
            if kind == "output":
                assert answer.output.stream == ex.OUTPUT_STREAM_STDOUT, answer.output.content
                seen.update(answer.output.content)
                size += len(answer.output.content)
            if kind == "exit":
                assert answer.exit.code == 0, answer
        seconds = time.perf_counter() - begun
        assert size == OUTPUT_BYTES, size
        assert seen.digest() == wanted.digest()
        await self.release(sandbox)
        return OUTPUT_BYTES / 1e6 / seconds


async def many(wire: Wire, count: int) -> Sequence[str]:
    """Create idle sandboxes, ten at a time."""
    made: list[str] = []
    while len(made) < count:
        made += await asyncio.gather(*(wire.create() for _ in range(min(10, count - len(made)))))
    return made
