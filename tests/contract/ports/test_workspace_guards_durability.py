"""What is said to be on the disk was flushed before it was said: by the real disk, and by everyone
who says so.
"""

from __future__ import annotations

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.disk import PowerCutDisk
from tests.fakes.git_client import GitClient
from tests.fakes.provisioned import provisioned
from tests.fakes.provisioner_room import open_layered_room
from tests.fakes.registry import nothing
from workspace_provisioner.disk import file_disk
from workspace_provisioner.disk.file_disk import FileDisk, boot_id
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.ledger_files import LedgerFiles
from workspace_provisioner.disk.record_logs import RecordLogs
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.ports import Disk
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.templates import template_id
from workspace_provisioner.trees.template_records import READY, read_ready
from workspace_provisioner.workspaces import Rung


class Flushes:
    """What was flushed with fsync, in order: a file with its size, or a directory with its names.

    It looks through the descriptor, as the kernel does.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, int | frozenset[str]]] = []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self.seen.append((found.st_ino, frozenset(os.listdir(descriptor))))
        else:
            self.seen.append((found.st_ino, found.st_size))
        self._fsync(descriptor)


def test_a_file_is_flushed_before_its_name_and_the_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = Flushes(monkeypatch)
    FileDisk().write_whole(tmp_path / "file", b"content")
    file, directory = (tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino
    assert flushes.seen == [(file, 7), (directory, frozenset(("file",)))]


def test_a_directory_is_flushed_when_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    flushes = Flushes(monkeypatch)
    FileDisk().sync_directory(tmp_path)
    assert flushes.seen == [(tmp_path.stat().st_ino, frozenset(("file",)))]


class FileSystem:
    """The part of the C library that flushes a file system; it can refuse to."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.flushed: list[int] = []

    def syncfs(self, descriptor: int) -> int:
        self.flushed.append(os.fstat(descriptor).st_ino)
        return self.answer


def test_a_whole_file_system_is_flushed_or_the_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, broken = FileSystem(0), FileSystem(-1)
    monkeypatch.setattr(file_disk, "_LIBC", sound)
    FileDisk().sync_all(tmp_path)
    assert sound.flushed == [tmp_path.stat().st_ino]
    monkeypatch.setattr(file_disk, "_LIBC", broken)
    with pytest.raises(OSError, match=str(tmp_path)):
        FileDisk().sync_all(tmp_path)


async def opened_ledger(records: Path, disk: Disk, files: FileWork, boot: str) -> LedgerFiles:
    """Load a ledger as the one process of its boot."""
    owners = Owners(records.parent / "owners", boot.replace(" ", ""))
    logs = RecordLogs(directory=records.parent / "logs", disk=disk, owners=owners, boot=boot)
    ledger = LedgerFiles(directory=records, logs=logs, disk=disk, files=files, boot=boot)
    await ledger.load()
    return ledger


@pytest.mark.asyncio
@pytest.mark.parametrize("names_stay", [False, True], ids=["names lost", "names stay"])
async def test_a_workspace_that_is_kept_after_a_power_cut_has_its_files(
    tmp_path: Path, names_stay: bool
) -> None:
    root = tmp_path / "host"
    records, tree = root / "records", root / "tree"
    records.mkdir(parents=True)
    (root / "logs").mkdir()
    disk = PowerCutDisk(root)
    made = provisioned()
    with ThreadPoolExecutor(max_workers=1) as executor:
        files = FileWork(executor=executor)
        ledger = await opened_ledger(records, disk, files, "boot 1")
        tree.mkdir()
        (tree / "file").write_bytes(b"content")  # written as git does, without a flush
        await ledger.put(made)
        await ledger.flush(nothing)
        disk.cut(names_stay=names_stay)
        after = await opened_ledger(records, disk, files, "boot 2")
        assert after.get(made.workspace_id) == made
        assert (tree / "file").read_bytes() == b"content"


class CutAtReady(PowerCutDisk):
    """Keeps what a power cut would leave as soon as a template says that it outlives one."""

    def __init__(self, root: Path, left: Path, *, names_stay: bool) -> None:
        super().__init__(root)
        self._left = left
        self._names_stay = names_stay

    def write_whole(self, path: Path, content: bytes, *, durably: bool = True) -> None:
        super().write_whole(path, content, durably=durably)
        if path.name == READY and not self._left.exists():
            self.leave(self._left, names_stay=self._names_stay)


@pytest.mark.asyncio
@pytest.mark.parametrize("names_stay", [False, True], ids=["names lost", "names stay"])
async def test_a_template_that_is_served_after_a_power_cut_has_its_files(
    tmp_path: Path, names_stay: bool
) -> None:
    client = GitClient(tmp_path / "laptop")
    client.write("file", b"content\n")
    client.commit()
    root, left = tmp_path / "host", tmp_path / "left"
    Layout(root).make()
    disk = CutAtReady(root, left, names_stay=names_stay)
    async with open_layered_room(root, disk=disk) as room:
        await room.upload(client)
        await room.preparations.finished()
    shutil.rmtree(root)
    left.rename(root)
    async with open_layered_room(root) as room:
        made, _ = await room.make("key", client.source(), overlay=True)
        assert made.rung is Rung.OVERLAY
        name = template_id(client.source().key, client.head())
        assert (room.layout.templates / name / "tree/file").read_bytes() == b"content\n"


@pytest.mark.asyncio
async def test_a_template_that_could_not_be_flushed_is_good_for_this_boot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = GitClient(tmp_path / "laptop")
    client.write("file", b"content\n")
    client.commit()
    name = template_id(ProjectKey("ada", "project", ObjectFormat.SHA1), client.head())
    async with open_layered_room(tmp_path / "host") as room:
        ready = room.layout.templates / name / READY

        def flush(self: FileDisk, path: Path) -> None:
            if ready.exists():
                raise OSError("the disk does not answer")

        with monkeypatch.context() as patched:
            patched.setattr(FileDisk, "sync_all", flush)
            await room.upload(client)
            await room.preparations.finished()
        found = read_ready(ready.parent)
        assert found is not None
        assert found[1] == boot_id()
