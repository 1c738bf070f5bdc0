"""Journals on disk: bounded, readable while written, true on a full disk, whole after a crash."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from chassis.ids import random_id
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.execution import (
    Exit,
    ExitReason,
    Gap,
    GapReason,
    OutputRecord,
    Stream,
    Usage,
)
from sandbox_worker.journals.encoding import FRAME_BYTES
from sandbox_worker.journals.file_journal import FileJournal
from sandbox_worker.journals.store import JournalStore
from tests.fakes.journals import (
    AT,
    BOUND,
    Disk,
    execution,
    exit_after,
    found_in,
    kept_bytes,
    piece,
    read_all,
    records,
    sequences,
    size_of,
)

pytestmark = pytest.mark.asyncio


async def test_records_are_numbered_from_one(store: JournalStore, disk: Disk) -> None:
    disk.most = 5
    journal = await store.open(execution())
    await journal.append([piece(b"a"), piece(b"b", Stream.STDERR)])
    await journal.append([piece(b"c" * 65536)])
    found = await records(journal)
    assert [(each.sequence, each.stream, each.content[:1]) for each in found] == [  # type: ignore[union-attr]
        (1, Stream.STDOUT, b"a"),
        (2, Stream.STDERR, b"b"),
        (3, Stream.STDOUT, b"c"),
    ]
    assert sequences(await records(journal, 2)) == [3]
    assert sequences(await records(journal, 3)) == []
    assert journal.last_sequence == 3


async def test_a_large_piece_becomes_records_that_fit(store: JournalStore, root: Path) -> None:
    journal = await store.open(execution())
    content = os.urandom(500_000)
    await journal.append([piece(content)])
    found = await records(journal)
    assert b"".join(each.content for each in found if isinstance(each, OutputRecord)) == content
    assert max(size_of(path) for path in found_in(root, "*.segment")) <= BOUND // 8


async def test_a_reader_goes_on_where_it_was(store: JournalStore) -> None:
    journal = await store.open(execution())
    reader = journal.reader(0)
    assert await reader.read() == ()
    for number in range(1, 60):
        await journal.append([piece(os.urandom(20_000))])
        assert sequences(await read_all(reader)) == [number]


async def test_a_reader_that_comes_late_reads_the_disk_and_then_memory(store: JournalStore) -> None:
    journal = await store.open(execution())
    contents = [os.urandom(9_000) for _ in range(60)]
    for content in contents[:30]:
        await journal.append([piece(content)])
    early, late = journal.reader(0), journal.reader(12)
    for content in contents[30:]:
        await journal.append([piece(content)])
    for reader, after in ((early, 0), (late, 12)):
        found = await read_all(reader)
        assert [each.content for each in found if isinstance(each, OutputRecord)] == contents[
            after:
        ]


async def test_the_oldest_goes_first_and_leaves_a_gap(store: JournalStore, root: Path) -> None:
    journal = await store.open(execution())
    overtaken = journal.reader(0)
    await journal.append([piece(b"0" * 60_000)])
    assert sequences(await read_all(overtaken)) == [1]
    for _ in range(50):
        await journal.append([piece(b"x" * 60_000)])
    assert kept_bytes(root) <= BOUND
    found = await records(journal)
    oldest = found[1]
    assert isinstance(oldest, OutputRecord)
    assert oldest.sequence > 30
    dropped = Gap(
        first=1,
        last=oldest.sequence - 1,
        size=60_000 * (oldest.sequence - 1),
        reason=GapReason.DROPPED,
    )
    assert found[0] == dropped
    assert sequences(found[1:]) == list(range(oldest.sequence, 52))
    seen = await read_all(overtaken)
    assert seen[0] == replace(dropped, first=2, size=60_000 * (oldest.sequence - 2))
    assert seen[1:] == found[1:]
    with pytest.raises(FairleadError) as caught:
        journal.reader(oldest.sequence - 2)
    assert caught.value.reason == "cursor_gone"
    assert caught.value.fields == {"oldest_sequence": str(oldest.sequence)}
    assert (await records(journal, oldest.sequence - 1))[0] == oldest


@pytest.mark.parametrize("room", [0, 1, 30, 300])
async def test_a_full_disk_loses_the_newest_as_a_gap(
    store: JournalStore, disk: Disk, room: int
) -> None:
    journal = await store.open(execution())
    await journal.append([piece(b"kept")])
    watching = journal.reader(0)
    assert sequences(await read_all(watching)) == [1]
    disk.room = room
    await journal.append([piece(b"x" * 200), piece(b"y" * 100)])
    assert not journal.complete
    disk.room = 0
    lost = await read_all(watching)
    taken = 1 if room >= 200 + FRAME_BYTES else 0
    assert sequences(lost) == [2, (3, 3, 100)] if taken else [(2, 3, 300)]
    assert isinstance(lost[-1], Gap)
    assert lost[-1].reason is GapReason.DISK_FULL
    exit_ = exit_after(journal)
    assert not await journal.finish(exit_)
    disk.room = 10**6
    assert await journal.finish(exit_)
    assert await journal.finish(exit_)
    (kept,) = await store.recover()
    assert kept.execution.exit == exit_
    assert kept.journal.last_sequence == exit_.last_sequence == 3
    assert isinstance(kept.journal, FileJournal)
    assert (await records(kept.journal))[1:] == lost
    assert sequences(await records(kept.journal, 1)) == sequences(lost)


async def test_a_disk_with_room_again_goes_on_after_the_gap(
    store: JournalStore, disk: Disk, root: Path
) -> None:
    journal = await store.open(execution())
    await journal.append([piece(b"kept")])
    disk.room = 0
    await journal.append([piece(b"lost")])
    await journal.append([piece(b"lost as well")])
    disk.room = 10**6
    await journal.append([piece(b"back")])
    await journal.append([piece(b"on")])
    assert sequences(await records(journal)) == [1, (2, 3, 16), 4, 5]
    assert sequences(await records(journal, 3)) == [4, 5]
    with pytest.raises(FairleadError) as caught:
        await records(journal, 2)
    assert caught.value.reason == "cursor_gone"
    assert len(found_in(root, "*.segment")) == 2


async def test_a_full_disk_drops_its_own_oldest_first(
    store: JournalStore, disk: Disk, root: Path
) -> None:
    journal = await store.open(execution())
    for _ in range(8):
        await journal.append([piece(b"x" * 60_000)])
    before = len(found_in(root, "*.segment"))
    unlinked: list[int] = []

    def write(file: int, parts: list[bytes | memoryview]) -> int:
        if len(found_in(root, "*.segment")) >= before:
            unlinked.append(file)
            disk.room = 0
        else:
            disk.room = 10**6
        return Disk.write(disk, file, parts)

    disk.write = write  # type: ignore[method-assign, assignment]
    journal._files._write = write  # type: ignore[assignment]
    await journal.append([piece(b"y" * 60_000)])
    found = await records(journal)
    assert unlinked
    assert isinstance(found[0], Gap)
    assert isinstance(found[-1], OutputRecord)
    assert found[-1].content[:1] == b"y"
    assert journal.complete


async def test_a_journal_comes_back_as_it_was(store: JournalStore) -> None:
    ended, cut = execution(), execution()
    journal = await store.open(ended)
    for number in range(30):
        await journal.append([piece(bytes([number]) * 30_000)])
    before = await records(journal)
    exit_ = Exit(
        reason=ExitReason.OUT_OF_MEMORY,
        last_sequence=30,
        ended_at=AT,
        signal=9,
        usage=Usage(cpu_seconds=1.25, peak_memory_bytes=4096),
    )
    await journal.finish(exit_)
    other = await store.open(cut)
    await other.append([piece(b"only")])
    kept = {each.execution.execution_id: each for each in await store.recover()}
    recovered = kept[ended.execution_id]
    assert recovered.execution.exit == exit_
    assert recovered.execution.arguments == ended.arguments
    assert recovered.execution.started_at == ended.started_at
    assert recovered.execution.fingerprint == ended.fingerprint
    assert isinstance(recovered.journal, FileJournal)
    assert await records(recovered.journal) == before
    torn = kept[cut.execution_id]
    assert torn.execution.exit is None
    assert torn.journal.last_sequence == 1
    lost = Exit(reason=ExitReason.HOST_LOST, last_sequence=1, ended_at=AT)
    assert await torn.journal.finish(lost)
    again = {each.execution.execution_id: each for each in await store.recover()}
    assert again[cut.execution_id].execution.exit == lost


async def test_every_torn_tail_is_cut(store: JournalStore, root: Path) -> None:
    journal = await store.open(execution())
    await journal.append([piece(b"first"), piece(b"second")])
    (segment,) = found_in(root, "*.segment")
    content = segment.read_bytes()
    half = FRAME_BYTES + len(b"first")
    for length in range(len(content)):
        segment.write_bytes(content[:length])
        (kept,) = await store.recover()
        whole = 1 if length >= half else 0
        assert kept.journal.last_sequence == whole
        assert size_of(segment) == (half if whole else 0)
        assert isinstance(kept.journal, FileJournal)
        assert len(await records(kept.journal)) == whole


async def test_every_torn_exit_is_host_lost(store: JournalStore, root: Path) -> None:
    journal = await store.open(execution())
    (head,) = found_in(root, "*.head")
    described = size_of(head)
    await journal.finish(exit_after(journal))
    content = head.read_bytes()
    for length in range(described, len(content)):
        head.write_bytes(content[:length])
        (kept,) = await store.recover()
        assert kept.execution.exit is None
        lost = Exit(reason=ExitReason.HOST_LOST, last_sequence=0, ended_at=AT)
        assert await kept.journal.finish(lost)
        (again,) = await store.recover()
        assert again.execution.exit == lost


async def test_a_damaged_record_is_a_gap(store: JournalStore, root: Path) -> None:
    journal = await store.open(execution())
    for _ in range(5):
        await journal.append([piece(b"x" * 60_000)])
    first = min(found_in(root, "*.segment"))
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    assert sequences(await records(journal)) == [1, (2, 2, 60_000), 3, 4, 5]


def litter(root: Path) -> None:
    (segment,) = root.glob("*.segment")
    segment.rename(root / segment.name.replace("0000", "zzzz"))
    (root / "other").mkdir()
    (root / f"{random_id('exe')}.head").write_text("{}")
    (root / f"{random_id('exe')}.0001.0000.segment").write_bytes(b"")


async def test_what_is_no_journal_is_removed(store: JournalStore, root: Path) -> None:
    journal = await store.open(execution())
    await journal.append([piece(b"x")])
    litter(root)
    assert await store.recover() == []
    assert found_in(root) == []


async def test_a_removed_journal_is_gone(store: JournalStore, root: Path) -> None:
    journal = await store.open(execution())
    await journal.append([piece(b"x")])
    reader = journal.reader(0)
    await journal.remove()
    assert found_in(root) == []
    assert sequences(await read_all(reader)) == [(1, 1, 1)]


async def test_what_a_failed_start_left_is_replaced(store: JournalStore, root: Path) -> None:
    started = execution()
    journal = await store.open(started)
    await journal.append([piece(b"old")])
    again = await store.open(started)
    await again.append([piece(b"new")])
    assert [each.content for each in await records(again) if isinstance(each, OutputRecord)] == [
        b"new"
    ]
    assert len(found_in(root)) == 2


async def test_a_store_that_cannot_be_written(tmp_path: Path, work: BriefWork) -> None:
    file = tmp_path / "file"
    file.touch()
    store = JournalStore(root=file, work=work, most_bytes=BOUND)
    with pytest.raises(FairleadError) as caught:
        await store.open(execution())
    assert caught.value.reason == "storage_unavailable"


async def test_readers_while_it_is_written(store: JournalStore) -> None:
    journal = await store.open(execution())

    async def follow() -> list[int]:
        reader = journal.reader(0)
        seen: list[int] = []
        while len(seen) < 200:
            for each in await read_all(reader):
                assert isinstance(each, OutputRecord)
                assert each.content == b"%d" % each.sequence
                seen.append(each.sequence)
            await asyncio.sleep(0)
        return seen

    following = [asyncio.create_task(follow()) for _ in range(3)]
    for number in range(1, 201):
        await journal.append([piece(b"%d" % number)])
    for task in following:
        assert await task == list(range(1, 201))


async def test_a_smaller_bound_of_its_own(store: JournalStore, root: Path) -> None:
    journal = await store.open(execution(), most_bytes=80_000)
    for _ in range(60):
        await journal.append([piece(b"x" * 3000)])
    assert kept_bytes(root) <= 80_000
    larger = await store.open(execution(), most_bytes=10**9)
    for _ in range(50):
        await larger.append([piece(b"x" * 60_000)])
    assert kept_bytes(root) <= 80_000 + BOUND
