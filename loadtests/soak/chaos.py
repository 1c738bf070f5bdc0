"""What hurts a worker: clients, workers and the programs that fork sandboxes are killed, and a
worker is stopped for longer than a lease.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
from benchmarks.sandboxes.rooms import Client, Worker
from google.protobuf.duration_pb2 import Duration

from fairlead.execution.v1 import execution_pb2 as ex
from fairlead.sandbox.v1 import sandbox_pb2 as sb
from loadtests.soak.census import below, named

TENANT = "soak"
BOUND_SECONDS = 15.0


class Broken(Exception):
    """A promise that was not kept."""


async def within(what: str, left: Callable[[], Awaitable[Sequence[str]]]) -> None:
    """Wait until nothing is left; raises Broken, which names it."""
    found: Sequence[str] = ()
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            while True:
                if not (found := await left()):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Broken(f"{what}: {'; '.join(found)}") from None


@dataclass(kw_only=True)
class Stage:
    """A worker, its Redis, and clients; `numbers` decide what happens."""

    worker: Worker
    redis: Sequence[int]
    numbers: random.Random
    isolation: str
    secret: str
    workspaces: Sequence[str]
    log: Path
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    started: int = 0

    async def use_once(self) -> None:
        """Create a sandbox as the tenant of all clients, and release it."""
        async with self.worker.dial() as client:
            made = await self._created(client, seconds=30)
            await client.sandboxes.ReleaseSandbox(
                sb.ReleaseSandboxRequest(tenant=TENANT, sandbox_id=made)
            )

    async def _created(self, client: Client, *, seconds: int) -> str:
        made = await client.sandboxes.CreateSandbox(
            sb.CreateSandboxRequest(
                tenant=TENANT,
                idempotency_key=uuid.uuid4().hex,
                isolation=self.isolation,
                lease=Duration(seconds=seconds),
            )
        )
        return made.sandbox.sandbox_id

    def add_client(self, *, hurt: bool) -> None:
        """Start one client with a workspace of its own."""
        words = [
            self.worker.address,
            str(self.numbers.getrandbits(32)),
            self.isolation,
            self.workspaces[self.started % len(self.workspaces)],
            "hurt" if hurt else "well",
        ]
        self.started += 1
        with self.log.open("ab") as log:
            client = subprocess.Popen(
                [sys.executable, "-m", "loadtests.soak.client", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        assert client.stdin is not None
        client.stdin.write(f"{self.secret}\n".encode())
        client.stdin.flush()
        self.clients.append(client)

    async def stop_clients(self) -> None:
        """Let all clients end; raises Broken when one has found something."""
        for client in self.clients:
            assert client.stdin is not None
            with suppress(BrokenPipeError):
                client.stdin.close()
        codes = [await asyncio.to_thread(client.wait) for client in self.clients]
        self.clients.clear()
        self.check(codes)

    def check(self, codes: Sequence[int | None]) -> None:
        """Raise Broken for a client's end that is neither its own wish nor ours."""
        bad = [code for code in codes if code not in (None, 0, -signal.SIGKILL)]
        if bad:
            raise Broken(f"a client ended with {bad}: {self.log.read_text()[-2000:]}")

    async def hurt(self) -> None:
        """Do one thing that must not leave anything behind."""
        actions: Sequence[tuple[Callable[[], Awaitable[None]], int]] = (
            (self._kill_client, 4),
            (self._kill_forker, 3),
            (self._kill_init, 3),
            (self._kill_worker, 2),
            (self._end_worker, 1),
            (self._stop_worker, 1),
        )
        ways, weights = zip(*actions, strict=True)
        way: Callable[[], Awaitable[None]] = self.numbers.choices(ways, weights)[0]
        name = getattr(way, "__name__", "").strip("_")
        self.counts[name] = self.counts.get(name, 0) + 1
        self.check([client.poll() for client in self.clients])
        await way()

    @property
    def expected(self) -> Sequence[int]:
        """The processes that are no worker's."""
        return [*self.redis, *(client.pid for client in self.clients)]

    async def _kill_client(self) -> None:
        client = self.clients.pop(self.numbers.randrange(len(self.clients)))
        client.kill()
        await asyncio.to_thread(client.wait)
        assert client.stdin is not None
        client.stdin.close()
        self.add_client(hurt=True)

    async def _kill_forker(self) -> None:
        """Kill what the worker itself has started: a spawner, a zygote."""
        self._kill_one(psutil.Process(self.worker.pid).children())

    async def _kill_init(self) -> None:
        """Kill something below those: an init, a pooled one, one that is being made."""
        children = psutil.Process(self.worker.pid).children()
        self._kill_one([below_it for child in children for below_it in child.children()])

    def _kill_one(self, candidates: Sequence[psutil.Process]) -> None:
        if candidates:
            with suppress(psutil.Error):
                self.numbers.choice(candidates).kill()

    async def _kill_worker(self) -> None:
        """Kill the worker: nothing keeps running unowned."""
        await self.worker.stop(signal.SIGKILL)

        async def left() -> Sequence[str]:
            return [named(each) for each in below(self.expected)]

        await within("after kill -9 of the worker these still run", left)
        await self.worker.start()

    async def _end_worker(self) -> None:
        await self.worker.stop()
        await self.worker.start()

    async def _stop_worker(self) -> None:
        """Stop the worker beyond a lease: the sandbox ends itself, and the worker finds it gone."""
        async with self.worker.dial() as client:
            try:
                sandbox_id = await self._created(client, seconds=1)
                await client.executions.StartExecution(
                    ex.StartExecutionRequest(
                        tenant=TENANT,
                        sandbox_id=sandbox_id,
                        command=ex.Command(arguments=["sleep", "600"]),
                    )
                )
            except grpc.aio.AioRpcError:
                return  # what an earlier action killed
            os.kill(self.worker.pid, signal.SIGSTOP)
            try:

                async def running() -> Sequence[str]:
                    return list(_in_sandbox(sandbox_id))

                await within("beyond its lease this still runs", running)
            finally:
                os.kill(self.worker.pid, signal.SIGCONT)

            async def known() -> Sequence[str]:
                try:
                    await client.sandboxes.GetSandbox(
                        sb.GetSandboxRequest(tenant=TENANT, sandbox_id=sandbox_id)
                    )
                except grpc.aio.AioRpcError as error:
                    return [] if error.code() is grpc.StatusCode.NOT_FOUND else [str(error)]
                return [sandbox_id]

            await within("the worker still knows", known)


def _in_sandbox(sandbox_id: str) -> list[str]:
    found: list[str] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.environ().get("FAIRLEAD_SANDBOX_ID") == sandbox_id:
                found.append(named(process))
    return found
