"""Journals on a disk that is full, and of a process that was killed while it wrote and evicted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chassis.clock import SystemClock
from chassis.errors import FairleadError
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.execution import Gap, GapReason, OutputRecord
from sandbox_worker.journals.budget import MIB, Budgets
from sandbox_worker.journals.file_journal import FileJournal
from sandbox_worker.journals.store import JournalStore
from tests.fakes.journals import execution, exit_after, piece, records, sequences

pytestmark = pytest.mark.asyncio

_WRITER = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.contract.ports.test_journal_disks import content_of, opened
from tests.fakes.journals import execution, exit_after, piece

async def main():
    with ThreadPoolExecutor(2) as executor:
        store = opened(Path(sys.argv[1]), executor, most=2 * 1024 * 1024)
        while True:
            journal = await store.open(execution())
            for sequence in range(1, 31):
                await journal.append([piece(content_of(sequence))])
                print(sequence, flush=True)
            await journal.finish(exit_after(journal))

asyncio.run(main())
"""


def content_of(sequence: int) -> bytes:
    """Give the output of a record: some are written on the event loop, some in a thread."""
    return bytes([sequence]) * (10_000 if sequence % 3 else 90_000)


def opened(root: Path, executor: ThreadPoolExecutor, *, most: int) -> JournalStore:
    """Open the journals of a directory, which hold `most` bytes together."""
    return JournalStore(
        root=root / "journals",
        work=BriefWork(executor=executor, clock=SystemClock()),
        most_bytes=MIB,
        budgets=Budgets(sandbox=most, tenant=most, host=most, reserve=0),
    )


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8M", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user cannot mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(ballast: int) -> None:
    """Let a file grow until its disk has no room."""
    found = os.fstatvfs(ballast)
    if free := found.f_bavail * found.f_frsize:
        os.posix_fallocate(ballast, os.fstat(ballast).st_size, free)


@pytest.mark.parametrize("steps", [1, 97, 150, 233])
async def test_what_a_killed_writer_leaves_is_whole(
    tmp_path: Path, executor: ThreadPoolExecutor, steps: int
) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WRITER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    for _ in range(steps):
        said = int(await writer.stdout.readline())
    writer.kill()
    await writer.wait()
    found = await opened(tmp_path, executor, most=2 * MIB).recover()
    held = sum(path.stat().st_size for path in (tmp_path / "journals").iterdir())
    assert held <= 2 * MIB + MIB // 8
    running = [each for each in found if each.execution.exit is None]
    if running:
        assert max(each.journal.last_sequence for each in running) >= (said if said < 30 else 0)
    for each in found:
        assert isinstance(each.journal, FileJournal)
        place = 0
        for output in await records(each.journal):
            if isinstance(output, Gap):
                assert (place, output.first) == (0, 1), "only the oldest are gone"
                assert output.size == sum(len(content_of(n)) for n in range(1, output.last + 1))
                place = output.last
            else:
                place += 1
                assert (output.sequence, output.content) == (place, content_of(place))
        assert place == each.journal.last_sequence


async def test_a_full_disk_takes_the_oldest_of_what_has_ended(
    small_disk: Path, executor: ThreadPoolExecutor
) -> None:
    store = opened(small_disk, executor, most=64 * MIB)
    ended = await store.open(execution())
    for _ in range(9):
        await ended.append([piece(os.urandom(100_000))])
    await ended.finish(exit_after(ended))
    runs = await store.open(execution())
    with (small_disk / "ballast").open("wb") as ballast:
        fill(ballast.fileno())
    for _ in range(2):
        await runs.append([piece(os.urandom(100_000))])
    assert sequences(await records(runs)) == [1, 2]
    (gap, *rest) = await records(ended)
    assert isinstance(gap, Gap)
    assert gap.reason is GapReason.DISK_FULL
    assert rest


async def test_a_full_disk_is_reported_as_that(
    small_disk: Path, executor: ThreadPoolExecutor
) -> None:
    store = opened(small_disk, executor, most=64 * MIB)
    journal = await store.open(execution())
    await journal.append([piece(b"kept")])
    with (small_disk / "ballast").open("wb") as ballast:
        fill(ballast.fileno())
    await journal.append([piece(os.urandom(100_000))])
    fill_again = small_disk / "ballast"
    with fill_again.open("ab") as ballast:
        fill(ballast.fileno())
    with pytest.raises(FairleadError, match="disk is full") as refused:
        await store.open(execution())
    assert refused.value.reason == "storage_unavailable"
    fill_again.unlink()
    await journal.append([piece(b"back")])
    assert await journal.finish(exit_after(journal))
    before = await records(journal)
    assert [each.content for each in before if isinstance(each, OutputRecord)] == [b"kept", b"back"]
    assert before[1] == Gap(first=2, last=2, size=100_000, reason=GapReason.DISK_FULL)
    (kept,) = await opened(small_disk, executor, most=64 * MIB).recover()
    assert isinstance(kept.journal, FileJournal)
    assert await records(kept.journal) == before
