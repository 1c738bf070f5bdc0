"""The program that a client sends to an SSH host: it serves one connection on standard input and
output, and ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from chassis.clock import SystemClock
from chassis.errors import FailedPrecondition, FairleadError, InvalidArgument
from chassis.ids import derived_id
from workspace_provisioner.core import Bounds, opened_core
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.errors import GitNotFound
from workspace_provisioner.resident.calls import error_fields
from workspace_provisioner.resident.frames import VERSION, encoded
from workspace_provisioner.resident.guard import end_descendants, serve_guarded
from workspace_provisioner.resident.session import Outlet, Session
from workspace_provisioner.resident.verbs import Verbs
from workspace_provisioner.workspaces import MissReason, Snapshot

log = logging.getLogger(__name__)

_IDLE_SECONDS = 90.0
_OLDEST_GIT = (2, 39)
_BOUNDS = Bounds(
    workspaces=256,
    builds=8,
    uploads=16,
    pack_bytes=2 * 1024**3,
    idle_seconds=30,
    git_seconds=300,
    reserve_bytes=256 * 1024**2,
)


class GitTooOld(FailedPrecondition):
    """The host's git is too old."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"The host has git {version}.",
            reason="git_too_old",
            remedy="Install git 2.39 or later on the host.",
            fields={"version": version},
        )


class HostRootUnusable(InvalidArgument):
    """The directory that the address names cannot be used."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The host's directory cannot be used: {cause}.",
            reason="host_root_unusable",
            remedy="End the address in an absolute path that the account may write, or in /~/NAME.",
        )


class NoDirectory:
    """An SSH host is chosen by its address, so that nobody looks it up."""

    async def publish(self, snapshot: Snapshot) -> None:
        """Tell nobody."""

    async def is_current(self) -> bool:
        """Say that nothing was lost."""
        return True


def _count_nothing(reason: MissReason) -> None:
    """Leave counting to the client: there is nobody here whom it could be told."""


def main(root: str) -> None:
    """Serve the client on descriptors 0 and 1 until its connection ends."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    sys.exit(serve_guarded(lambda: asyncio.run(_serve(root))))


def _leave(task: asyncio.Task[None]) -> None:
    """End with everything that was started: the guard is gone, or somebody wants it so."""
    end_descendants()
    task.cancel()


async def _serve(root: str) -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _leave, task)
    reader, outlet = await _channel()
    with suppress(asyncio.CancelledError, ConnectionError):
        try:
            await _serve_core(_checked_root(root), reader, outlet)
        except FairleadError as error:
            told = error_fields(
                error.kind,
                error.message,
                reason=error.reason,
                remedy=error.remedy,
                fields=error.fields,
            )
            await outlet.send(encoded(0, "error", **told))
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            log.exception("the resident program does not start")
            unusable = HostRootUnusable(error.strerror or type(error).__name__)
            told = error_fields(
                unusable.kind,
                unusable.message,
                reason=unusable.reason,
                remedy=unusable.remedy,
                fields={},
            )
            await outlet.send(encoded(0, "error", **told))


async def _serve_core(root: Path, reader: asyncio.StreamReader, outlet: Outlet) -> None:
    program, version = _git()
    clock = SystemClock()
    host_id = derived_id("hst", socket.gethostname(), str(root), key=b"host")
    async with opened_core(
        host_root=root,
        git_program=program,
        secret=None,
        bounds=_BOUNDS,
        clock=clock,
        directory=NoDirectory(),
        on_reason=_count_nothing,
    ) as core:
        verbs = Verbs(
            workspaces=core.provisioner,
            snapshots=core.importer,
            trees=Layout(root).trees,
            host_id=host_id,
            clock=clock,
        )
        hello = {
            "version": VERSION,
            "host_id": host_id,
            "root": str(root),
            "git": version,
            "python": platform.python_version(),
        }
        await outlet.send(encoded(0, "hello", **hello))
        session = Session(
            reader=reader, outlet=outlet, verbs=verbs.table(), idle_seconds=_IDLE_SECONDS
        )
        await session.serve()


async def _channel() -> tuple[asyncio.StreamReader, Outlet]:
    """Take the channel away from descriptors 0 and 1, so that no child and no print reaches it."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1024 * 1024)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", buffering=0)
    )
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop),
        os.fdopen(outgoing, "wb", buffering=0),
    )
    return reader, Outlet(writer=asyncio.StreamWriter(transport, protocol, None, loop))


def _checked_root(root: str) -> Path:
    path = Path(os.path.expanduser(root))
    if not path.is_absolute() or any(each in str(path) for each in ':\n"'):
        raise HostRootUnusable("it is no absolute path, or holds a colon or a quotation mark")
    return path


def _git() -> tuple[str, str]:
    program = shutil.which("git")
    if program is None:
        raise GitNotFound
    asked = subprocess.run(  # noqa: S603 - the host's git
        (program, "--version"), capture_output=True, check=False, text=True
    )
    words = asked.stdout.split()
    version = words[2] if len(words) > 2 else "of an unknown version"
    numbers = tuple(int(each) for each in version.split(".")[:2] if each.isdigit())
    if numbers < _OLDEST_GIT:
        raise GitTooOld(version)
    return program, version
