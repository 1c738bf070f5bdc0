"""A Redis, a provisioner and a worker process of one's own, in places of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from chassis.ids import random_id
from devstack.redis_server import answers_ping, find_redis
from fairlead.execution.v1 import execution_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_FOREIGN = ("FAIRLEAD_", "OTEL_")


@dataclass(kw_only=True)
class Worker:
    """A sandbox-worker that can be killed and started again on the same host root."""

    host_root: Path
    runtime: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    host_id: str = field(default_factory=lambda: random_id("hst"))

    @property
    def address(self) -> str:
        """Where it serves gRPC."""
        return f"unix:{self.runtime / 'sandbox.sock'}"

    @property
    def redis_url(self) -> str:
        """Where its Redis listens."""
        return f"unix://{self.runtime / 'redis.sock'}"

    @property
    def log(self) -> Path:
        """What it wrote to standard error, of all its lives."""
        return self.runtime / "worker.log"

    @property
    def pid(self) -> int:
        """Its process id; it runs."""
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        kept = {name: v for name, v in os.environ.items() if not name.startswith(_FOREIGN)}
        environment = kept | {
            "FAIRLEAD_REDIS_URL": self.redis_url,
            "FAIRLEAD_HOST_ROOT": str(self.host_root),
            "FAIRLEAD_HOST_ID": self.host_id,
            "FAIRLEAD_SANDBOX_BIND": self.address,
            "FAIRLEAD_LOG_LEVEL": "warning",
            "TMPDIR": str(self.runtime / "tmp"),
            **self.settings,
        }
        self.process = self._spawned(environment)
        async with asyncio.timeout(START_SECONDS):
            while True:
                if self.process.poll() is not None:
                    raise RuntimeError(self.log.read_text()[-2000:])
                async with self.dial() as client:
                    try:
                        await client.sandboxes.ListSandboxes(sandbox_pb2.ListSandboxesRequest())
                    except grpc.aio.AioRpcError:
                        await asyncio.sleep(0.05)
                    else:
                        return

    def _spawned(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sandbox_worker"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal that ends it, and wait until it has; raises TimeoutExpired."""
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            await asyncio.to_thread(process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
            raise

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Client]:
        """Open a channel to it."""
        async with grpc.aio.insecure_channel(
            self.address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            yield Client(
                sandboxes=sandbox_pb2_grpc.SandboxServiceStub(channel),
                executions=execution_pb2_grpc.ExecutionServiceStub(channel),
            )


@dataclass(frozen=True)
class Client:
    """The two services of a worker, as signalling calls them."""

    sandboxes: sandbox_pb2_grpc.SandboxServiceAsyncStub
    executions: execution_pb2_grpc.ExecutionServiceAsyncStub


@asynccontextmanager
async def opened_worker(
    directory: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Worker]:
    """Start a Redis and a worker below `directory`, whose path is short, and stop both."""
    runtime = directory / "run"
    for made in (runtime, runtime / "tmp", directory / "host"):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    program = find_redis()
    redis = await asyncio.create_subprocess_exec(
        *program.arguments(unix_socket=runtime / "redis.sock", directory=runtime),
        stdout=asyncio.subprocess.DEVNULL,
        stdin=asyncio.subprocess.DEVNULL,
    )
    worker = Worker(host_root=directory / "host", runtime=runtime, settings=settings or {})
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                if await answers_ping(runtime / "redis.sock"):
                    break
                await asyncio.sleep(0.02)
        await worker.start()
        yield worker
    finally:
        try:
            if worker.process is not None and worker.process.poll() is None:
                await worker.stop()
        finally:
            redis.terminate()
            await redis.wait()
