"""The disk port: whole files, exclusive names, and what a power cut takes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.disk import PowerCutDisk
from workspace_provisioner.disk.file_disk import FileDisk, boot_id
from workspace_provisioner.ports import Disk

MAKERS: list[Callable[[Path], Disk]] = [lambda root: FileDisk(), PowerCutDisk]


@pytest.fixture(params=MAKERS, ids=["files", "power cut"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    made: Disk = request.param(tmp_path)
    return made


def test_a_file_is_replaced_as_a_whole(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert disk.read(path) is None
    disk.write_whole(path, b"old")
    disk.write_whole(path, b"new" * 100_000)
    assert disk.read(path) == b"new" * 100_000
    assert disk.names(tmp_path) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_exclusive_name_has_one_winner_and_is_never_half(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "a/b/claim"
    path.parent.mkdir(parents=True)
    barrier, won = threading.Barrier(8), []

    def take(content: bytes) -> None:
        barrier.wait()
        if disk.make_exclusive(path, content):
            won.append(content)

    threads = [threading.Thread(target=take, args=(b"%d" % each * 1000,)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert disk.read(path) == won[0]
    assert disk.names(path.parent) == ["claim"]
    assert not disk.make_exclusive(path, b"late")
    assert disk.read(path) == won[0]
    assert disk.remove(path)
    assert not disk.remove(path)
    assert disk.make_exclusive(path, b"late")


def test_an_exclusive_name_makes_its_directories(disk: Disk, tmp_path: Path) -> None:
    assert disk.make_exclusive(tmp_path / "x/y/z", b"1")
    assert disk.read(tmp_path / "x/y/z") == b"1"
    assert disk.names(tmp_path / "nothing") == []


def test_a_link_is_not_read(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    os.symlink("secret", tmp_path / "link")
    with pytest.raises(OSError, match="symbolic"):
        disk.read(tmp_path / "link")
    assert not disk.make_exclusive(tmp_path / "link", b"x")


def test_without_files_that_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems have no O_TMPFILE."""
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    disk = FileDisk()
    assert disk.make_exclusive(tmp_path / "claim", b"1")
    assert not disk.make_exclusive(tmp_path / "claim", b"2")
    assert disk.names(tmp_path) == ["claim"]
    assert disk.read(tmp_path / "claim") == b"1"


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileDisk()
    path = tmp_path / "file"
    disk.write_whole(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            disk.write_whole(path, b"new")
    assert disk.read(path) == b"old"
    assert disk.names(tmp_path) == ["file"]


@pytest.mark.parametrize("names_stay", [False, True])
def test_a_power_cut_takes_what_was_not_flushed(tmp_path: Path, names_stay: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    disk = PowerCutDisk(root)
    disk.write_whole(root / "kept", b"1")
    disk.write_whole(root / "kept", b"2")
    assert disk.make_exclusive(root / "claims/one", b"claim")
    (root / "written").write_bytes(b"without fsync")
    disk.write_whole(root / "removed", b"3")
    disk.remove(root / "removed")
    disk.write_whole(root / "old", b"4")
    disk.rename(root / "old", root / "new")
    disk.cut(names_stay=names_stay)
    assert disk.read(root / "kept") == b"2"
    if names_stay:
        assert sorted(disk.names(root)) == ["claims", "kept", "new", "written"]
        assert disk.read(root / "written") == disk.read(root / "claims/one") == b""
    else:
        # The last flush of the directory took all its names along, and not those below it.
        assert sorted(disk.names(root)) == ["claims", "kept", "old", "written"]
        assert disk.names(root / "claims") == []
        assert disk.read(root / "written") == b""
        assert disk.read(root / "old") == b"4"
    (root / "tree/below").mkdir(parents=True)
    (root / "tree/below/file").write_bytes(b"5")
    (root / "beside").write_bytes(b"6")
    disk.sync_tree(root / "tree")
    disk.sync_directory(root)  # a directory does not flush its own name
    (root / "fresh").mkdir()
    disk.write_whole(root / "fresh/file", b"8")
    disk.cut()
    assert not (root / "fresh").exists()
    assert disk.read(root / "tree/below/file") == b"5"
    assert not disk.read(root / "beside")
    disk.write_whole(root / "after", b"7")
    disk.sync_all(root)
    disk.cut()
    assert disk.read(root / "after") == b"7"


def test_a_boot_has_one_name() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36


def test_a_log_is_written_front_to_back_until_it_is_full(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = disk.make_log(path, 16)
    assert disk.read(path) == bytes(16)
    assert log.append(b"first,")
    assert log.append(b"second,")
    assert not log.append(b"third,")
    assert log.append(b"3rd")
    log.close()
    assert disk.read(path) == b"first,second,3rd"
    with pytest.raises(FileExistsError):
        disk.make_log(path, 16)


@pytest.mark.parametrize("names_stay", [False, True])
def test_what_was_appended_outlives_a_power_cut(tmp_path: Path, names_stay: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    disk = PowerCutDisk(root)
    log = disk.make_log(root / "log", 8)
    log.append(b"kept")
    disk.write_whole(root / "loose", b"lost", durably=False)
    log.close()
    disk.cut(names_stay=names_stay)
    assert disk.read(root / "log") == b"kept\0\0\0\0"
    assert not disk.read(root / "loose")


def test_nothing_follows_a_gap_in_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FileDisk().make_log(tmp_path / "log", 100)

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "no disk")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(OSError, match="no disk"):
            log.append(b"lost")
    assert not log.append(b"late")
    log.close()


def test_a_write_to_a_log_is_flushed_before_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[bytes] = []
    log = FileDisk().make_log(tmp_path / "log", 8)
    monkeypatch.setattr(os, "fdatasync", lambda _: flushed.append((tmp_path / "log").read_bytes()))
    log.append(b"one")
    log.append(b"two")
    log.close()
    assert flushed == [b"one\0\0\0\0\0", b"onetwo\0\0"]


def test_writes_that_come_during_a_flush_share_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushed = tmp_path / "log", []
    log = FileDisk().make_log(path, 100)
    begun, others_wrote = threading.Event(), threading.Event()

    def flush(_: int) -> None:
        flushed.append(path.read_bytes().rstrip(b"\0"))
        begun.set()
        assert others_wrote.wait(60)

    monkeypatch.setattr(os, "fdatasync", flush)
    threads = [threading.Thread(target=log.append, args=(b"%d" % number,)) for number in range(4)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(path.read_bytes().rstrip(b"\0")) < len(threads):
        threads[1].join(0.001)
    others_wrote.set()
    for thread in threads:
        thread.join()
    assert flushed[0] == b"0"
    # One of the three may have written, and not yet said so, when the next flush begins.
    assert len(flushed) in (2, 3)
    assert all(sorted(each) == sorted(b"0123") for each in flushed[1:])
    log.close()
