"""A file agent: serves one request on a sandbox's files and ends.

The sandbox's init forks it inside the walls, as the sandbox's user, so that it can do what the
sandbox's programs can and nothing else. Standard library only; it holds no secret.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from typing import NoReturn

from sandbox_worker.file_agent import contents, names
from sandbox_worker.file_agent.beneath import Beneath, Root
from sandbox_worker.file_agent.frames import FAILURE, join
from sandbox_worker.file_agent.line import Line, Refused, WorkerGone
from sandbox_worker.file_agent.packing import Packer
from sandbox_worker.file_agent.unpacking import Unpacker
from sandbox_worker.file_agent.watching import Watcher

_REASONS = {
    errno.ENOENT: "file_not_found",
    errno.EEXIST: "file_exists",
    errno.ENOTDIR: "not_a_directory",
    errno.EISDIR: "is_a_directory",
    errno.ENXIO: "not_a_file",
    errno.EXDEV: "path_outside",
    errno.ENAMETOOLONG: "path_invalid",
    errno.EINVAL: "path_invalid",
    errno.EILSEQ: "path_invalid",
    errno.ELOOP: "path_invalid",
    errno.EACCES: "permission_denied_inside",
    errno.EPERM: "permission_denied_inside",
    errno.EROFS: "permission_denied_inside",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "file_too_large",
    errno.ENOTEMPTY: "directory_not_empty",
    errno.ETXTBSY: "file_in_use",
    errno.EBUSY: "file_in_use",
    errno.EMFILE: "files_exhausted",
    errno.ENFILE: "files_exhausted",
    errno.ENOMEM: "files_exhausted",
}


class Agent:
    """Serves one request."""

    def __init__(self, *, line: Line, root: bytes) -> None:
        self._line = line
        self._root = root

    def serve(self) -> None:
        """Do what is asked and send exactly one outcome."""
        try:
            fields = self._line.request()
            try:
                self._dispatch(fields)
            except Refused as error:
                self._fail(error.reason, error.path)
            except OSError as error:
                path = _member(error) if fields[0] == b"upload" else fields[1]
                self._fail(_REASONS.get(error.errno or 0, "file_failed"), path, error)
            except (MemoryError, RecursionError) as error:
                self._fail("files_exhausted", b"", error)
            except (ValueError, IndexError) as error:
                self._fail("file_failed", b"", error)
        except WorkerGone:
            return

    def _fail(self, reason: str, path: bytes, error: Exception | None = None) -> None:
        cause = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else ""
        fields = join(reason.encode(), path.replace(b"\0", b""), cause.encode())
        self._line.send(FAILURE, fields)
        for _ in self._line.content():
            continue  # what is under way still comes, and the failure must be read first

    def _dispatch(self, fields: list[bytes]) -> None:
        root = Root(self._root)
        beneath = Beneath(root.descriptor)
        line, verb, path = self._line, fields[0], root.within(fields[1])
        match verb, fields[2:]:
            case b"stat", [follow]:
                names.describe(line, beneath, path, follow=follow == b"1")
            case b"list", [after, size]:
                names.list_page(line, beneath, path, after=after, size=int(size))
            case b"read", [offset, length]:
                contents.read(line, beneath, path, int(offset), _optional(length))
            case b"write", [mode, offset, truncate, permissions, parents, if_match]:
                self._write(beneath, path, mode, offset, truncate, permissions, parents, if_match)
            case b"mkdir", [parents]:
                names.make_directory(line, beneath, path, parents=parents == b"1")
            case b"move", [target, overwrite]:
                names.move(line, beneath, path, root.within(target), overwrite=overwrite == b"1")
            case b"remove", [recursive]:
                names.remove(line, beneath, path, recursive=recursive == b"1")
            case b"watch", [recursive]:
                Watcher(line=line, beneath=beneath, path=path, recursive=recursive == b"1").run()
            case b"upload", [parents]:
                Unpacker(line=line).unpack(beneath, path, parents=parents == b"1")
            case b"download", []:
                Packer(line=line).pack(beneath, path)
            case _:
                raise Refused("file_failed")

    def _write(
        self,
        beneath: Beneath,
        path: bytes,
        mode: bytes,
        offset: bytes,
        truncate: bytes,
        permissions: bytes,
        parents: bytes,
        if_match: bytes,
    ) -> None:
        if mode == b"range":
            contents.write_range(
                self._line,
                beneath,
                path,
                offset=int(offset),
                truncate=truncate == b"1",
                permissions=_optional(permissions),
                parents=parents == b"1",
                if_match=if_match,
            )
        else:
            contents.write_whole(
                self._line,
                beneath,
                path,
                create=mode == b"create",
                permissions=_optional(permissions),
                parents=parents == b"1",
                if_match=if_match,
            )


def _optional(field: bytes) -> int | None:
    return int(field) if field else None


def _member(error: OSError) -> bytes:
    return error.filename if isinstance(error.filename, bytes) else b""


def serve(link: socket.socket, *, root: bytes) -> NoReturn:
    """Be a file agent; never returns, and never lets an error unwind into the init's code."""
    try:
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        Agent(line=Line(link), root=root).serve()
    finally:
        os._exit(0)
