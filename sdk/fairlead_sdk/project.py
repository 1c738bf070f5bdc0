"""The default name of a project: the id of the oldest root commit that HEAD reaches.

A walk over the whole history finds it, so the answer is remembered under `<git
directory>/fairlead/projects` by the id of HEAD. A commit's ancestors never change, so what is
remembered is right for ever, also when history is rewritten.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.git import GitFailed, run_git

_KEPT = 64
_NEAR = 256


def project_of(commit: str, *, git_directory: Path) -> str:
    """Give the id of the oldest root commit among the ancestors of `commit`."""
    path = git_directory / "fairlead" / "projects"
    known = _remembered(path)
    root = known.get(commit)
    if root is not None:
        return root
    try:
        found = _through_near_commits(commit, known, git_directory) or _oldest_root(
            commit, git_directory
        )
    except GitFailed as failure:
        raise RepositoryError(
            f"git cannot walk the history of HEAD: {failure.message.strip()}",
            reason="repository_unreadable",
            remedy="git fsck",
        ) from None
    _remember(path, {commit: found} | known)
    return found


def _oldest_root(commit: str, git_directory: Path) -> str:
    roots = _git("rev-list", "--max-parents=0", commit, git_directory=git_directory).split()
    return roots[-1].decode("ascii")


def _through_near_commits(commit: str, known: dict[str, str], git_directory: Path) -> str | None:
    """Find a remembered root from the newest commits alone, when every way down ends in the same
    one.
    """
    if not known:
        return None
    lines = _git(
        "rev-list", f"--max-count={_NEAR}", "--parents", commit, git_directory=git_directory
    )
    parents = {
        names[0]: names[1:]
        for names in (line.split() for line in lines.decode("ascii").splitlines())
    }
    roots: set[str] = set()
    seen: set[str] = set()
    waiting = [commit]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in known:
            roots.add(known[name])
        elif name not in parents or not parents[name]:
            return None
        else:
            waiting.extend(parents[name])
    return roots.pop() if len(roots) == 1 else None


def _git(*arguments: str, git_directory: Path) -> bytes:
    return run_git(*arguments, environment={"GIT_DIR": os.fspath(git_directory)})


def _remembered(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.split() for line in lines)
    return {
        pair[0]: pair[1] for pair in pairs if len(pair) == 2 and len(pair[0]) == len(pair[1]) >= 40
    }


def _remember(path: Path, known: dict[str, str]) -> None:
    """Write by rename; where the repository is read-only, nothing is remembered or lost."""
    text = "".join(f"{commit} {root}\n" for commit, root in list(known.items())[:_KEPT])
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        part.write_text(text, "ascii")
        part.replace(path)
