"""The agent: a process in the background that launches for the command line with everything loaded
and one connection to the front door warm.

It ends when nobody has come for some minutes, when a file of its own program has changed, and when
it is told to. Nothing depends on it: whoever loses it goes on alone with the same idempotency key.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path

from fairlead_sdk.agent_client import peer_user
from fairlead_sdk.agent_place import agent_environment, agent_socket_path, agent_token
from fairlead_sdk.agent_work import RemoteOutput, launch_for
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.discovery import Mesh, find_mesh
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_kept import KeptSsh
from fairlead_sdk.ssh_relay import relay
from fairlead_sdk.uploads import Histories

IDLE_SECONDS = 300.0
WARM_SECONDS = 30.0
_KEPT_SECONDS = 70.0
_LONGEST_REQUEST = 16 * 1024 * 1024


class Agent:
    """Serves the clients of one environment; `run` ends when it is idle, stale or told to."""

    def __init__(self, *, environment: dict[str, str], idle_seconds: float = IDLE_SECONDS) -> None:
        self._environment = environment
        self._token = agent_token(environment)
        self._idle_seconds = idle_seconds
        self._program = _times(_loaded())
        self.listening = asyncio.Event()
        self._leave = asyncio.Event()
        self._changed = asyncio.Event()
        self._clients: set[asyncio.Task[None]] = set()
        self._doors: dict[tuple[str, str], FrontDoor] = {}
        self._hosts: dict[str, KeptSsh] = {}
        self._histories = Histories(lasts=True)
        self._launches = 0
        self._stack = AsyncExitStack()

    async def run(self, path: str) -> None:
        """Listen at `path`, whose lock is held, until it is time to leave."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        async with self._stack:
            server = await asyncio.start_unix_server(self._accept, path)
            os.chmod(path, 0o600)
            self.listening.set()
            warming = asyncio.ensure_future(self._keep_warm())
            try:
                await self._until_idle()
            finally:
                warming.cancel()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                server.close()
                if self._clients:
                    await asyncio.wait(self._clients)
                await asyncio.wait((warming,))
                await self._histories.close()

    async def _until_idle(self) -> None:
        while not self._leave.is_set():
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self._clients else self._idle_seconds):
                    await self._changed.wait()
            except TimeoutError:
                if not self._histories.is_busy:
                    return

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._clients.add(task)
        self._changed.set()
        try:
            await self._serve(reader, writer)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # the client left, or is none of ours
        finally:
            self._clients.discard(task)
            self._changed.set()
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plug = writer.get_extra_info("socket")
        if plug is None or peer_user(plug) != os.geteuid():
            return
        name, token, verb, *rest = (await reader.readline()).decode().split()
        if name != "fairlead-agent":
            return
        if token != self._token or _times(self._program) != self._program:
            writer.write(b"stale\n")
            self._leave.set()
            return
        writer.write(b"ok\n")
        match verb:
            case "launch":
                await self._launch(reader, writer)
            case "ssh" if rest:
                await relay(reader, writer, await self._host(rest[0]))
            case "stop":
                self._leave.set()
            case "status":
                places = [*(url for url, _ in self._doors), *self._hosts]
                lines = [f"{os.getpid()} {self._launches}", *places]
                writer.write("\n".join(lines).encode() + b"\n")
                await writer.drain()

    async def _launch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(5)
        size = int.from_bytes(head[1:], "big")
        if size > _LONGEST_REQUEST:
            return
        fields = (await reader.readexactly(size)).decode("utf-8", "surrogateescape").split("\0")
        environment, directory, _, live, columns, count, *words = fields
        output = RemoteOutput(writer=writer, is_live=bool(live), columns=int(columns) or 100)
        if environment != agent_environment(self._environment):
            output.decline()
            return
        self._launches += 1
        arguments, command = words[: int(count)], words[int(count) :]
        await launch_for(
            arguments,
            command,
            directory=directory,
            reader=reader,
            output=output,
            open_door=self._door,
            histories=self._histories,
        )
        self._changed.set()
        await self._warm()

    async def _host(self, url: str) -> KeptSsh:
        """Give the connection to an SSH host, which is made when it is first used."""
        kept = self._hosts.get(url)
        if kept is None:
            kept = await self._stack.enter_async_context(KeptSsh(address=SshAddress.read(url)))
            self._hosts[url] = kept
        return kept

    async def _door(self, directory: str) -> tuple[FrontDoor, Mesh]:
        """Return the front door that a command in `directory` finds, opened once."""
        mesh = find_mesh(environment=self._environment, directory=Path(directory))
        place = (mesh.url, mesh.api_key)
        door = self._doors.get(place)
        if door is None:
            door = FrontDoor(url=mesh.url, api_key=mesh.api_key, kept_seconds=_KEPT_SECONDS)
            self._doors[place] = await self._stack.enter_async_context(door)
        return door, mesh

    async def _keep_warm(self) -> None:
        while True:
            await asyncio.sleep(WARM_SECONDS)
            await self._warm()

    async def _warm(self) -> None:
        """Have a connection open to each front door: a launch takes its own with it at its end."""
        for door in list(self._doors.values()):
            with contextlib.suppress(FairleadError):
                await door.get("/healthz")


def _loaded() -> list[str]:
    """Give the files that this program was loaded from."""
    files = [
        getattr(module, "__file__", None)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "fairlead_sdk"
    ]
    return [path for path in files if path]


def _times(paths: Iterable[str]) -> dict[str, int]:
    """Give when each of these files was last written; those that are gone are left out."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = os.stat(path).st_mtime_ns
    return found


@contextlib.contextmanager
def sole_owner(path: str) -> Iterator[bool]:
    """Hold the lock of an agent's path; says whether nobody else does."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        # Whoever had it may have removed it meanwhile: then another file has this name.
        is_sole = os.fstat(descriptor).st_nlink > 0
        try:
            yield is_sole
        finally:
            if is_sole:
                os.unlink(f"{path}.lock")
    finally:
        os.close(descriptor)


def _sweep(directory: str) -> None:
    """Remove what agents left that were killed."""
    for name in os.listdir(directory):
        if name.startswith("agent-") and name.endswith(".lock"):
            left = os.path.join(directory, name.removesuffix(".lock"))
            with contextlib.suppress(OSError), sole_owner(left) as is_dead:
                if is_dead:
                    os.unlink(left)


def main() -> None:
    """Be the agent of this environment, unless there is one."""
    path = agent_socket_path(os.environ)
    if path is None:
        return
    os.umask(0o077)
    with sole_owner(path) as is_sole:
        if is_sole:
            _sweep(os.path.dirname(path))
            import_module("fairlead_sdk.cli.following")  # else the first launch imports it
            gc.freeze()
            asyncio.run(Agent(environment=dict(os.environ)).run(path))


if __name__ == "__main__":
    main()
