"""A filtering proxy on real sockets, origins on loopback, and a resolver that a test writes."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from chassis.allow_list import parse_allow_list
from chassis.clock import SystemClock
from chassis.own_addresses import is_own
from sandbox_worker.network.address_rules import AddressRules
from sandbox_worker.network.decision import Reason
from sandbox_worker.network.egress_proxy import EgressProxy
from tests.eventually import eventually

SANDBOX = "sbx_one"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Names:
    """Answers in turn; the last one stays. `held` makes every question wait."""

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        self.held = asyncio.Event()
        self.held.set()

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        await self.held.wait()
        turns = self.answers.get(host)
        if turns is None:
            raise OSError("no such name")
        return turns.pop(0) if len(turns) > 1 else turns[0]


class EgressBench:
    """One sandbox's door; `127.0.0.0/8` is opened, as the origins are there."""

    def __init__(self, *, opened: Sequence[str], most_each: int, most_in_all: int) -> None:
        self.names = Names()
        self.counted: Counter[Reason] = Counter()
        self.mesh_ports: set[int] = {7300}
        self.proxy = EgressProxy(
            rules=AddressRules(
                opened=[ip_network(each) for each in opened],
                mesh_ports=self.mesh_ports,
                is_own=is_own,
            ),
            resolve=self.names,
            clock=SystemClock(),
            count=lambda reason: self.counted.update([reason]),
            most_each=most_each,
            most_in_all=most_in_all,
        )
        self.port = 0
        self.accepted: list[Streams] = []

    def open(self, *allow: str, sandbox_id: str = SANDBOX) -> int:
        """Open a door with this list; returns its port."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port: int = listener.getsockname()[1]
        self.proxy.open(sandbox_id, listener, parse_allow_list(allow))
        self.port = port
        return port

    async def send(self, request: bytes, port: int = 0) -> Streams:
        """Connect to the door and send."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port)
        writer.write(request)
        return reader, writer

    async def ask(self, request: bytes) -> bytes:
        """Send, and return all that comes back until the proxy closes."""
        reader, writer = await self.send(request)
        try:
            return await reader.read()
        finally:
            writer.transport.abort()

    async def tunnel(self, authority: str) -> Streams:
        """Open a tunnel that has to stand."""
        reader, writer = await self.send(connect(authority))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return reader, writer

    async def decided(self, reason: Reason, times: int = 1) -> None:
        """Wait until a reason was decided so often."""

        async def count() -> int:
            return self.counted[reason]

        await eventually(count, lambda found: found >= times)

    @property
    def last(self) -> tuple[str, int, str]:
        """Host, port and reason of the last decision."""
        found = self.proxy.decisions(SANDBOX)[-1]
        return found.host, found.port, found.reason.value

    @asynccontextmanager
    async def origin(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        """Serve on a port: every connection is answered with what it sent, line by line."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.accepted.append((reader, writer))
            while line := await reader.readline():
                writer.write(b"origin: " + line)
                await writer.drain()
            writer.close()

        async with served(serve, tls) as port:
            yield port


@asynccontextmanager
async def served(serve: object, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run a server on a free port of loopback; its connections end with the block."""
    tasks: set[asyncio.Task[object]] = set()

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)  # type: ignore[operator]
        except (OSError, asyncio.CancelledError):
            pass  # the proxy cut it, or the test is over
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(kept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@asynccontextmanager
async def egress_bench(
    *, opened: Sequence[str] = ("127.0.0.0/8",), most_each: int = 64, most_in_all: int = 256
) -> AsyncIterator[EgressBench]:
    """A bench whose door is closed at the end."""
    bench = EgressBench(opened=opened, most_each=most_each, most_in_all=most_in_all)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(bench.proxy.close, SANDBOX)
        yield bench


def connect(authority: str, *fields: str) -> bytes:
    """Return a CONNECT request."""
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


def certificate(directory: Path, *names: str) -> tuple[ssl.SSLContext, Path]:
    """Return a server's context for these names, and the certificate; skips without openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program, to make a certificate")
    file, key = directory / "certificate.pem", directory / "key.pem"
    alternatives = ",".join(f"DNS:{name}" for name in names)
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", key, "-out", file, "-days", "2", "-subj", f"/CN={names[0]}",
            "-addext", f"subjectAltName={alternatives}",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return context, file
