"""The project's name: right after every rewrite of history, and found without a walk when known."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_sdk import project
from fairlead_sdk.project import project_of
from tests.fakes.local_repository import LocalRepository


def found(repository: LocalRepository) -> str:
    head = repository.git("rev-parse", "HEAD")
    return project_of(head, git_directory=repository.path / ".git")


def walked(repository: LocalRepository) -> str:
    return repository.git("rev-list", "--max-parents=0", "HEAD").split()[-1]


def test_a_known_head_needs_no_git(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found(repository)
    monkeypatch.setattr(project, "run_git", lambda *_, **__: pytest.fail("git was asked"))
    assert found(repository) == first


def test_a_commit_on_top_needs_no_walk(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found(repository)
    repository.commit("third")
    monkeypatch.setattr(project, "_oldest_root", lambda *_: pytest.fail("all was walked"))
    assert found(repository) == first


def test_rewritten_history_is_another_project(repository: LocalRepository) -> None:
    before = found(repository)
    repository.git("checkout", "-q", "--orphan", "anew")
    repository.commit("another root")
    assert found(repository) == walked(repository) != before
    repository.git("checkout", "-q", "main")
    assert found(repository) == before


def test_the_oldest_root_of_a_merge_counts(repository: LocalRepository) -> None:
    first = found(repository)
    repository.git("checkout", "-q", "--orphan", "anew")
    repository.git("commit", "-q", "-m", "later", env={"GIT_COMMITTER_DATE": "2037-01-01T00:00:00"})
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--allow-unrelated-histories", "-m", "both", "anew")
    assert found(repository) == walked(repository) == first


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"\xff\xfe", b"a b\n" * 3])
def test_a_broken_memo_is_as_good_as_none(repository: LocalRepository, content: bytes) -> None:
    memo = repository.path / ".git" / "fairlead" / "projects"
    memo.parent.mkdir()
    memo.write_bytes(content)
    assert found(repository) == walked(repository)


def test_the_memo_stays_small(repository: LocalRepository) -> None:
    for number in range(3):
        repository.commit(str(number))
        found(repository)
    memo = repository.path / ".git" / "fairlead" / "projects"
    assert len(memo.read_text().splitlines()) == 3
    assert [entry.name for entry in memo.parent.iterdir()] == ["projects"]


def test_a_memo_that_cannot_be_written_is_no_error(
    repository: LocalRepository, tmp_path: Path
) -> None:
    (repository.path / ".git" / "fairlead").write_text("a file in its place")
    assert found(repository) == walked(repository)
