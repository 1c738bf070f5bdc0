"""The logs of records: what they keep over a power cut, what they leave out, and when they go."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fakes.disk import PowerCutDisk
from tests.fakes.provisioned import NOW, provisioned
from tests.fakes.registry import nothing
from workspace_provisioner.disk import record_logs
from workspace_provisioner.disk.file_disk import FileDisk
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.ledger_files import LedgerFiles
from workspace_provisioner.disk.record_logs import RecordLogs
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import StorageUnavailable
from workspace_provisioner.ports import Log
from workspace_provisioner.workspaces import State, Workspace

SHORT = 4096


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_logs, "LOG_BYTES", SHORT)


def released(number: int) -> Workspace:
    """A tombstone: it says nothing about files, so nothing but the record decides."""
    return provisioned(workspace_id="wsp_" + f"{number:026}", state=State.RELEASED, released_at=NOW)


class Machine:
    """Processes over one host root, through power cuts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records, self.logs = root / "records", root / "logs"
        for path in (self.records, self.logs):
            path.mkdir(parents=True)
        self.disk = PowerCutDisk(root)

    def own_logs(self, process: str, boot: str) -> RecordLogs:
        owners = Owners(self.root / "owners", process)
        return RecordLogs(directory=self.logs, disk=self.disk, owners=owners, boot=boot)

    @asynccontextmanager
    async def up(self, process: str, boot: str) -> AsyncIterator[LedgerFiles]:
        logs = self.own_logs(process, boot)
        with ThreadPoolExecutor(max_workers=2) as executor:
            files = FileWork(executor=executor)
            ledger = LedgerFiles(
                directory=self.records, logs=logs, disk=self.disk, files=files, boot=boot
            )
            await ledger.load()
            yield ledger
        logs.close()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "host")


@pytest.mark.asyncio
@pytest.mark.parametrize("names_stay", [False, True], ids=["names lost", "names stay"])
async def test_every_answered_record_outlives_a_power_cut(
    machine: Machine, names_stay: bool
) -> None:
    """Also those of a second log, of which there are more than fit into the first."""
    wanted = [released(number) for number in range(20)]
    async with machine.up("a", "boot 1") as ledger:
        for each in wanted:
            await ledger.put(each)
    assert len(list(machine.logs.iterdir())) > 1
    machine.disk.cut(names_stay=names_stay)
    async with machine.up("b", "boot 2") as ledger:
        assert list(ledger.all()) == wanted
    # A second cut before anything was flushed takes nothing either.
    machine.disk.cut(names_stay=names_stay)
    async with machine.up("c", "boot 3") as ledger:
        assert list(ledger.all()) == wanted


@pytest.mark.asyncio
async def test_of_two_processes_the_later_record_counts(machine: Machine) -> None:
    first = released(1)
    later = replace(first, released_at=NOW + timedelta(hours=1))
    async with machine.up("b", "boot 1") as one, machine.up("a", "boot 1") as other:
        await one.put(first)
        assert other.get(first.workspace_id) == first
        await other.put(later)
    machine.disk.cut()
    async with machine.up("c", "boot 2") as ledger:
        assert ledger.get(first.workspace_id) == later


@pytest.mark.asyncio
async def test_an_old_line_changes_no_record_that_is_newer(machine: Machine) -> None:
    first = released(1)
    later = replace(first, released_at=NOW + timedelta(hours=1))
    async with machine.up("a", "boot 1") as ledger:
        await ledger.put(first)
        await ledger.put(later)
    (log,) = machine.logs.iterdir()
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join(lines[:2]) + b"\n")  # without the later one, whose file is there
    async with machine.up("b", "boot 2") as ledger:
        assert ledger.get(first.workspace_id) == later


@pytest.mark.asyncio
async def test_a_line_that_was_cut_short_ends_the_log(machine: Machine) -> None:
    async with machine.up("a", "boot 1") as ledger:
        for number in range(3):
            await ledger.put(released(number))
    (log,) = machine.logs.iterdir()
    content = log.read_bytes()
    lines = content.split(b"\n")
    half = b"\n".join(lines[:3]) + b"\n" + lines[3][: len(lines[3]) // 2]
    log.write_bytes(half.ljust(len(content), b"\0"))
    for path in machine.records.iterdir():
        path.unlink()
    async with machine.up("b", "boot 2") as ledger:
        assert list(ledger.all()) == [released(0), released(1)]


@pytest.mark.asyncio
async def test_a_restart_without_a_power_cut_reads_no_log(machine: Machine) -> None:
    async with machine.up("a", "boot 1") as ledger:
        await ledger.put(released(1))
        await ledger.remove(released(1).workspace_id)
    async with machine.up("b", "boot 1") as ledger:
        assert list(ledger.all()) == []


@pytest.mark.asyncio
async def test_a_flush_drops_the_logs_of_the_dead_and_its_own_and_keeps_the_records(
    machine: Machine,
) -> None:
    async with machine.up("a", "boot 1") as ledger:
        await ledger.put(released(1))
    async with machine.up("b", "boot 1") as ledger:
        await ledger.put(released(2))
        await ledger.flush(nothing)
        (log,) = machine.logs.iterdir()
        assert log.name.startswith("b.")
        await ledger.put(released(3))
    machine.disk.cut()
    async with machine.up("c", "boot 2") as ledger:
        assert list(ledger.all()) == [released(number) for number in (1, 2, 3)]


@pytest.mark.asyncio
async def test_a_flush_that_fails_keeps_the_logs_for_the_next_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "no disk")

    async with machine.up("a", "boot 1") as ledger:
        await ledger.put(replace(released(1), state=State.PROVISIONED))
        with monkeypatch.context() as patch:
            patch.setattr(machine.disk, "sync_all", broken)
            with pytest.raises(OSError, match="no disk"):
                await ledger.flush(nothing)
        assert len(list(machine.logs.iterdir())) == 2
        await ledger.flush(nothing)
        assert len(list(machine.logs.iterdir())) == 1


