"""The table of stats finds what `git status` finds, launch after launch, and the memo of the pack
never gives yesterday's bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead_sdk import repository as module
from fairlead_sdk.changes_memo import ChangesMemo
from fairlead_sdk.git import finish_git
from fairlead_sdk.repository import read_repository
from fairlead_sdk.stat_table import start_status
from tests.fakes.local_repository import LocalRepository

Edit = Callable[[LocalRepository], None]


def listed(repository: LocalRepository) -> bytes:
    status = start_status(repository.path, git_directory=str(repository.path / ".git"))
    answer = finish_git(status)
    assert answer.status == 0, answer.stderr
    return answer.stdout


def listed_by_git(repository: LocalRepository) -> bytes:
    answer = finish_git(start_status(repository.path))
    assert answer.status == 0, answer.stderr
    return answer.stdout


def tables(repository: LocalRepository) -> list[str]:
    return [path.name for path in (repository.path / ".git" / "fairlead").glob("stats-*")]


def modified(repository: LocalRepository) -> None:
    repository.write("readme.txt", b"changed\n")


def of_the_same_size(repository: LocalRepository) -> None:
    repository.write("readme.txt", b"two\n")


def with_the_old_time(repository: LocalRepository) -> None:
    before = os.stat(repository.path / "readme.txt")
    repository.write("readme.txt", b"two\n")
    times = (before.st_atime_ns, before.st_mtime_ns)
    os.utime(repository.path / "readme.txt", ns=times)


def made_executable(repository: LocalRepository) -> None:
    (repository.path / "readme.txt").chmod(0o755)


def untracked_deep_down(repository: LocalRepository) -> None:
    repository.write("source/deep/er/new", b"1")


def in_an_empty_directory(repository: LocalRepository) -> None:
    (repository.path / "hollow").mkdir()
    listed(repository)
    repository.write("hollow/new", b"1")


def ignored_then_not(repository: LocalRepository) -> None:
    repository.write(".gitignore", b"*.log\n")
    repository.write("a.log", b"1")
    assert b"a.log" not in listed(repository)
    repository.write(".gitignore", b"")


def ignored_by_a_deeper_file(repository: LocalRepository) -> None:
    repository.write("source/new.log", b"1")
    assert b"new.log" in listed(repository)
    repository.write("source/.gitignore", b"*.log\n")


def excluded(repository: LocalRepository) -> None:
    repository.write("new", b"1")
    assert b"new" in listed(repository)
    repository.write(".git/info/exclude", b"new\n")


def excluded_by_configuration(repository: LocalRepository) -> None:
    repository.write("new", b"1")
    assert b"new" in listed(repository)
    (repository.path.parent / "ignore").write_bytes(b"new\n")
    repository.git("config", "core.excludesFile", str(repository.path.parent / "ignore"))


def file_becomes_directory(repository: LocalRepository) -> None:
    (repository.path / "readme.txt").unlink()
    repository.write("readme.txt/inside", b"1")


def directory_becomes_file(repository: LocalRepository) -> None:
    shutil.rmtree(repository.path / "source")
    repository.write("source", b"1")


def directory_becomes_link(repository: LocalRepository) -> None:
    shutil.move(repository.path / "source", repository.path / "moved")
    (repository.path / "source").symlink_to("moved")


def staged(repository: LocalRepository) -> None:
    repository.write("new", b"1")
    repository.git("add", "new")


def committed(repository: LocalRepository) -> None:
    repository.write("new", b"1")
    listed(repository)
    repository.commit()


def head_moved_under_the_index(repository: LocalRepository) -> None:
    repository.git("reset", "-q", "--soft", "HEAD~1")


def branch_switched(repository: LocalRepository) -> None:
    repository.git("checkout", "-q", "-b", "side", "HEAD~1")


def assumed_unchanged(repository: LocalRepository) -> None:
    repository.git("update-index", "--assume-unchanged", "readme.txt")
    listed(repository)
    repository.write("readme.txt", b"changed behind git's back\n")


def sparse(repository: LocalRepository) -> None:
    repository.git("sparse-checkout", "set", "--cone", "source/deep")
    listed(repository)
    repository.write("source/deep/er/file.txt", b"changed\n")


def submodule(repository: LocalRepository) -> None:
    inner = LocalRepository.make(repository.path.parent / "inner")
    inner.commit()
    allowed = ("-c", "protocol.file.allow=always")
    repository.git(*allowed, "submodule", "--quiet", "add", str(inner.path), "sub")
    repository.commit()
    listed(repository)
    LocalRepository(repository.path / "sub").write("new", b"1")


def embedded_repository(repository: LocalRepository) -> None:
    repository.write("inner/file", b"1")
    listed(repository)
    LocalRepository.make(repository.path / "inner")


def untracked_cache_of_the_user(repository: LocalRepository) -> None:
    repository.git("update-index", "--untracked-cache", "--split-index")
    repository.git("status")
    repository.write("new", b"1")


def an_index_of_version_4(repository: LocalRepository) -> None:
    repository.git("update-index", "--index-version", "4")
    repository.write("readme.txt", b"changed\n")


@pytest.mark.parametrize(
    "edit",
    [
        modified,
        of_the_same_size,
        with_the_old_time,
        made_executable,
        untracked_deep_down,
        in_an_empty_directory,
        ignored_then_not,
        ignored_by_a_deeper_file,
        excluded,
        excluded_by_configuration,
        file_becomes_directory,
        directory_becomes_file,
        directory_becomes_link,
        staged,
        committed,
        head_moved_under_the_index,
        branch_switched,
        assumed_unchanged,
        sparse,
        submodule,
        embedded_repository,
        untracked_cache_of_the_user,
        an_index_of_version_4,
    ],
)
def test_after_any_edit_the_table_finds_what_git_finds(
    edit: Edit, repository: LocalRepository
) -> None:
    assert listed(repository) == listed_by_git(repository)
    edit(repository)
    before = repository.fingerprint()
    assert listed(repository) == listed_by_git(repository)
    assert listed(repository) == listed_by_git(repository)
    assert repository.fingerprint() == before
    assert len(tables(repository)) <= 1


def test_a_write_of_the_same_size_in_the_same_second_is_noticed(
    repository: LocalRepository,
) -> None:
    for number in range(30):
        content = b"%03d\n" % number
        repository.write("readme.txt", content)
        found = read_repository(repository.path)
        assert found.changes is not None
        tree = repository.git("hash-object", "--stdin", stdin=content)
        host = repository.path.parent / f"host-{number}"
        repository.git("clone", "-q", "--bare", "--no-local", ".", str(host))
        LocalRepository(host).receive(found.changes.pack)
        listing = LocalRepository(host).git("ls-tree", found.changes.tree, "readme.txt")
        assert tree in listing
        found.close()


def test_the_table_is_another_one_for_another_index(repository: LocalRepository) -> None:
    listed(repository)
    first = tables(repository)
    repository.write("new", b"1")
    repository.git("add", "new")
    listed(repository)
    assert len(tables(repository)) == 1
    assert tables(repository) != first


def test_without_a_place_for_the_table_git_reads_its_own_index(
    repository: LocalRepository,
) -> None:
    (repository.path / ".git" / "fairlead").write_bytes(b"a file is in the way")
    modified(repository)
    found = read_repository(repository.path)
    assert found.changes is not None
    found.close()


def test_a_damaged_table_is_no_obstacle(repository: LocalRepository) -> None:
    modified(repository)
    listed(repository)
    (table,) = (repository.path / ".git" / "fairlead").glob("stats-*")
    table.write_bytes(b"this is no index")
    found = read_repository(repository.path)
    assert found.changes is not None
    found.close()


def old(repository: LocalRepository, *names: str) -> None:
    """Let the clock of the file system pass the last tick in which these were written."""
    newest = max(os.stat(repository.path / name).st_ctime_ns for name in names)
    probe = repository.path / ".git" / "probe"
    while True:
        probe.write_bytes(b"")
        if os.stat(probe).st_mtime_ns > newest:
            break
    probe.unlink()


def test_the_same_files_need_no_pack_to_be_made(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    modified(repository)
    old(repository, "readme.txt")
    first = read_repository(repository.path)
    from fairlead_sdk import changes

    monkeypatch.setattr(changes, "import_tree", None)
    second = read_repository(repository.path)
    assert first.changes is not None
    assert second.changes is not None
    assert (first.changes.tree, first.changes.pack) == (second.changes.tree, second.changes.pack)


@pytest.mark.parametrize(
    "edit", [of_the_same_size, with_the_old_time, made_executable, committed, staged]
)
def test_other_files_have_another_pack(edit: Edit, repository: LocalRepository) -> None:
    modified(repository)
    old(repository, "readme.txt")
    first = read_repository(repository.path)
    edit(repository)
    second = read_repository(repository.path)
    assert first.changes is not None
    assert second.changes is None or first.changes.tree != second.changes.tree


def test_what_was_written_in_the_tick_of_reading_is_not_kept(repository: LocalRepository) -> None:
    memo = ChangesMemo(git_directory=repository.path / ".git")
    memo.begin()
    modified(repository)
    facts = os.lstat(repository.path / "readme.txt")
    file = _Stamped(
        b"readme.txt",
        (
            facts.st_dev,
            facts.st_mode,
            facts.st_size,
            facts.st_mtime_ns,
            facts.st_ctime_ns,
            facts.st_ino,
        ),
    )
    memo.keep("c" * 40, [file], "t" * 40, b"PACK")
    assert memo.find("c" * 40, [file]) is None


def test_a_memo_that_was_cut_off_is_no_memo(repository: LocalRepository) -> None:
    memo = ChangesMemo(git_directory=repository.path / ".git")
    old(repository, "readme.txt")
    memo.begin()
    file = _Stamped(b"gone", ())
    memo.keep("c" * 40, [file], "t" * 40, b"PACKPACK")
    assert memo.find("c" * 40, [file]) == ("t" * 40, b"PACKPACK")
    place = repository.path / ".git" / "fairlead" / "changes"
    assert place.stat().st_mode & 0o777 == 0o600
    for size in range(len(place.read_bytes())):
        place.write_bytes(place.read_bytes()[:-1])
        assert memo.find("c" * 40, [file]) is None, size


class _Stamped:
    def __init__(self, path: bytes, stamp: tuple[int, ...]) -> None:
        self.path = path
        self.stamp = stamp


def test_ignored_files_never_travel_and_untracked_ones_do(
    repository: LocalRepository, tmp_path: Path
) -> None:
    for _ in range(3):
        repository.write(".gitignore", b"*.secret\n")
        repository.write("a.secret", b"s")
        repository.write("new", b"n")
        found = module.read_repository(repository.path)
        assert found.changes is not None
        assert found.changes.files == 2
        found.close()
