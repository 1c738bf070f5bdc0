"""Tunnels of others, as they are installed here, from a free port of loopback to the load tool's
target.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

INSTALLED = (
    Path(
        os.environ.get("FAIRLEAD_BENCH_PEERS")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead-bench-peers"
    )
    / "relay"
)
"""Where the programs of others are looked for."""

_HERE = "127.0.0.1"
_START_SECONDS = 30.0
_SOCAT_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A running tunnel: dial `address` for the target; `pids` are its processes."""

    address: str
    pids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """A tunnel that can be had here; `opened` leads to the target on a port of loopback."""

    name: str
    is_encrypted: bool
    opened: Callable[[int], AbstractAsyncContextManager[Tunnel]]


def installed(notes: list[str]) -> list[Peer]:
    """Return those that are here; a note says which are not."""
    peers = [Peer("direct", False, _direct)]
    if shutil.which("socat"):
        peers.append(Peer("socat", False, _socat))
    else:
        notes.append("socat is not installed here: `make bench-peers`")
    for peer, program in (
        (Peer("chisel", True, _chisel), "chisel"),
        (Peer("frp_tls", True, _frp), "frps"),
        (Peer("rathole_noise", True, _rathole), "rathole"),
        (Peer("wstunnel_wss", True, _wstunnel), "wstunnel"),
    ):
        if (INSTALLED / program).exists():
            peers.append(peer)
        else:
            notes.append(f"{program} is not here: build it from its source, into {INSTALLED}")
    return peers


def free_port() -> int:
    """Return a port of loopback that nobody has now."""
    with socket.create_server((_HERE, 0)) as plug:
        port: int = plug.getsockname()[1]
        return port


@asynccontextmanager
async def running(
    *words: str, port: int, environment: Mapping[str, str] | None = None
) -> AsyncIterator[int]:
    """Run a program in the block, once it takes connections on a port; yields its pid."""
    process = await asyncio.create_subprocess_exec(
        *words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not await _listens(port):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(_HERE, port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def _pair(
    server: Sequence[str], client: Sequence[str], *, middle: int, near: int
) -> AsyncIterator[Tunnel]:
    async with (
        running(*server, port=middle) as server_pid,
        running(*client, port=near) as client_pid,
    ):
        yield Tunnel(f"{_HERE}:{near}", (server_pid, client_pid))


@asynccontextmanager
async def _direct(target: int) -> AsyncIterator[Tunnel]:
    yield Tunnel(f"{_HERE}:{target}")


@asynccontextmanager
async def _socat(target: int) -> AsyncIterator[Tunnel]:
    near = free_port()
    listen = f"TCP-LISTEN:{near},bind={_HERE},fork,reuseaddr,nodelay,backlog=1024"
    words = ("socat", "-b", str(_SOCAT_BYTES), listen, f"TCP:{_HERE}:{target},nodelay")
    async with running(*words, port=near) as pid:
        yield Tunnel(f"{_HERE}:{near}", (pid,))


@asynccontextmanager
async def _chisel(target: int) -> AsyncIterator[Tunnel]:
    middle, near, program = free_port(), free_port(), str(INSTALLED / "chisel")
    server = (program, "server", "--host", _HERE, "--port", str(middle))
    spec = f"{_HERE}:{near}:{_HERE}:{target}"
    client = (program, "client", f"http://{_HERE}:{middle}", spec)
    async with _pair(server, client, middle=middle, near=near) as tunnel:
        yield tunnel


@asynccontextmanager
async def _frp(target: int) -> AsyncIterator[Tunnel]:
    """With its defaults: TLS, and all connections in one."""
    middle, near = free_port(), free_port()
    with _files(
        server=f'bindAddr = "{_HERE}"\nproxyBindAddr = "{_HERE}"\nbindPort = {middle}\n',
        client=f'serverAddr = "{_HERE}"\nserverPort = {middle}\n[[proxies]]\nname = "load"\n'
        f'type = "tcp"\nlocalIP = "{_HERE}"\nlocalPort = {target}\nremotePort = {near}\n',
    ) as (server, client):
        async with _pair(
            (str(INSTALLED / "frps"), "-c", server),
            (str(INSTALLED / "frpc"), "-c", client),
            middle=middle,
            near=near,
        ) as tunnel:
            yield tunnel


@asynccontextmanager
async def _rathole(target: int) -> AsyncIterator[Tunnel]:
    """With Noise, and keys as its own program makes them."""
    middle, near, program = free_port(), free_port(), str(INSTALLED / "rathole")
    made = await asyncio.create_subprocess_exec(program, "--genkey", stdout=subprocess.PIPE)
    keys = (await made.communicate())[0].decode().splitlines()
    private, public = [line for line in keys if line and " " not in line]
    shared = 'default_token = "load"\n'
    with _files(
        server=f'[server]\nbind_addr = "{_HERE}:{middle}"\n{shared}'
        '[server.transport]\ntype = "noise"\n'
        f'[server.transport.noise]\nlocal_private_key = "{private}"\n'
        f'[server.services.load]\nbind_addr = "{_HERE}:{near}"\n',
        client=f'[client]\nremote_addr = "{_HERE}:{middle}"\n{shared}'
        '[client.transport]\ntype = "noise"\n'
        f'[client.transport.noise]\nremote_public_key = "{public}"\n'
        f'[client.services.load]\nlocal_addr = "{_HERE}:{target}"\n',
    ) as (server, client):
        async with _pair(
            (program, "--server", server), (program, "--client", client), middle=middle, near=near
        ) as tunnel:
            yield tunnel


@asynccontextmanager
async def _wstunnel(target: int) -> AsyncIterator[Tunnel]:
    """With TLS, by the certificate that is built in."""
    middle, near, program = free_port(), free_port(), str(INSTALLED / "wstunnel")
    server = (program, "server", f"wss://{_HERE}:{middle}")
    spec = f"tcp://{_HERE}:{near}:{_HERE}:{target}"
    client = (program, "client", "-L", spec, f"wss://{_HERE}:{middle}")
    async with _pair(server, client, middle=middle, near=near) as tunnel:
        yield tunnel


@contextlib.contextmanager
def _files(*, server: str, client: str) -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory:
        paths = Path(directory) / "server.toml", Path(directory) / "client.toml"
        for path, text in zip(paths, (server, client), strict=True):
            path.write_text(text)
        yield str(paths[0]), str(paths[1])
