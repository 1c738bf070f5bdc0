"""A real gateway between scripted signalling, a fake worker and servers of this process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from fairlead_sdk.forwarding import LocalPort
from fairlead_tunnel.peer_connection import PeerCore
from relay_gateway.settings import Settings
from relay_gateway.wiring import Gateway, build
from tests.eventually import SECONDS
from tests.fakes.port_worker import PortWorkerFake, Servers, open_servers, open_worker
from tests.fakes.scripted_sessions import ScriptedSessions
from tests.fakes.scripted_signalling import ScriptedSignalling, serve_signalling

LAUNCH = "lch_test"


@dataclass
class Mesh:
    """What a test meets."""

    signalling: ScriptedSignalling
    sessions: ScriptedSessions
    gateway: Gateway
    worker: PortWorkerFake
    servers: Servers


@asynccontextmanager
async def mesh(
    content: bytes = b"",
    *,
    sessions: int = 256,
    channels_per_session: int = 256,
    core: PeerCore | None = None,
    seal_secret: bytes = b"",
    targets: tuple[str, ...] = (),
) -> AsyncIterator[Mesh]:
    """Start everything; at the end nothing of it is left."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/signalling.sock"
        secret_file = Path(folder) / "seal"
        secret_file.write_text(seal_secret.hex())
        chosen = Settings(
            signalling=address,
            http_bind="127.0.0.1:0",
            tcp_bind="127.0.0.1:0",
            workers_bind=f"unix:{folder}/relay.sock",
            sessions=sessions,
            channels_per_session=channels_per_session,
            targets=targets,
            seal_secret_file=secret_file if seal_secret else None,
        )
        async with (
            open_servers(content) as servers,
            open_worker() as worker,
            serve_signalling(worker, address) as signalling,
            build(chosen, TracerProvider(shutdown_on_exit=False), core) as gateway,
        ):
            await signalling.until(lambda: signalling.is_connected)
            yield Mesh(signalling, ScriptedSessions(signalling), gateway, worker, servers)


async def connect(local: LocalPort) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(local.host, local.port)


async def echoed(local: LocalPort, content: bytes) -> bytes:
    """Send `content` and the end, and return what comes back until its end."""
    reader, writer = await connect(local)
    writer.write(content)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def until(fact: Callable[[], bool], seconds: float = SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not fact():  # noqa: ASYNC110 - several facts have no event
            await asyncio.sleep(0.02)
