"""Finding and describing the repository around a path."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

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
