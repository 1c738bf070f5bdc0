"""The git repository around a path, as a launch needs it. Nothing here writes to the repository."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead_sdk.changes import Changes, collect_changes
from fairlead_sdk.changes_memo import ChangesMemo
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.git import GitAnswer, finish_git, start_git
from fairlead_sdk.git_place import find_place
from fairlead_sdk.kept_blobs import KeptBlobs, ReadProgress
from fairlead_sdk.project import project_of
from fairlead_sdk.refs_reader import Unsure
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.stat_table import start_status
from fairlead_sdk.verbatim import find_verbatim

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

_MOST_READINGS = 10


@dataclass(frozen=True, slots=True)
class Tip:
    """A ref and the commit that it names."""

    ref: str
    commit: str


@dataclass(frozen=True, slots=True)
class Repository:
    """What a launch says of the repository on this machine.

    `directory` is the launched path relative to `top`, empty for the top itself; `branch` is empty
    when HEAD is detached; `digest` is empty when there are no heads or git refuses to list them.
    `noticed` names what could not be done, as `Source.noticed` of the protocol counts it;
    `warnings` are sentences for a person.
    """

    top: Path
    git_directory: Path
    common_directory: Path
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
    noticed: tuple[str, ...]

    def close(self) -> None:
        """Remove the temporary objects of the changes, if there are any."""
        if self.changes is not None:
            self.changes.close()


def read_repository(
    path: str | os.PathLike[str],
    *,
    clean: bool = False,
    submodules: bool = False,
    scratch: Scratch | None = None,
    on_read: ReadProgress | None = None,
) -> Repository:
    """Read the repository around `path`; with `clean` the uncommitted changes stay at home, and
    without `submodules` a warning says that their files do.

    Closing `scratch` gives the reading up, wherever it is. `on_read` hears, in any thread, how much
    of large changes was read.

    Raises `RepositoryError` with the reason `path_not_found`, `path_not_directory`,
    `not_a_repository`, `repository_bare`, `repository_empty`, `shallow_repository`,
    `repository_not_trusted`, `repository_unreadable`, `branch_invalid`, `git_missing`, or one of
    those of `collect_changes`. Close what it returns.
    """
    place = Path(path)
    _require_directory(place)
    for _ in range(_MOST_READINGS):
        reading = _read(place, clean=clean)
        if reading is not None:
            return _repository(
                *reading, scratch or Scratch(), submodules=submodules, on_read=on_read
            )
    raise RepositoryError(
        f"The commit of the repository at {place} changes all the time.",
        reason="repository_unreadable",
        remedy="Try again when git has finished there.",
    )


def _read(place: Path, *, clean: bool) -> tuple[_Facts, str, GitAnswer, GitAnswer | None] | None:
    """Give facts, project, heads and status; None when HEAD moved in between: then the status is of
    another commit.
    """
    try:
        found = find_place(os.fspath(place), environment=os.environ)
    except Unsure:
        return _asked_of_git(place, clean=clean)
    git_directory = found.git_directory
    status = None if clean else start_status(found.top, git_directory=git_directory)
    try:
        facts = _Facts(
            top=Path(found.top),
            git_directory=Path(git_directory),
            common_directory=Path(found.common_directory),
            objects=Path(found.common_directory) / "objects",
            directory=found.prefix,
            commit=found.commit,
            branch=found.branch,
            object_format="sha1",
        )
        project = project_of(facts.commit, git_directory=facts.common_directory)
        answer = None if status is None else finish_git(status)
    finally:
        _stop([] if status is None else [status])
    if answer is not None and answer.status != 0:
        answer = finish_git(start_status(found.top))
    if answer is not None and found.has_moved():
        return None
    heads = GitAnswer(0 if found.heads.listing else 1, found.heads.listing, "")
    return facts, project, heads, answer


def _asked_of_git(
    place: Path, *, clean: bool
) -> tuple[_Facts, str, GitAnswer, GitAnswer | None] | None:
    """Read the repository as git reads it, with a process for each question, all at once."""
    asked = start_git(*_FACTS, directory=place)
    heads = start_git("show-ref", "--heads", directory=place)
    status = None if clean else start_status(place)
    started = [process for process in (asked, heads, status) if process is not None]
    try:
        facts = _facts(place, finish_git(asked))
        project = project_of(facts.commit, git_directory=facts.common_directory)
        heads_answer = finish_git(heads)
        status_answer = None if status is None else finish_git(status)
    finally:
        _stop(started)
    if (
        status_answer is not None
        and _facts(place, finish_git(start_git(*_FACTS, directory=place))) != facts
    ):
        return None
    return facts, project, heads_answer, status_answer


def _repository(
    facts: _Facts,
    project: str,
    heads: GitAnswer,
    status: GitAnswer | None,
    scratch: Scratch,
    *,
    submodules: bool,
    on_read: ReadProgress | None,
) -> Repository:
    _require_text(facts.branch)
    changes = None
    warnings: list[str] = []
    noticed: list[str] = []
    if heads.status not in (0, 1):
        noticed.append("client_refs_unreadable")
        warnings.append(f"git cannot list the branches ({heads.stderr.strip()}); git fsck helps.")
    if not submodules and (facts.top / ".gitmodules").exists():
        warnings.append("The repository has submodules: their files do not travel.")
    if status is not None:
        if status.status != 0:
            raise _unreadable(facts.top, status)
        found = collect_changes(
            status.stdout,
            find_verbatim=lambda listed: find_verbatim(
                top=facts.top,
                git_directory=facts.git_directory,
                common_directory=facts.common_directory,
                object_format=facts.object_format,
                listed=listed,
            ),
            top=facts.top,
            objects=facts.objects,
            commit=facts.commit,
            object_format=facts.object_format,
            scratch=scratch,
            memo=ChangesMemo(git_directory=facts.git_directory),
            kept=KeptBlobs(git_directory=facts.git_directory),
            on_read=on_read,
        )
        changes = found.changes
        warnings += found.warnings
    if changes is not None and not changes.pack:
        noticed.append("dirty_too_large")
    return Repository(
        top=facts.top,
        git_directory=facts.git_directory,
        common_directory=facts.common_directory,
        objects=facts.objects,
        directory=facts.directory,
        commit=facts.commit,
        branch=facts.branch,
        object_format=facts.object_format,
        project=project,
        digest=hashlib.sha256(heads.stdout).hexdigest() if heads.status == 0 else "",
        tips=_tips(heads) if heads.status == 0 else (),
        changes=changes,
        warnings=tuple(warnings),
        noticed=tuple(noticed),
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


def has_changes(repository: Repository) -> bool:
    """Say whether there are uncommitted changes; what git cannot tell is none."""
    status = start_status(repository.top, git_directory=os.fspath(repository.git_directory))
    return bool(finish_git(status).stdout)


def _require_text(branch: str) -> None:
    try:
        branch.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(branch).decode("utf-8", "backslashreplace")
        raise RepositoryError(
            f"The branch here, {shown}, is not UTF-8: no request can carry its name.",
            reason="branch_invalid",
            remedy="Rename it, git branch -m NAME, or detach HEAD: git checkout --detach",
            fields={"field": "source.branch"},
        ) from None


def _facts(place: Path, answer: GitAnswer) -> _Facts:
    with contextlib.suppress(OSError):  # the current directory may be gone
        place = place.absolute()
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
        from fairlead_sdk.broken_repository import broken_repository

        return broken_repository(place) or RepositoryError(
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
    first, *rest = answer.stderr.strip().splitlines() or ["no reason given"]
    # The lines that are indented belong to the first one: the names of extensions.
    sentence = " ".join([first, *(line.strip() for line in rest if line[:1].isspace())])
    is_newer = "unknown repository extension" in first or "git repo version" in first
    return RepositoryError(
        f"git cannot read the repository at {place}: {sentence}",
        reason="repository_unreadable",
        remedy="Install a newer git here; a newer one made it." if is_newer else "git fsck",
    )


def _tips(answer: GitAnswer) -> tuple[Tip, ...]:
    lines = answer.stdout.decode("utf-8", "replace").split("\n")[:-1]
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
