"""What is wrong with a `.git` that git does not take for a repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fairlead_sdk.errors import RepositoryError

_HEAD = re.compile(rb"ref: *refs/\S+\s*|[0-9a-f]{40,64}\s*")


def broken_repository(place: Path) -> RepositoryError | None:
    """Say what is broken of the repository around `place`; `None` when there is no `.git`."""
    folders = (place, *place.parents)
    dot_git = next((each / ".git" for each in folders if os.path.lexists(each / ".git")), None)
    if dot_git is None:
        return None
    if not dot_git.is_dir():
        return _broken(
            dot_git,
            "it names a git directory that is not there",
            "git worktree repair in the main working directory, or clone again.",
        )
    lacking = [name for name in ("objects", "refs") if not (dot_git / name).is_dir()]
    if not _is_head(dot_git / "HEAD"):
        return _broken(
            dot_git,
            "its HEAD is missing or broken",
            f"Name the branch that was checked out: echo ref: refs/heads/main > {dot_git}/HEAD",
        )
    return _broken(
        dot_git,
        f"{' and '.join(lacking) or 'something in it'} is missing",
        "Restore it from a copy, or clone again.",
    )


def _is_head(path: Path) -> bool:
    try:
        return _HEAD.fullmatch(path.read_bytes()) is not None
    except OSError:
        return False


def _broken(dot_git: Path, what: str, remedy: str) -> RepositoryError:
    return RepositoryError(
        f"git does not take {dot_git} for a repository: {what}.",
        reason="repository_unreadable",
        remedy=remedy,
    )
