"""Journals on disk: bounded, readable while written, true on a full disk, whole after a crash."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from chassis.ids import random_id
from sandbox_worker.execution import Execution, Exit, ExitReason, OutputRecord, Piece, Stream
from sandbox_worker.file_journal import FileJournal
from sandbox_worker.journal_store import JournalStore

pytestmark = pytest.mark.asyncio

_AT = datetime(2026, 1, 1, tzinfo=UTC)


class Disk:
    """Takes bytes until it is full, in pieces as small as it likes."""

    def __init__(self) -> None:
        self.room = 10**9
        self.most = 10**9

    def write(self, file: int, content: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(file, content[: min(self.room, self.most)])
        self.room -= written
        return written


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def store(tmp_path: Path, executor: ThreadPoolExecutor, disk: Disk) -> JournalStore:
    return JournalStore(
        root=tmp_path / "journals", executor=executor, most_bytes=1024 * 1024, write=disk.write
    )


def execution() -> Execution:
    return Execution(
        execution_id=random_id("exe"),
        sandbox_id=random_id("sbx"),
        tenant="default",
        arguments=("echo", "ä"),
        started_at=_AT,
    )


def piece(content: bytes, stream: Stream = Stream.STDOUT) -> Piece:
    return Piece(stream=stream, content=content, written_at=7)


def exit_after(journal: FileJournal, reason: ExitReason = ExitReason.EXITED) -> Exit:
    return Exit(reason=reason, last_sequence=journal.last_sequence, ended_at=_AT, code=0)


async def records(journal: FileJournal, after: int = 0) -> list[OutputRecord]:
    reader = journal.reader(after)
    found: list[OutputRecord] = []
    while batch := await reader.read():
        found.extend(batch)
    return found


async def test_records_are_numbered_from_one(store: JournalStore, disk: Disk) -> None:
    disk.most = 5
    journal = await store.open(execution())
    await journal.append([piece(b"a"), piece(b"b", Stream.STDERR)])
    await journal.append([piece(b"c" * 65536)])
    found = await records(journal)
    assert [(each.sequence, each.stream, each.content[:1]) for each in found] == [
        (1, Stream.STDOUT, b"a"),
        (2, Stream.STDERR, b"b"),
        (3, Stream.STDOUT, b"c"),
    ]
    assert [each.sequence for each in await records(journal, 2)] == [3]
    assert journal.last_sequence == 3


async def test_a_reader_goes_on_where_it_was(store: JournalStore) -> None:
    journal = await store.open(execution())
    reader = journal.reader(0)
    assert await reader.read() == ()
    for number in range(1, 60):
        await journal.append([piece(os.urandom(20_000))])
        assert [each.sequence for each in await reader.read()] == [number]
        assert await reader.read() == ()


async def test_the_oldest_goes_first(store: JournalStore, tmp_path: Path) -> None:
    started = execution()
    journal = await store.open(started)
    overtaken = journal.reader(0)
    await journal.append([piece(b"0" * 60_000)])
    assert len(await overtaken.read()) == 1
    for _ in range(50):
        await journal.append([piece(b"x" * 60_000)])
    directory = tmp_path / "journals" / started.execution_id
    assert sum(path.stat().st_size for path in directory.glob("*.segment")) <= 1024 * 1024
    found = await records(journal)
    assert found[-1].sequence == 51
    assert found[0].sequence > 30
    with pytest.raises(FairleadError) as caught:
        await overtaken.read()
    assert caught.value.reason == "cursor_gone"
    assert caught.value.fields == {"oldest_sequence": str(found[0].sequence)}
    with pytest.raises(FairleadError):
        await records(journal, found[0].sequence - 2)
    assert (await records(journal, found[0].sequence - 1))[0] == found[0]


@pytest.mark.parametrize("room", [0, 1, 30, 100])
async def test_a_full_disk_keeps_a_true_beginning(
    store: JournalStore, disk: Disk, room: int
) -> None:
    started = execution()
    journal = await store.open(started)
    await journal.append([piece(b"kept")])
    disk.room = room
    await journal.append([piece(b"x" * 200), piece(b"y")])
    assert not journal.complete
    exit_ = exit_after(journal)
    if room == 0:
        assert not await journal.finish(exit_)
    disk.room = 10**6
    await journal.append([piece(b"too late")])
    assert [each.content for each in await records(journal)] == [b"kept"]
    assert await journal.finish(exit_)
    assert await journal.finish(exit_)
    (kept,) = await store.recover()
    assert kept.execution.exit == exit_
    assert exit_.last_sequence == 1


async def test_a_full_disk_when_a_segment_is_full(store: JournalStore, disk: Disk) -> None:
    journal = await store.open(execution())
    await journal.append([piece(b"x" * 60_000), piece(b"x" * 60_000)])
    disk.room = 0
    await journal.append([piece(b"y" * 60_000)])
    assert not journal.complete
    assert [each.sequence for each in await records(journal)] == [1, 2]
    assert not await journal.finish(exit_after(journal))
    disk.room = 1000
    assert await journal.finish(exit_after(journal))
    (kept,) = await store.recover()
    assert kept.execution.exit is not None
    assert kept.journal.last_sequence == 2


async def test_a_journal_comes_back_as_it_was(store: JournalStore) -> None:
    ended, cut = execution(), execution()
    journal = await store.open(ended)
    for number in range(30):
        await journal.append([piece(bytes([number]) * 30_000)])
    before = await records(journal)
    exit_ = exit_after(journal)
    await journal.finish(exit_)
    other = await store.open(cut)
    await other.append([piece(b"only")])
    kept = {each.execution.execution_id: each for each in await store.recover()}
    recovered = kept[ended.execution_id]
    assert recovered.execution.exit == exit_
    assert recovered.execution.arguments == ended.arguments
    assert recovered.execution.started_at == ended.started_at
    assert isinstance(recovered.journal, FileJournal)
    assert await records(recovered.journal) == before
    torn = kept[cut.execution_id]
    assert torn.execution.exit is None
    assert torn.journal.last_sequence == 1
    lost = Exit(reason=ExitReason.HOST_LOST, last_sequence=1, ended_at=_AT)
    assert await torn.journal.finish(lost)
    again = {each.execution.execution_id: each for each in await store.recover()}
    assert again[cut.execution_id].execution.exit == lost


async def test_every_torn_tail_is_cut(store: JournalStore, tmp_path: Path) -> None:
    started = execution()
    journal = await store.open(started)
    await journal.append([piece(b"first"), piece(b"second")])
    (segment,) = (tmp_path / "journals" / started.execution_id).glob("*.segment")
    content = segment.read_bytes()
    half = len(content) - (len(content) - 5 - 6) // 2 - 6
    for length in range(len(content)):
        segment.write_bytes(content[:length])
        (kept,) = await store.recover()
        whole = 1 if length >= half else 0
        assert kept.journal.last_sequence == whole
        assert segment.stat().st_size == (half if whole else 0)
        assert isinstance(kept.journal, FileJournal)
        assert len(await records(kept.journal)) == whole


async def test_what_is_no_journal_is_removed(store: JournalStore, tmp_path: Path) -> None:
    root = tmp_path / "journals"
    for name in (random_id("exe"), random_id("exe"), "other"):
        (root / name).mkdir(parents=True)
        (root / name / "execution.json").write_text("{" if name == "other" else "{}")
    assert await store.recover() == []
    assert list(root.iterdir()) == []


async def test_a_removed_journal_is_gone(store: JournalStore, tmp_path: Path) -> None:
    journal = await store.open(execution())
    await journal.append([piece(b"x")])
    reader = journal.reader(0)
    await journal.remove()
    assert list((tmp_path / "journals").iterdir()) == []
    with pytest.raises(FairleadError):
        await reader.read()


async def test_a_store_that_cannot_be_written(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    (tmp_path / "file").write_text("")
    store = JournalStore(root=tmp_path / "file", executor=executor, most_bytes=1024 * 1024)
    with pytest.raises(FairleadError) as caught:
        await store.open(execution())
    assert caught.value.reason == "storage_unavailable"


async def test_readers_while_it_is_written(store: JournalStore) -> None:
    journal = await store.open(execution())

    async def follow() -> list[int]:
        reader = journal.reader(0)
        seen: list[int] = []
        while len(seen) < 200:
            batch = await reader.read()
            seen.extend(each.sequence for each in batch)
            assert all(each.content == b"%d" % each.sequence for each in batch)
            await asyncio.sleep(0)
        return seen

    following = [asyncio.create_task(follow()) for _ in range(3)]
    for number in range(1, 201):
        await journal.append([piece(b"%d" % number)])
    for task in following:
        assert await task == list(range(1, 201))
