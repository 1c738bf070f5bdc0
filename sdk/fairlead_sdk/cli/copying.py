"""`fairlead cp`: files and trees into a sandbox and out of it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead_sdk.cli.running import Interrupts, run
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.traffic import shown_size
from fairlead_sdk.errors import FileMissing, InvalidArgument

if TYPE_CHECKING:
    from fairlead_sdk.file_records import TreeCopied
    from fairlead_sdk.files import AsyncFiles
    from fairlead_sdk.ssh_files import HostFiles

_SHOWN_SECONDS = 0.1
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Copy:
    """What to copy: `remote` is in the sandbox of `name`, `local` is here."""

    name: str
    remote: str
    local: str
    uploads: bool
    with_git: bool = False
    host: str = ""
    """Address of the SSH host that keeps the workspace `name`; empty with a mesh."""


class LocalRefused(InvalidArgument):
    """This machine's side of a copy does not work."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(
            f"{path}: {cause}.",
            reason="local_path_refused",
            remedy="Check the path here and its permissions.",
            fields={"path": path},
        )


class Meter:
    """Shows how much was copied, and how fast."""

    def __init__(self, *, terminal: Terminal) -> None:
        self._terminal = terminal
        self._began = time.monotonic()
        self._shown = 0.0
        self.copied = 0

    def add(self, size: int) -> None:
        """Take note of a piece."""
        self.copied += size
        now = time.monotonic()
        if now - self._shown > _SHOWN_SECONDS:
            self._shown = now
            self._terminal.status(self.sentence)

    @property
    def sentence(self) -> str:
        """How much, how fast."""
        seconds = max(time.monotonic() - self._began, 0.001)
        rate = shown_size(int(self.copied / seconds))
        return f"{shown_size(self.copied)} in {seconds:.1f} s, {rate}/s"


def copy(order: Copy, *, is_json: bool) -> int:
    """Copy and give the exit status."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        async with _opened(order, terminal) as files:
            meter = Meter(terminal=terminal)
            try:
                copied = await (_upload if order.uploads else _download)(order, files, meter)
            except OSError as error:
                cause = error.strerror or "it cannot be used"
                raise LocalRefused(_named(error, order), cause) from error
            terminal.status("")
            await _tell(terminal, copied, meter)
            return 0

    return run(work, is_json=is_json)


@asynccontextmanager
async def _opened(order: Copy, terminal: Terminal) -> AsyncIterator[AsyncFiles | HostFiles]:
    """Open the files of the sandbox, or of the workspace on an SSH host."""
    if order.host:
        from fairlead_sdk.cli.workspace import find_workspace
        from fairlead_sdk.cli.workspace_places import opened_host
        from fairlead_sdk.ssh_files import HostFiles

        async with opened_host(order.host) as place:
            found = await find_workspace(place, order.name)
            yield HostFiles(host=place.host, workspace_id=found.workspace_id)
        return
    from fairlead_sdk.cli.connection import connect, find_sandbox_of
    from fairlead_sdk.files import AsyncFiles

    async with connect(terminal) as client:
        sandbox_id = await find_sandbox_of(client, order.name)
        yield AsyncFiles(door=client.door, sandbox_id=sandbox_id)


def _named(error: OSError, order: Copy) -> str:
    """Return the path that an error is about, as the user knows it."""
    path = error.filename if isinstance(error.filename, str) else order.local
    # What arrives has a name of ours until it is whole.
    above, name = os.path.split(path)
    return (above or ".") if name.startswith(".fairlead-") else path


async def _upload(order: Copy, files: AsyncFiles | HostFiles, meter: Meter) -> TreeCopied:
    target = order.remote
    name = _name_here(order.local)
    if not _means_content(order.local) and await _is_directory_there(files, target):
        target = os.path.join(target, name)
    return await files.upload(order.local, target, progress=meter.add)


async def _download(order: Copy, files: AsyncFiles | HostFiles, meter: Meter) -> TreeCopied:
    remote, local = order.remote, order.local
    if _means_content(remote) or not remote.strip("/"):
        remote = remote.rstrip("/").removesuffix("/.").removesuffix(".")
    elif not order.with_git:
        local = _landing(local, remote)
    return await files.download(remote, local, with_git=order.with_git, progress=meter.add)


def _means_content(path: str) -> bool:
    """Whether a path means what is in a directory, as cp(1) has it."""
    return path.rstrip("/").rpartition("/")[2] == "."


def _name_here(path: str) -> str:
    if not os.path.exists(path):
        raise LocalRefused(path, "there is no such file or directory")
    return _own_name(os.path.abspath(path))


def _landing(local: str, remote: str) -> str:
    """Return where something from there comes to lie here."""
    return os.path.join(local, _own_name(remote)) if os.path.isdir(local) else local


def _own_name(path: str) -> str:
    name = os.path.basename(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise LocalRefused(path, "it has no name of its own")
    return name


async def _is_directory_there(files: AsyncFiles | HostFiles, path: str) -> bool:
    try:
        return (await files.stat(path)).is_directory
    except FileMissing:
        if path.endswith("/"):
            raise
        return False


async def _tell(terminal: Terminal, copied: TreeCopied, meter: Meter) -> None:
    if terminal.is_json:
        await terminal.document(
            {
                "entries": copied.entries,
                "content_bytes": copied.content_bytes,
                "left_out": list(copied.left_out),
            }
        )
    elif terminal.is_live:
        terminal.say(f"{meter.sentence}.")
    if copied.left_out:
        named = ", ".join(map(_printable, copied.left_out[:_MOST_NAMED]))
        more = len(copied.left_out) - _MOST_NAMED
        terminal.warn(
            "left out (git directories, links out of the tree, special files, what may not be"
            f" read): {named}" + (f" and {more} more." if more > 0 else ".")
        )


def _printable(name: str) -> str:
    """Show a name that a stranger may have chosen: nothing in it commands the terminal."""
    return name if name.isprintable() else repr(name)[1:-1]
