"""Journals on a disk that a test can fill."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox_worker.brief_work import BriefWork
from sandbox_worker.journals.store import JournalStore
from tests.fakes.clock import FakeClock
from tests.fakes.journals import BOUND, Disk


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def work(executor: ThreadPoolExecutor, clock: FakeClock) -> BriefWork:
    return BriefWork(executor=executor, clock=clock)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "journals"


@pytest.fixture
def store(root: Path, work: BriefWork, disk: Disk) -> JournalStore:
    return JournalStore(root=root, work=work, most_bytes=BOUND, write=disk.write)
