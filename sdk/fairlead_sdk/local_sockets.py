"""Sockets in the file system that local programs connect to."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from fairlead_sdk.errors import FailedPrecondition

_QUEUED = 512


class LocalPathUnusable(FailedPrecondition):
    """No socket can be listened on there."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"Cannot listen on {path}: {cause}.",
            reason="local_port_unusable",
            remedy="Choose another path, where nothing is and its directory is.",
            fields={"path": str(path)},
        )


def listening_at(path: Path) -> socket.socket:
    """Return a socket that listens at a path and that this user alone may connect to; it takes the
    place of one that nobody listens on.

    Raises LocalPathUnusable.
    """
    made = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        _clear(path)
        made.bind(str(path))
        made.listen(_QUEUED)
    except OSError as error:
        made.close()
        raise LocalPathUnusable(path, error.strerror or str(error)) from error
    finally:
        os.umask(before)
    made.setblocking(False)
    return made


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on; raises OSError where somebody does."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return  # bind refuses
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise OSError("somebody listens there already")
