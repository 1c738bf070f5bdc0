"""What file requests need of others: the files of one sandbox, and where they are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from signalling.file import FilePage, FileStat, TreeSize, WatchFrame, WriteOrder
from signalling.host import Host


class SandboxFiles(Protocol):
    """The files of one sandbox. Every call raises FairleadError for what its host refuses."""

    async def stat(self, path: bytes, *, follow: bool) -> FileStat:
        """Describe a file, or a link itself."""
        ...

    async def list(self, path: bytes, *, page_size: int, page_token: str) -> FilePage:
        """List a page of a directory by name."""
        ...

    def read(
        self, path: bytes, *, offset: int, length: int | None
    ) -> AsyncGenerator[FileStat | bytes, None]:
        """Give what a file is, then a range of it; close it when it is left early."""
        ...

    async def write(self, order: WriteOrder, content: AsyncIterator[bytes]) -> FileStat:
        """Write a file; what `content` raises is raised here, and nothing is replaced then."""
        ...

    async def make_directory(self, path: bytes, *, parents: bool) -> FileStat:
        """Make a directory."""
        ...

    async def move(self, source: bytes, target: bytes, *, overwrite: bool) -> FileStat:
        """Rename a file or a tree."""
        ...

    async def remove(self, path: bytes, *, recursive: bool) -> None:
        """Remove a file or a tree."""
        ...

    def watch(self, path: bytes, *, recursive: bool) -> AsyncGenerator[WatchFrame, None]:
        """Give the start of a watch, changes, and exactly one end."""
        ...

    async def upload(
        self, path: bytes, *, parents: bool, content: AsyncIterator[bytes]
    ) -> TreeSize:
        """Unpack a tar stream below a directory."""
        ...

    def download(self, path: bytes) -> AsyncGenerator[bytes, None]:
        """Give a tar stream, beginning with an empty piece once it is known that there is one."""
        ...


class FilePlaces(Protocol):
    """The files of any sandbox of any host."""

    def of(self, host: Host, *, tenant: str, sandbox_id: str) -> SandboxFiles:
        """Return the files of a sandbox; nothing is asked yet."""
        ...


class Files(Protocol):
    """The files of the callers' sandboxes."""

    async def of(self, tenant: str, sandbox_id: str) -> SandboxFiles:
        """Return the files of a sandbox; raises SandboxNotFound for a foreign one."""
        ...