def test_a_log_is_not_put_aside_while_a_file_is_still_written(tmp_path: Path) -> None:
    """Otherwise a flush could end before the file is written, and take the line away."""
    logs = RecordLogs(
        directory=tmp_path, disk=FileDisk(), owners=Owners(tmp_path, "a"), boot="boot"
    )
    logs.open()
    (first,) = tmp_path.iterdir()
    aside: list[Path] = []
    thread = threading.Thread(target=lambda: aside.extend(logs.put_aside()))
    with logs.recorded(b"{}"):
        thread.start()
        while len(list(tmp_path.iterdir())) < 2:
            thread.join(0.001)
        assert thread.is_alive()
        assert not aside
    thread.join()
    assert aside == [first]
    logs.close()


@pytest.mark.asyncio
async def test_a_flush_takes_nothing_back_that_another_process_said(machine: Machine) -> None:
    """The other one begins later and is done earlier."""
    one, two = (replace(released(number), state=State.PROVISIONED) for number in (1, 2))
    async with machine.up("a", "boot 1") as slow, machine.up("b", "boot 1") as quick:

        async def meanwhile() -> None:
            await quick.put(two)
            await quick.flush(nothing)

        await slow.put(one)
        await slow.flush(meanwhile)
    machine.disk.cut()
    async with machine.up("c", "boot 2") as ledger:
        assert list(ledger.all()) == [one, two]


@pytest.mark.asyncio
async def test_two_processes_say_what_they_flushed_one_after_the_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole = machine.disk.write_whole
    written: list[str] = []

    def locked(path: Path, content: bytes, *, durably: bool = True) -> None:
        descriptor = os.open(machine.records, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
        written.append(path.name)
        write_whole(path, content, durably=durably)

    async with machine.up("a", "boot 1") as ledger:
        await ledger.put(replace(released(1), state=State.PROVISIONED))
        monkeypatch.setattr(machine.disk, "write_whole", locked)
        await ledger.flush(nothing)
    assert written == [".flushed"]


@pytest.mark.asyncio
async def test_a_record_that_no_log_has_room_for_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(path: Path, size: int) -> Log:
        raise AssertionError(path)

    large = replace(released(1), name="n" * SHORT)
    async with machine.up("a", "boot 1") as ledger:
        monkeypatch.setattr(machine.disk, "make_log", another)
        with pytest.raises(OSError, match="too long") as refused:
            await ledger.put(replace(large, state=State.PROVISIONED))
        assert refused.value.errno == errno.EMSGSIZE
        await ledger.put(large)  # it can be given back
        await ledger.put(released(2))
    machine.disk.cut()
    monkeypatch.undo()
    async with machine.up("b", "boot 2") as ledger:
        assert list(ledger.all()) == [large, released(2)]


@pytest.mark.asyncio
async def test_a_line_of_another_form_is_passed_over(machine: Machine) -> None:
    async with machine.up("a", "boot 1") as ledger:
        await ledger.put(released(1))
    logs = machine.own_logs("b", "boot 1")
    logs.open()
    with logs.recorded(b'{"workspace_id": 3}'):
        pass
    logs.close()
    machine.disk.cut()
    async with machine.up("c", "boot 2") as ledger:
        assert list(ledger.all()) == [released(1)]


@pytest.mark.asyncio
async def test_an_old_line_changes_no_record_of_another_form(machine: Machine) -> None:
    async with machine.up("a", "boot 1") as ledger:
        await ledger.put(released(1))
    (path,) = machine.records.glob("*.json")
    path.write_text(json.dumps({"form": 2}))
    async with machine.up("b", "boot 2") as ledger:
        with pytest.raises(StorageUnavailable):
            ledger.get(released(1).workspace_id)
    assert json.loads(path.read_bytes()) == {"form": 2}
