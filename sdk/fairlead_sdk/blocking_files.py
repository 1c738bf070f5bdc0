"""Files for the blocking client, call by call."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fairlead_sdk.file_records import FileEvent, FilePath, FileRecord, TreeCopied
from fairlead_sdk.files import AsyncFiles, Progress
from fairlead_sdk.loop_thread import LoopThread


class Files:
    """The files of one sandbox; see `AsyncFiles` for what each call raises."""

    def __init__(self, *, loop: LoopThread, files: AsyncFiles) -> None:
        self._loop = loop
        self._files = files

    def read(self, path: FilePath) -> bytes:
        """Read a whole file."""
        return self._loop.run(self._files.read(path))

    def read_range(self, path: FilePath, offset: int, length: int | None = None) -> bytes:
        """Read at most `length` bytes from `offset` on; see `AsyncFiles.read_range`."""
        return self._loop.run(self._files.read_range(path, offset, length))

    def write(
        self,
        path: FilePath,
        content: bytes,
        *,
        permissions: int | None = None,
        parents: bool = False,
        create: bool = False,
        if_match: str = "",
    ) -> FileRecord:
        """Replace a file as a whole, or make it; see `AsyncFiles.write`."""
        return self._loop.run(
            self._files.write(
                path,
                content,
                permissions=permissions,
                parents=parents,
                create=create,
                if_match=if_match,
            )
        )

    def write_range(
        self, path: FilePath, offset: int, content: bytes, *, truncate: bool = False
    ) -> FileRecord:
        """Write into a file from `offset` on; with `truncate` it ends after that."""
        return self._loop.run(self._files.write_range(path, offset, content, truncate=truncate))

    def stat(self, path: FilePath, *, follow: bool = True) -> FileRecord:
        """Describe a file, or without `follow` a link itself."""
        return self._loop.run(self._files.stat(path, follow=follow))

    def exists(self, path: FilePath) -> bool:
        """Say whether something is there, even a link that leads nowhere."""
        return self._loop.run(self._files.exists(path))

    def list(self, path: FilePath = "") -> tuple[FileRecord, ...]:
        """List a directory by name; links are not followed."""
        return self._loop.run(self._files.list(path))

    def move(self, source: FilePath, target: FilePath, *, overwrite: bool = False) -> FileRecord:
        """Rename a file or a tree; raises `FileThere` unless `overwrite`."""
        return self._loop.run(self._files.move(source, target, overwrite=overwrite))

    def remove(self, path: FilePath, *, recursive: bool = False) -> None:
        """Remove a file, a link itself, or a directory; see `AsyncFiles.remove`."""
        self._loop.run(self._files.remove(path, recursive=recursive))

    def mkdir(self, path: FilePath, *, parents: bool = False) -> FileRecord:
        """Make a directory; with `parents` also those above it, and it may be there."""
        return self._loop.run(self._files.mkdir(path, parents=parents))

    def watch(self, path: FilePath = "", *, recursive: bool = False) -> Iterator[FileEvent]:
        """Give what changes in a directory; see `AsyncFiles.watch`."""
        events = self._files.watch(path, recursive=recursive)

        async def following() -> FileEvent | None:
            return await anext(events, None)

        try:
            while (event := self._loop.run(following())) is not None:
                yield event
        finally:
            self._loop.run(events.aclose())

    def upload(
        self,
        local: str | os.PathLike[str],
        remote: FilePath,
        *,
        parents: bool = False,
        progress: Progress | None = None,
    ) -> TreeCopied:
        """Copy a file or a directory of this machine; see `AsyncFiles.upload`."""
        return self._loop.run(self._files.upload(local, remote, parents=parents, progress=progress))

    def download(
        self,
        remote: FilePath,
        local: str | os.PathLike[str],
        *,
        with_git: bool = False,
        progress: Progress | None = None,
    ) -> TreeCopied:
        """Copy a file or a directory of the sandbox; see `AsyncFiles.download`."""
        return self._loop.run(
            self._files.download(remote, local, with_git=with_git, progress=progress)
        )
