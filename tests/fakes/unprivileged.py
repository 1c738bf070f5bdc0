"""Runs pytest as a user without rights: `-m tests.fakes.unprivileged UID ARGUMENT…`, as root.

Where only root may enter the directories of this Python, the user sees them in a mount namespace of
its own.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from fairlead_walls import kernel_calls


def _open_up(path: Path) -> None:
    """Let everybody reach a directory, in a mount namespace of this process."""
    for above in reversed(path.parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            shown = kernel_calls.clone_mount(str(path))
            kernel_calls.mount("tmpfs", str(above), 0, "mode=755")
            path.mkdir(parents=True)
            kernel_calls.attach_mount(shown, str(path))
            os.close(shown)
            return


def main() -> None:
    """Give up all rights and run the tests."""
    uid, *arguments = sys.argv[1:]
    kernel_calls.unshare(kernel_calls.OWN_MOUNTS)
    kernel_calls.keep_mounts_private()
    for path in {Path(sys.base_prefix), Path(sys.prefix)}:
        _open_up(path.resolve())
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    os.environ["HOME"] = "/nonexistent"
    sys.exit(pytest.main(arguments))


if __name__ == "__main__":
    main()
