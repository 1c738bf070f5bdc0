"""Journals that let the program wait: for the slowest reader, for the disk, never at its end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sandbox_worker.brief_work import BriefWork
from sandbox_worker.execution import MOST_RECORD_BYTES, Gap, OnFull
from sandbox_worker.journals.file_journal import FileJournal
from sandbox_worker.journals.store import JournalStore
from tests.fakes.clock import FakeClock
from tests.fakes.journals import (
    BOUND,
    Disk,
    execution,
    exit_after,
    kept_bytes,
    piece,
    read_all,
    records,
    sequences,
)

pytestmark = pytest.mark.asyncio


async def blocked(task: asyncio.Task[None]) -> None:
    """Give a task that should wait every chance to end."""
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()


async def refused(disk: Disk, journal: FileJournal, content: bytes) -> asyncio.Task[None]:
    """Let an append be refused by the disk, and leave it waiting."""
    loop, tried = asyncio.get_running_loop(), asyncio.Event()

    def refusing() -> None:
        loop.call_soon_threadsafe(tried.set)

    disk.refusing = refusing
    appending = asyncio.create_task(journal.append([piece(content)]))
    await tried.wait()
    await blocked(appending)
    return appending


async def filled(store: JournalStore) -> tuple[FileJournal, asyncio.Task[None]]:
    """Fill a journal that blocks, and leave one append waiting."""
    journal = await store.open(execution(), on_full=OnFull.BLOCK)

    async def fill() -> None:
        for _ in range(17):
            await journal.append([piece(b"x" * 60_000)])

    filling = asyncio.create_task(fill())
    while journal.last_sequence < 16:  # noqa: ASYNC110 - the journal's own threads are at work
        await asyncio.sleep(0)
    return journal, filling


async def test_without_a_reader_a_full_journal_blocks(store: JournalStore, root: Path) -> None:
    journal, filling = await filled(store)
    await blocked(filling)
    assert kept_bytes(root) <= BOUND
    only_for_the_exit = journal.reader(2**62)
    assert await only_for_the_exit.read() == ()
    await blocked(filling)
    reader = journal.reader(0)
    found = await read_all(reader)
    await filling
    assert sequences(found + await read_all(reader)) == list(range(1, 18))
    assert kept_bytes(root) <= BOUND


async def test_the_slowest_reader_holds_it_up_until_it_leaves(store: JournalStore) -> None:
    journal, filling = await filled(store)
    quick, slow = journal.reader(0), journal.reader(0)
    assert sequences(await read_all(quick)) == list(range(1, 17))
    await blocked(filling)
    slow.close()
    await filling
    assert sequences(await read_all(quick)) == [17]


async def test_three_segments_behind_the_slowest_stay(store: JournalStore) -> None:
    journal, filling = await filled(store)
    reader = journal.reader(0)
    while not filling.done():
        await reader.read()
        await asyncio.sleep(0)
    standing = reader.standing
    again = journal.reader(standing - 7)
    found = await again.read()
    assert not isinstance(found, Gap)
    assert found[0].sequence == standing - 6


async def test_an_end_unblocks_and_loses_nothing(store: JournalStore, root: Path) -> None:
    journal, filling = await filled(store)
    await blocked(filling)
    journal.unblock()
    await filling
    await journal.append([piece(b"y" * 60_000), piece(b"last words")])
    assert kept_bytes(root) > BOUND
    exit_ = exit_after(journal)
    assert await journal.finish(exit_)
    assert sequences(await records(journal)) == list(range(1, 20))


async def test_a_full_disk_blocks_too_and_an_end_loses(store: JournalStore, disk: Disk) -> None:
    journal = await store.open(execution(), on_full=OnFull.BLOCK)
    await journal.append([piece(b"kept")])
    disk.room = 0
    appending = await refused(disk, journal, b"waits")
    journal.retry()
    await blocked(appending)
    disk.room = 10**6
    journal.retry()
    await appending
    assert sequences(await records(journal)) == [1, 2]
    disk.room = 0
    appending = await refused(disk, journal, b"lost")
    journal.unblock()
    await appending
    assert sequences(await records(journal)) == [1, 2, (3, 3, 4)]


async def test_room_that_comes_while_a_write_fails_is_not_missed(
    store: JournalStore, disk: Disk, work: BriefWork, clock: FakeClock
) -> None:
    await work.run(lambda: clock.advance(1))  # The disk is slow: writes are done in threads.
    journal = await store.open(execution(), on_full=OnFull.BLOCK)
    loop, told = asyncio.get_running_loop(), threading.Event()
    disk.room = 0

    def make_room() -> None:
        disk.room = 10**6
        journal.retry()
        told.set()

    def refusing() -> None:
        loop.call_soon_threadsafe(make_room)
        told.wait()

    disk.refusing = refusing
    await journal.append([piece(b"waits")])
    assert sequences(await records(journal)) == [1]


async def test_a_reader_that_stands_still_holds_nothing_up_before_the_bound(
    root: Path, work: BriefWork
) -> None:
    store = JournalStore(root=root, work=work, most_bytes=64 * BOUND)
    journal = await store.open(execution(), on_full=OnFull.BLOCK)
    still, near = journal.reader(0), journal.reader(0)
    for _ in range(12):
        await journal.append([piece(b"x" * MOST_RECORD_BYTES)] * 4)
        assert await near.read()
    assert not journal.recent(1)
    assert len(journal.recent(45)) == 4
    assert not journal.recent(44)
    assert sequences(await read_all(still)) == list(range(1, 49))
    for _ in range(3):
        await journal.append([piece(b"x" * MOST_RECORD_BYTES)] * 4)
    assert len(journal.recent(53)) == 8, "it has come near again"


async def test_a_writer_that_waits_for_a_reader_to_come_near_ends_with_its_program(
    root: Path, work: BriefWork
) -> None:
    store = JournalStore(root=root, work=work, most_bytes=64 * BOUND)
    journal = await store.open(execution(), on_full=OnFull.BLOCK)
    journal.reader(0)

    async def write() -> None:
        for _ in range(12):
            await journal.append([piece(b"x" * MOST_RECORD_BYTES)] * 4)

    writing = asyncio.create_task(write())
    while journal.last_sequence < 20:  # noqa: ASYNC110 - the journal's own threads are at work
        await asyncio.sleep(0)
    journal.unblock()
    await writing
    assert journal.size == 48 * MOST_RECORD_BYTES


async def test_what_all_readers_have_passed_is_kept_on_disk_only(store: JournalStore) -> None:
    journal = await store.open(execution())
    quick, slow = journal.reader(0), journal.reader(0)
    for number in range(1, 4):
        await journal.append([piece(b"%d" % number)])
    assert len(journal.recent(1)) == 3
    assert sequences(await read_all(quick)) == [1, 2, 3]
    assert len(journal.recent(1)) == 3
    assert sequences(await read_all(slow)) == [1, 2, 3]
    assert journal.recent(1) == ()
    assert sequences(await records(journal)) == [1, 2, 3]
