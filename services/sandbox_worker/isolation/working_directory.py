"""Where a program starts: a directory of the workspace, as its sandbox sees it.

Runs in the inits: standard library only.
"""

from __future__ import annotations

import errno
import os


def working_directory(root: bytes, directory: bytes) -> bytes:
    """Return `directory` below `root` with links resolved.

    Raises OSError: EXDEV for one that is outside, ENOENT where there is none. A program in the
    workspace can swap a link afterwards: walls that must hold against that are the isolation's.
    """
    if not directory:
        return root
    if os.path.isabs(directory):
        raise OSError(errno.EXDEV, "outside")
    top = os.path.realpath(root)
    path = os.path.realpath(os.path.join(top, directory))
    if path != top and not path.startswith(top + b"/"):
        raise OSError(errno.EXDEV, "outside")
    if not os.path.isdir(path):
        raise OSError(errno.ENOENT, "not found")
    return path
