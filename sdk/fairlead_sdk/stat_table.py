"""The table of file stats out of which changed files are found: an index of ours, in git's own
format, beside the user's.

It begins as a copy of the user's index and then keeps what git learns: fresh stats of files that
are racy or were touched, and which directories hold nothing untracked. So git itself judges what is
racy, ignored, sparse, assumed unchanged or a submodule, and the user's index is never written. Its
name carries the identity of the user's index: when that changes, a new table begins.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess

from fairlead_sdk.git import start_git

_STATUS = (
    "status",
    "--porcelain=v2",
    "-z",
    "--untracked-files=all",
    "--no-renames",
    "--ignore-submodules=none",
)
# The cache of untracked files is written only for the listing that the configuration names.
_KEPT = (
    *("-c", "core.untrackedCache=true"),
    *("-c", "status.showUntrackedFiles=all"),
    *("-c", "core.splitIndex=false"),
)
_PREFIX = "stats-"
# The mode of a submodule as gitformat-index(5) writes it; found elsewhere it does no harm.
_GITLINK = (0o160000).to_bytes(4, "big")


def start_status(
    directory: str | os.PathLike[str], *, git_directory: str = ""
) -> subprocess.Popen[bytes]:
    """Start the listing of changed and untracked files, by the table when `git_directory` is given
    and can hold one.
    """
    table = _table(git_directory) if git_directory else ""
    if not table:
        return start_git(*_STATUS, directory=directory)
    environment = {
        "GIT_INDEX_FILE": table,
        "GIT_OPTIONAL_LOCKS": "1",
        "GIT_FORCE_UNTRACKED_CACHE": "1",
    }
    return start_git(*_KEPT, *_STATUS, directory=directory, environment=environment)


def _table(git_directory: str) -> str:
    """Give the path of the table for the index as it is, made when it is not there; or nothing."""
    try:
        with open(f"{git_directory}/index", "rb") as index:
            found = os.fstat(index.fileno())
            numbers = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            name = _PREFIX + "-".join(f"{number:x}" for number in numbers)
            table = f"{git_directory}/fairlead/{name}"
            if not os.path.exists(table):
                content = index.read()
                if not _is_whole(content, git_directory):
                    return ""
                _begin(table, content, found)
    except OSError:  # no index yet, or nowhere to write: git reads what there is
        return ""
    return table


def _is_whole(content: bytes, git_directory: str) -> bool:
    """Say whether an index stands for itself: a split one does not, and for submodules git would
    write their own.
    """
    is_split = any(name.startswith("sharedindex.") for name in os.listdir(git_directory))
    return not is_split and _GITLINK not in content


def _begin(table: str, content: bytes, origin: os.stat_result) -> None:
    """Copy the index with its time: a file that is as new as the index is racy, and git must see
    that.
    """
    directory = os.path.dirname(table)
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(directory):
        if name.startswith(_PREFIX):
            with contextlib.suppress(OSError):
                os.unlink(f"{directory}/{name}")
    part = f"{directory}/part-{secrets.token_hex(4)}"
    with open(part, "xb") as file:
        file.write(content)
    os.utime(part, ns=(origin.st_atime_ns, origin.st_mtime_ns))
    os.replace(part, table)
