"""The git repository around a path, as a launch needs it. Nothing here writes to the repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead_sdk.changes import Changes, collect_changes
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.git import GitAnswer, finish_git, start_git
from fairlead_sdk.project import project_of
from fairlead_sdk.scratch import Scratch

_FACTS = (
    "rev-parse",
    "--is-bare-repository",
    "--is-shallow-repository",
    "--show-object-format",
    "HEAD",
    "--symbolic-full-name",
    "HEAD",
    "--path-format=absolute",
    "--git-dir",
    "--git-common-dir",
    "--git-path",
    "objects",
    "--show-toplevel",
    "--show-prefix",
)
_STATUS = (
    "status",
    "--porcelain=v2",
    "-z",
    "--untracked-files=all",
    "--no-renames",
    "--ignore-submodules=none",
)


@dataclass(frozen=True, slots=True)
class Tip:
    """A ref and the commit that it names."""

    ref: str
    commit: str


@dataclass(frozen=True, slots=True)
class Repository:
    """What a launch says of the repository on this machine.

    `directory` is the launched path relative to `top`, empty for the top itself; `branch` is empty
    when HEAD is detached; `digest` is empty when git could not list the heads. `warnings` are
    sentences for a person.
    """

    top: Path
    git_directory: Path
    objects: Path
    directory: str
    commit: str
    branch: str
    object_format: str
    project: str
    digest: str
    tips: tuple[Tip, ...]
    changes: Changes | None
    warnings: tuple[str, ...]

    def close(self) -> None:
        """Remove the temporary objects of the changes, if there are any."""
        if self.changes is not None:
            self.changes.close()


def read_repository(
    path: str | os.PathLike[str], *, clean: bool = False, scratch: Scratch | None = None
) -> Repository:
    """Read the repository around `path`; with `clean` the uncommitted changes stay at home.

    Closing `scratch` gives the reading up, wherever it is.

    Raises `RepositoryError` with the reason `path_not_found`, `path_not_directory`,
    `not_a_repository`, `repository_bare`, `repository_empty`, `shallow_repository`,
    `repository_not_trusted`, `repository_unreadable`, `git_missing`, or one of those of
    `collect_changes`. Close what it returns.
    """
    place = Path(path)
    _require_directory(place)
    facts = start_git(*_FACTS, directory=place)
    heads = start_git("show-ref", "--heads", directory=place)
    status = None if clean else start_git(*_STATUS, directory=place)
    started = [process for process in (facts, heads, status) if process is not None]
    try:
        place_facts = _facts(place, finish_git(facts))
        project = project_of(place_facts.commit, git_directory=place_facts.common_directory)
        heads_answer = finish_git(heads)
        status_answer = None if status is None else finish_git(status)
    finally:
        _stop(started)
    changes = None
    warnings: tuple[str, ...] = ()
    if (place_facts.top / ".gitmodules").exists():
        warnings = ("The repository has submodules: their files do not travel.",)
    if status_answer is not None:
        if status_answer.status != 0:
            raise _unreadable(place, status_answer)
        found = collect_changes(
            status_answer.stdout,
            top=place_facts.top,
            objects=place_facts.objects,
            commit=place_facts.commit,
            object_format=place_facts.object_format,
            scratch=scratch or Scratch(),
        )
        changes, warnings = found.changes, (*warnings, *found.warnings)
    return Repository(
        top=place_facts.top,
        git_directory=place_facts.git_directory,
        objects=place_facts.objects,
        directory=place_facts.directory,
        commit=place_facts.commit,
        branch=place_facts.branch,
        object_format=place_facts.object_format,
        project=project,
        digest=hashlib.sha256(heads_answer.stdout).hexdigest() if heads_answer.status == 0 else "",
        tips=_tips(heads_answer),
        changes=changes,
        warnings=warnings,
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    top: Path
    git_directory: Path
    common_directory: Path
    objects: Path
    directory: str
    commit: str
    branch: str
    object_format: str


def _require_directory(place: Path) -> None:
    if place.is_dir():
        return
    if not os.path.lexists(place) or not place.exists():
        raise RepositoryError(
            f"There is nothing at {place}.",
            reason="path_not_found",
            remedy="Give the path of a directory inside a git repository.",
        )
    raise RepositoryError(
        f"{place} is a file, not a directory.",
        reason="path_not_directory",
        remedy=f"Launch its directory: {place.parent}.",
    )


def _facts(place: Path, answer: GitAnswer) -> _Facts:
    lines = os.fsdecode(answer.stdout).split("\n")[:-1]
    if lines[:1] == ["true"]:
        raise RepositoryError(
            f"{place} is a bare repository: it has no files to launch.",
            reason="repository_bare",
            remedy="Clone it, and launch the clone.",
        )
    if answer.status != 0:
        raise _refusal(place, lines, answer)
    if lines[1] == "true":
        raise RepositoryError(
            f"The repository at {place} is shallow: it lacks history that a host needs.",
            reason="shallow_repository",
            remedy="git fetch --unshallow",
        )
    if len(lines) != 10:
        raise RepositoryError(
            f"The path of the repository at {place!s} holds a line break.",
            reason="repository_unreadable",
            remedy="Rename the directory.",
        )
    _, _, object_format, commit, head, git_directory, shared, objects, top, prefix = lines
    return _Facts(
        top=Path(top),
        git_directory=Path(git_directory),
        common_directory=Path(shared),
        objects=Path(objects),
        directory=prefix.rstrip("/"),
        commit=commit,
        branch=head.removeprefix("refs/heads/") if head.startswith("refs/heads/") else "",
        object_format=object_format,
    )


def _refusal(place: Path, lines: Sequence[str], answer: GitAnswer) -> RepositoryError:
    if "not a git repository" in answer.stderr:
        return RepositoryError(
            f"{place} is not inside a git repository.",
            reason="not_a_repository",
            remedy="git init && git add . && git commit, or give the path of a repository.",
        )
    if "dubious ownership" in answer.stderr:
        return RepositoryError(
            f"git does not trust the repository at {place}, because somebody else owns it.",
            reason="repository_not_trusted",
            remedy="git config --global --add safe.directory <its path>",
        )
    if "must be run in a work tree" in answer.stderr:
        return RepositoryError(
            f"{place} is inside a git directory, not among the files of a repository.",
            reason="repository_bare",
            remedy="Give the path of the repository's files.",
        )
    if len(lines) >= 3 and "HEAD" in answer.stderr:
        return RepositoryError(
            f"The repository at {place} has no commit yet.",
            reason="repository_empty",
            remedy="git add . && git commit",
        )
    return _unreadable(place, answer)


def _unreadable(place: Path, answer: GitAnswer) -> RepositoryError:
    sentence = answer.stderr.strip().splitlines()
    return RepositoryError(
        f"git cannot read the repository at {place}:"
        f" {sentence[0] if sentence else 'no reason given'}",
        reason="repository_unreadable",
        remedy="git fsck",
    )


def _tips(answer: GitAnswer) -> tuple[Tip, ...]:
    lines = answer.stdout.decode("utf-8", "replace").splitlines()
    return tuple(
        Tip(ref=ref, commit=commit) for commit, ref in (line.split(" ", 1) for line in lines)
    )


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
