"""Finding and describing the repository around a path."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead_sdk import stat_table
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.repository import read_repository
from tests.fakes.local_repository import LocalRepository


def test_describes_head_heads_and_project(repository: LocalRepository) -> None:
    repository.git("branch", "side", "HEAD~1")
    found = read_repository(repository.path)
    heads = repository.git_bytes("show-ref", "--heads")
    assert found.commit == repository.git("rev-parse", "HEAD")
    assert found.branch == "main"
    assert found.object_format == "sha1"
    assert found.project == repository.git("rev-list", "--max-parents=0", "HEAD")
    assert found.digest == hashlib.sha256(heads).hexdigest()
    assert [tip.ref for tip in found.tips] == ["refs/heads/main", "refs/heads/side"]
    assert found.changes is None
    assert found.directory == ""
    assert found.warnings == ()


def test_a_subdirectory_launches_the_whole_repository_from_there(
    repository: LocalRepository,
) -> None:
    found = read_repository(repository.path / "source" / "deep")
    assert found.top == repository.path
    assert found.directory == "source/deep"


def test_a_detached_head_has_no_branch(repository: LocalRepository) -> None:
    repository.git("checkout", "-q", "--detach")
    assert read_repository(repository.path).branch == ""


def test_a_repository_without_heads_has_no_digest(repository: LocalRepository) -> None:
    repository.git("checkout", "-q", "--detach")
    repository.git("branch", "-D", "main")
    found = read_repository(repository.path)
    assert found.digest == ""
    assert found.tips == ()


def test_sha256_repositories_work(tmp_path: Path) -> None:
    made = LocalRepository.make(tmp_path / "work", "--object-format=sha256")
    made.write("file", b"1")
    commit = made.commit()
    made.write("file", b"2")
    found = read_repository(made.path)
    assert found.object_format == "sha256"
    assert found.commit == commit
    assert len(commit) == 64
    assert found.changes is not None
    assert len(found.changes.tree) == 64
    found.close()


def test_a_linked_worktree_works(repository: LocalRepository, tmp_path: Path) -> None:
    repository.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    (tmp_path / "linked" / "readme.txt").write_bytes(b"changed\n")
    found = read_repository(tmp_path / "linked")
    assert found.branch == "side"
    assert found.objects == repository.path / ".git" / "objects"
    assert found.changes is not None
    found.close()


def test_variables_of_a_hook_do_not_lead_astray(
    repository: LocalRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LocalRepository.make(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.path / ".git" / "index"))
    assert read_repository(repository.path).top == repository.path


def test_submodules_are_warned_of(repository: LocalRepository, tmp_path: Path) -> None:
    inner = LocalRepository.make(tmp_path / "inner")
    inner.commit()
    repository.git(
        "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.path), "sub"
    )
    repository.commit("with a submodule")
    assert "submodules" in read_repository(repository.path).warnings[0]
    assert read_repository(repository.path, submodules=True).warnings == ()


def test_a_branch_that_is_not_utf_8_is_named_with_a_remedy(repository: LocalRepository) -> None:
    name = repository.path / ".git" / "refs" / "heads" / os.fsdecode(b"caf\xe9")
    name.write_text(repository.git("rev-parse", "HEAD") + "\n")
    (repository.path / ".git" / "HEAD").write_bytes(b"ref: refs/heads/caf\xe9\n")
    with pytest.raises(RepositoryError) as caught:
        read_repository(repository.path)
    assert caught.value.reason == "branch_invalid"
    assert "caf\\xe9" in caught.value.message
    assert "git branch -m" in caught.value.remedy
    assert caught.value.fields == {"field": "source.branch"}


def test_names_of_branches_may_hold_what_ends_a_line_elsewhere(repository: LocalRepository) -> None:
    repository.git("branch", "a\u2028b\u0085c")
    refs = [tip.ref for tip in read_repository(repository.path).tips]
    assert refs == ["refs/heads/a\u2028b\u0085c", "refs/heads/main"]


def nowhere(path: Path) -> Path:
    return path / "nowhere"


def a_file(path: Path) -> Path:
    LocalRepository.make(path).write("file")
    return path / "file"


def no_repository(path: Path) -> Path:
    return path


def no_commit(path: Path) -> Path:
    LocalRepository.make(path)
    return path


def bare(path: Path) -> Path:
    LocalRepository.make(path, "--bare")
    return path


def inside_git_directory(path: Path) -> Path:
    made = LocalRepository.make(path)
    made.commit()
    return path / ".git" / "objects"


def shallow(path: Path) -> Path:
    made = LocalRepository.make(path / "whole")
    made.commit("first")
    made.commit("second")
    made.git("clone", "-q", "--depth=1", f"file://{made.path}", str(path / "cut"))
    return path / "cut"


def broken_head(path: Path) -> Path:
    made = LocalRepository.make(path)
    made.commit()
    shutil.rmtree(path / ".git" / "objects")
    (path / ".git" / "objects").mkdir()
    return path


def no_head(path: Path) -> Path:
    LocalRepository.make(path).commit()
    (path / ".git" / "HEAD").write_bytes(b"")
    return path


def no_git_directory(path: Path) -> Path:
    (path / ".git").write_text("gitdir: ../gone\n")
    return path


def no_objects(path: Path) -> Path:
    LocalRepository.make(path).commit()
    shutil.rmtree(path / ".git" / "objects")
    return path


def of_a_newer_git(path: Path) -> Path:
    made = LocalRepository.make(path)
    made.commit()
    made.git("config", "core.repositoryFormatVersion", "1")
    made.git("config", "extensions.fromTheFuture", "true")
    return path


@pytest.mark.parametrize(
    ("make", "reason", "remedy"),
    [
        (nowhere, "path_not_found", "path"),
        (a_file, "path_not_directory", "directory"),
        (no_repository, "not_a_repository", "git init"),
        (no_commit, "repository_empty", "git commit"),
        (bare, "repository_bare", "Clone"),
        (inside_git_directory, "repository_bare", "path"),
        (shallow, "shallow_repository", "git fetch --unshallow"),
        (broken_head, "repository_unreadable", "git fsck"),
        (no_head, "repository_unreadable", "/.git/HEAD"),
        (no_git_directory, "repository_unreadable", "git worktree repair"),
        (no_objects, "repository_unreadable", "clone again"),
        (of_a_newer_git, "repository_unreadable", "newer git"),
    ],
)
def test_what_cannot_be_launched_says_why(
    make: Callable[[Path], Path], reason: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "place").mkdir()
    with pytest.raises(RepositoryError) as caught:
        read_repository(make(tmp_path / "place"))
    assert caught.value.reason == reason
    assert remedy in caught.value.remedy
    assert caught.value.message.endswith(".") or reason == "repository_unreadable"


def test_a_refusal_names_the_place_and_what_git_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(of_a_newer_git(tmp_path / "newer"))
    with pytest.raises(RepositoryError, match="fromthefuture"):
        read_repository(".")
    monkeypatch.chdir(no_commit(tmp_path / "empty"))
    with pytest.raises(RepositoryError) as caught:
        read_repository(".")
    assert caught.value.message == f"The repository at {tmp_path / 'empty'} has no commit yet."


def test_without_git_the_remedy_is_named(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.fspath(repository.path))
    with pytest.raises(RepositoryError) as caught:
        read_repository(repository.path)
    assert caught.value.reason == "git_missing"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_repository_is_not_trusted(repository: LocalRepository) -> None:
    for place in (repository.path, *repository.path.rglob("*")):
        os.lchown(place, 12345, 12345)
    with pytest.raises(RepositoryError) as caught:
        read_repository(repository.path)
    assert caught.value.reason == "repository_not_trusted"
    assert "safe.directory" in caught.value.remedy


def test_clean_leaves_changes_at_home(repository: LocalRepository) -> None:
    repository.write("readme.txt", b"changed\n")
    assert read_repository(repository.path, clean=True).changes is None


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sha256", [False, True])
def test_a_commit_beside_the_reading_is_the_one_that_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sha256: bool, packed: bool
) -> None:
    made = LocalRepository.make(tmp_path / "work", *(["--object-format=sha256"] if sha256 else []))
    made.write("file", b"1")
    made.commit()
    made.write("file", b"2")
    commits: list[str] = []

    def start_status(directory: Path, *, git_directory: str = "") -> subprocess.Popen[bytes]:
        if not commits:
            commits.append(made.commit())
            if packed:
                made.git("pack-refs", "--all")
        return stat_table.start_status(directory, git_directory=git_directory)

    monkeypatch.setattr("fairlead_sdk.repository.start_status", start_status)
    found = read_repository(made.path)
    assert (found.commit, found.changes) == (commits[0], None)


@pytest.mark.parametrize("detached", [False, True])
def test_a_branch_that_is_packed_beside_the_reading_has_not_moved(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch, detached: bool
) -> None:
    if detached:
        repository.git("checkout", "-q", "--detach")
    asked: list[Path] = []

    def start_status(directory: Path, *, git_directory: str = "") -> subprocess.Popen[bytes]:
        asked.append(directory)
        repository.git("pack-refs", "--all")
        return stat_table.start_status(directory, git_directory=git_directory)

    monkeypatch.setattr("fairlead_sdk.repository.start_status", start_status)
    assert read_repository(repository.path).commit == repository.git("rev-parse", "HEAD")
    assert len(asked) == 1


def test_a_repository_whose_commit_changes_all_the_time_is_refused(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_status(directory: Path, *, git_directory: str = "") -> subprocess.Popen[bytes]:
        repository.git("commit", "-q", "--allow-empty", "-m", "another")
        return stat_table.start_status(directory, git_directory=git_directory)

    monkeypatch.setattr("fairlead_sdk.repository.start_status", start_status)
    with pytest.raises(RepositoryError) as refused:
        read_repository(repository.path)
    assert refused.value.reason == "repository_unreadable"
