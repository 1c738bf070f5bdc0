"""Uncommitted files travel bit for bit, and what the user has is not touched."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead_limits.table import CHANGES_BYTES
from fairlead_sdk import changes as module
from fairlead_sdk.changes import collect_changes
from fairlead_sdk.changes_memo import ChangesMemo
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.kept_blobs import KeptBlobs
from fairlead_sdk.repository import Repository, read_repository
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.verbatim import Verbatim
from tests.fakes.local_repository import LocalRepository

Dirty = Callable[[LocalRepository], None]


def rebuilt(
    repository: LocalRepository, found: Repository, tmp_path: Path
) -> dict[bytes, tuple[str, bytes]]:
    """Rebuild the tree from the pack in a clone that has HEAD only, as a host does."""
    assert found.changes is not None
    repository.git("clone", "-q", "--bare", "--no-local", ".", str(tmp_path / "host"))
    host = LocalRepository(tmp_path / "host")
    host.receive(found.changes.pack)
    return host.checked_out(found.changes.tree, tmp_path / "checkout")


def modified(repository: LocalRepository) -> None:
    repository.write("source/main.py", b"print('changed')\n")


def untracked(repository: LocalRepository) -> None:
    repository.write("new/deep/file.bin", bytes(range(256)))


def deleted(repository: LocalRepository) -> None:
    (repository.path / "source" / "deep" / "er" / "file.txt").unlink()


def staged(repository: LocalRepository) -> None:
    repository.write("staged", b"in the index\n")
    repository.git("add", "staged")


def staged_then_changed(repository: LocalRepository) -> None:
    staged(repository)
    repository.write("staged", b"in the working directory\n")


def staged_then_deleted(repository: LocalRepository) -> None:
    staged(repository)
    modified(repository)
    (repository.path / "staged").unlink()


def deleted_in_index_only(repository: LocalRepository) -> None:
    repository.git("rm", "-q", "--cached", "readme.txt")
    untracked(repository)


def renamed(repository: LocalRepository) -> None:
    repository.git("mv", "source/main.py", "source/other name.py")


def executable(repository: LocalRepository) -> None:
    (repository.path / "readme.txt").chmod(0o755)


def links(repository: LocalRepository) -> None:
    (repository.path / "to nowhere").symlink_to("does/not/exist")
    (repository.path / "readme.txt").unlink()
    (repository.path / "readme.txt").symlink_to("source")


def directory_becomes_link(repository: LocalRepository) -> None:
    shutil.move(repository.path / "source", repository.path / "moved")
    (repository.path / "source").symlink_to("moved")


def directory_becomes_file(repository: LocalRepository) -> None:
    shutil.rmtree(repository.path / "source")
    repository.write("source", b"a file now\n")


def file_becomes_directory(repository: LocalRepository) -> None:
    (repository.path / "readme.txt").unlink()
    repository.write("readme.txt/inside", b"a directory now\n")


def file_becomes_pipe(repository: LocalRepository) -> None:
    (repository.path / "readme.txt").unlink()
    os.mkfifo(repository.path / "readme.txt")


def odd_names(repository: LocalRepository) -> None:
    for name in (b"caf\xe9", "smörgås".encode(), b'"quoted"', b"back\\slash", b"a\nb\tc", b" x "):
        repository.write(b"odd/" + name, name)


def intent_to_add(repository: LocalRepository) -> None:
    repository.write("intended", b"content\n")
    repository.git("add", "-N", "intended")


def conflict(repository: LocalRepository) -> None:
    repository.git("checkout", "-q", "-b", "side")
    repository.write("readme.txt", b"side\n")
    repository.commit()
    repository.git("checkout", "-q", "main")
    repository.write("readme.txt", b"main\n")
    repository.commit()
    with pytest.raises(Exception, match="merge"):
        repository.git("merge", "-q", "side")


def line_ends(repository: LocalRepository) -> None:
    repository.git("config", "core.autocrlf", "true")
    repository.write("dos.txt", b"one\r\ntwo\r\n")
    repository.write("mixed.txt", b"one\r\ntwo\n")
    repository.write("readme.txt", b"one\r\nmore\r\n")


def attributes(repository: LocalRepository) -> None:
    repository.git("config", "filter.loud.clean", "tr a-z A-Z")
    rules = (
        b"*.loud filter=loud\n*.txt text eol=lf\n*.utf16 working-tree-encoding=UTF-16\n$Id ident\n"
    )
    repository.write(".gitattributes", rules)
    repository.write("a.loud", b"quiet\n")
    repository.write("b.txt", b"dos\r\n")
    repository.write("c.utf16", "text".encode("utf-16"))


def no_index(repository: LocalRepository) -> None:
    (repository.path / ".git" / "index").unlink()
    modified(repository)


def split_index(repository: LocalRepository) -> None:
    repository.git("update-index", "--split-index")
    modified(repository)


def everything_gone(repository: LocalRepository) -> None:
    for entry in repository.path.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


@pytest.mark.parametrize(
    "dirty",
    [
        modified,
        untracked,
        deleted,
        staged,
        staged_then_changed,
        staged_then_deleted,
        deleted_in_index_only,
        renamed,
        executable,
        links,
        directory_becomes_link,
        directory_becomes_file,
        file_becomes_directory,
        file_becomes_pipe,
        odd_names,
        intent_to_add,
        conflict,
        line_ends,
        attributes,
        no_index,
        split_index,
        everything_gone,
    ],
)
def test_the_tree_is_the_working_directory_bit_for_bit(
    dirty: Dirty, repository: LocalRepository, tmp_path: Path
) -> None:
    dirty(repository)
    before = repository.fingerprint()
    files = repository.files()
    found = read_repository(repository.path)
    try:
        assert repository.fingerprint() == before
        assert repository.files() == files
        assert rebuilt(repository, found, tmp_path) == files
    finally:
        found.close()


def test_a_clean_repository_has_no_changes(repository: LocalRepository) -> None:
    assert read_repository(repository.path).changes is None


def test_a_touched_file_is_no_change(repository: LocalRepository) -> None:
    os.utime(repository.path / "readme.txt", (1, 1))
    assert read_repository(repository.path).changes is None


def test_a_staged_change_that_was_taken_back_leaves_nothing_behind(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    repository.write("readme.txt", b"two\n")
    repository.git("add", "readme.txt")
    repository.write("readme.txt", b"one\n")
    assert read_repository(repository.path).changes is None
    assert list((tmp_path / "temporary").iterdir()) == []


def test_ignored_files_stay_at_home(repository: LocalRepository, tmp_path: Path) -> None:
    repository.write(".gitignore", b"*.secret\n/build/\n")
    repository.write("a.secret", b"s")
    repository.write("build/out", b"o")
    repository.write(".git/info/exclude", b"excluded\n")
    repository.write("excluded", b"e")
    found = read_repository(repository.path)
    names = set(rebuilt(repository, found, tmp_path))
    found.close()
    assert b".gitignore" in names
    assert not {b"a.secret", b"build/out", b"excluded"} & names


def test_the_same_changes_have_the_same_tree_and_pack(repository: LocalRepository) -> None:
    untracked(repository)
    first, second = read_repository(repository.path), read_repository(repository.path)
    assert first.changes is not None
    assert second.changes is not None
    assert (first.changes.tree, first.changes.pack) == (second.changes.tree, second.changes.pack)
    first.close()
    second.close()


def test_a_change_of_a_large_file_travels_as_a_difference(repository: LocalRepository) -> None:
    content = os.urandom(1_000_000)
    repository.write("large", content)
    repository.commit()
    repository.write("large", content[:500_000] + b"!" + content[500_000:])
    found = read_repository(repository.path)
    assert found.changes is not None
    assert 0 < len(found.changes.pack) < 10_000
    found.close()


def test_what_is_too_large_to_go_inline_waits_for_the_upload(repository: LocalRepository) -> None:
    repository.write("large", os.urandom(CHANGES_BYTES.count + 1000))
    found = read_repository(repository.path)
    assert found.changes is not None
    assert found.changes.pack == b""
    assert found.noticed == ("dirty_too_large",)
    assert found.changes.make_objects is not None
    objects = found.changes.make_objects().objects
    assert objects.is_dir()
    found.close()
    assert not objects.exists()


def test_hooks_and_filters_of_the_user_do_not_run_on_what_travels(
    repository: LocalRepository, tmp_path: Path
) -> None:
    for name in ("pre-commit", "post-index-change", "fsmonitor-watchman", "reference-transaction"):
        hook = repository.path / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
        hook.chmod(0o755)
    repository.git("config", "core.fsmonitor", ".git/hooks/fsmonitor-watchman")
    untracked(repository)
    (tmp_path / "hook-ran").unlink(missing_ok=True)
    read_repository(repository.path).close()
    assert not (tmp_path / "hook-ran").exists()


def test_an_embedded_repository_is_warned_of_and_left_out(
    repository: LocalRepository, tmp_path: Path
) -> None:
    LocalRepository.make(repository.path / "empty-inner")
    inner = LocalRepository.make(repository.path / "inner")
    inner.write("file", b"content")
    inner.commit()
    modified(repository)
    found = read_repository(repository.path)
    names = set(rebuilt(repository, found, tmp_path))
    found.close()
    assert [warning.split()[0] for warning in found.warnings] == ["empty-inner/", "inner/"]
    assert not any(b"inner" in name for name in names)


def test_a_changed_submodule_is_warned_of(repository: LocalRepository, tmp_path: Path) -> None:
    inner = LocalRepository.make(tmp_path / "inner")
    inner.commit()
    allowed = ("-c", "protocol.file.allow=always")
    repository.git(*allowed, "submodule", "--quiet", "add", str(inner.path), "sub")
    repository.commit()
    LocalRepository(repository.path / "sub").commit("ahead")
    found = read_repository(repository.path)
    assert found.changes is None
    assert "sub is a submodule" in found.warnings[1]


def test_too_much_names_the_file_to_ignore(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(repository.path / "disk.img", "wb") as file:
        file.truncate(2 * 1024**3)
    untracked(repository)
    with pytest.raises(RepositoryError) as caught:
        read_repository(repository.path)
    assert caught.value.reason == "changes_too_large"
    assert "disk.img" in caught.value.message
    assert ".gitignore" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(repository: LocalRepository) -> None:
    repository.write("locked", b"1")
    (repository.path / "locked").chmod(0)
    with pytest.raises(RepositoryError) as caught:
        read_repository(repository.path)
    assert caught.value.reason == "file_unreadable"
    assert "locked" in caught.value.message


@pytest.fixture
def collect(repository: LocalRepository) -> Callable[[bytes], module.Found]:
    commit = repository.git("rev-parse", "HEAD")

    def collected(status: bytes) -> module.Found:
        return collect_changes(
            status,
            find_verbatim=lambda _: Verbatim(),
            top=repository.path,
            objects=repository.path / ".git" / "objects",
            commit=commit,
            object_format="sha1",
            scratch=Scratch(),
            memo=ChangesMemo(git_directory=repository.path / ".git"),
            kept=KeptBlobs(git_directory=repository.path / ".git"),
        )

    return collected


def test_a_file_that_vanished_since_the_listing_is_left_out(
    collect: Callable[[bytes], module.Found],
) -> None:
    assert collect(b"? gone\0").changes is None


def test_a_file_that_never_holds_still_is_an_error(
    collect: Callable[[bytes], module.Found],
    repository: LocalRepository,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    repository.write("busy", b"1")
    real = os.open

    def growing(path: bytes, flags: int, *rest: int, **more: int) -> int:
        if os.fsencode(path).endswith(b"busy"):
            with open(path, "ab") as file:
                file.write(b"more")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", growing)
    with pytest.raises(RepositoryError) as caught:
        collect(b"? busy\0")
    monkeypatch.undo()
    assert caught.value.reason == "files_changing"
    assert caught.value.message.startswith("busy ")
    assert list((tmp_path / "temporary").iterdir()) == []
