"""Budgets of all journals of a sandbox, a tenant and a host, and space that is left on the disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from chassis.ids import random_id
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.execution import Execution, Gap, GapReason, OnFull, OutputRecord
from sandbox_worker.journals.budget import LEAST_BYTES, MIB, Budgets
from sandbox_worker.journals.file_journal import FileJournal
from sandbox_worker.journals.store import JournalStore
from tests.fakes.journals import (
    AT,
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

_LARGE = 200_000
_SANDBOX, _TENANT, _HOST = 4 * MIB, 6 * MIB, 10 * MIB


class Space:
    """A file system of which a test says what is free."""

    def __init__(self) -> None:
        self.free = 1 << 40

    def __call__(self, root: Path) -> tuple[int, int]:
        return 1 << 40, self.free


@pytest.fixture
def space() -> Space:
    return Space()


def opened(root: Path, work: BriefWork, space: Space, disk: Disk | None = None) -> JournalStore:
    return JournalStore(
        root=root,
        work=work,
        most_bytes=4 * MIB,
        budgets=Budgets(sandbox=_SANDBOX, tenant=_TENANT, host=_HOST, reserve=20 * MIB),
        write=(disk or Disk()).write,
        space=space,
    )


@pytest.fixture
def store(root: Path, work: BriefWork, space: Space, disk: Disk) -> JournalStore:
    return opened(root, work, space, disk)


def of(sandbox_id: str, tenant: str = "ada") -> Execution:
    return Execution(
        execution_id=random_id("exe"),
        sandbox_id=sandbox_id,
        tenant=tenant,
        arguments=("yes",),
        started_at=AT,
    )


async def written(journal: FileJournal, size: int) -> FileJournal:
    for _ in range(size // _LARGE):
        await journal.append([piece(os.urandom(_LARGE))])
    return journal


async def test_the_executions_of_a_sandbox_share_what_its_disk_allows(
    store: JournalStore, root: Path
) -> None:
    """Those that have ended lose their oldest records first, and readers see which."""
    journals = []
    for _ in range(6):
        journal = await store.open(of("sbx_a"), disk_bytes=2 * MIB)
        journals.append(await written(journal, 2 * MIB))
        await journal.finish(exit_after(journal))
        assert kept_bytes(root) <= 2 * MIB
    first, last = await records(journals[0]), await records(journals[-1])
    assert first == [Gap(first=1, last=10, size=10 * _LARGE, reason=GapReason.EVICTED)], (
        "of the first one nothing is left"
    )
    assert sequences(last)[-3:] == [8, 9, 10]


async def test_a_tenant_makes_room_with_its_own_records(store: JournalStore, root: Path) -> None:
    other = await written(await store.open(of("sbx_b", "bob")), 3 * MIB)
    await other.finish(exit_after(other))
    before = await records(other)
    for number in range(5):
        await written(await store.open(of(f"sbx_{number}")), 3 * MIB)
    assert await records(other) == before
    assert kept_bytes(root) - other.held <= _TENANT


async def test_on_a_full_host_the_largest_tenant_loses(store: JournalStore, root: Path) -> None:
    small = await written(await store.open(of("sbx_s", "small")), 2 * MIB)
    for number in range(4):
        await written(await store.open(of(f"sbx_{number}", f"t{number % 2}")), 4 * MIB)
    assert kept_bytes(root) <= _HOST
    assert not any(isinstance(each, Gap) for each in await records(small))


async def test_a_disk_that_runs_short_loses_records_to_the_reserve(
    store: JournalStore, root: Path, space: Space
) -> None:
    ended = await written(await store.open(of("sbx_a")), 3 * MIB)
    await ended.finish(exit_after(ended))
    runs = await written(await store.open(of("sbx_b")), 2 * MIB)
    space.free = 19 * MIB
    await store.tidy()
    assert kept_bytes(root) <= 4 * MIB
    found = await records(ended)
    assert isinstance(found[0], Gap)
    assert found[0].reason is GapReason.EVICTED
    assert not any(isinstance(each, Gap) for each in await records(runs))
    space.free = 0
    await store.tidy()
    assert kept_bytes(root) == 0
    # What runs goes on, and keeps its numbers.
    await runs.append([piece(b"still here")])
    (gap, record) = await records(runs)
    assert isinstance(gap, Gap)
    assert isinstance(record, OutputRecord)
    assert (gap.last + 1, record.content) == (record.sequence, b"still here")


async def test_a_program_that_waits_loses_nothing_to_others(
    store: JournalStore, root: Path
) -> None:
    """And goes on at the pace of its readers where others hold all there is."""
    waits = await written(await store.open(of("sbx_a"), on_full=OnFull.BLOCK), 3 * MIB)
    reader = waits.reader(0)
    flood = await written(await store.open(of("sbx_a")), 8 * MIB)
    assert kept_bytes(root) <= _SANDBOX
    second = await store.open(of("sbx_a"), on_full=OnFull.BLOCK)
    others = second.reader(0)
    writing = asyncio.create_task(written(second, 4 * MIB))
    found: list[OutputRecord | Gap] = []
    while not writing.done():
        found += await read_all(others)
        await asyncio.sleep(0)
    found += await read_all(others)
    assert sequences(found) == list(range(1, 4 * MIB // _LARGE + 1))
    assert kept_bytes(root) <= _SANDBOX + LEAST_BYTES
    assert sequences(await read_all(reader)) == list(range(1, 3 * MIB // _LARGE + 1))
    assert isinstance((await records(flood))[0], Gap)


async def test_a_full_disk_takes_the_oldest_of_what_has_ended(
    store: JournalStore, disk: Disk
) -> None:
    ended = await written(await store.open(of("sbx_a")), 2 * MIB)
    await ended.finish(exit_after(ended))
    runs = await store.open(of("sbx_b"))
    await runs.append([piece(b"kept")])
    disk.room = 0
    disk.refusing = lambda: setattr(disk, "room", 10**6)
    await runs.append([piece(b"x" * _LARGE)])
    assert sequences(await records(runs)) == [1, 2]
    found = await records(ended)
    assert isinstance(found[0], Gap)
    assert found[0].reason is GapReason.DISK_FULL


@pytest.mark.parametrize("has_ended", [True, False])
async def test_a_restart_counts_what_is_there(
    root: Path, work: BriefWork, space: Space, has_ended: bool
) -> None:
    first = opened(root, work, space)
    for _ in range(3):
        journal = await written(await first.open(of("sbx_a")), 1 * MIB)
        if has_ended:
            await journal.finish(exit_after(journal))
    before = kept_bytes(root)
    space.free = 20 * MIB - before // 2
    kept = await opened(root, work, space).recover()
    assert kept_bytes(root) <= before // 2 + MIB // 2
    assert {each.journal.last_sequence for each in kept} == {5}


async def test_a_reader_follows_while_records_are_evicted_and_written(
    store: JournalStore, space: Space
) -> None:
    """Each record or a gap, in order, with its bytes, whatever runs between two steps of it."""
    journal = await store.open(execution())
    contents = [os.urandom(30_000 + 1_000 * (number % 7)) for number in range(400)]
    ending = asyncio.Event()

    async def write() -> None:
        for start in range(0, len(contents), 4):
            if start in (0, 4, 100):
                readers.append(group.create_task(follow()))
            await journal.append([piece(each) for each in contents[start : start + 4]])
        await journal.finish(exit_after(journal))
        ending.set()

    async def evict() -> None:
        while not ending.is_set():
            space.free = 0
            await store.tidy()
            space.free = 1 << 40
            await store.tidy()
            await asyncio.sleep(0)

    async def follow() -> int:
        reader, place = journal.reader(0), 0
        while place < len(contents):
            output = await reader.read()
            if isinstance(output, Gap):
                assert output.first == place + 1
                assert output.size == sum(map(len, contents[place : output.last]))
                assert output.reason in (GapReason.EVICTED, GapReason.DROPPED)
                place = output.last
                continue
            for record in output:
                place += 1
                assert record.sequence == place
                assert record.content == contents[place - 1]
            await asyncio.sleep(0)
        reader.close()
        return place

    readers: list[asyncio.Task[int]] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(evict())
        group.create_task(write())
    assert [each.result() for each in readers] == [len(contents)] * 3
