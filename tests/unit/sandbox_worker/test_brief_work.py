"""Where short work on files runs: on the event loop, until the disk hangs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox_worker.brief_work import LONGEST_SECONDS, REST_SECONDS, BriefWork
from tests.fakes.clock import FakeClock

pytestmark = pytest.mark.asyncio


async def test_a_quick_disk_is_used_without_a_pause(work: BriefWork) -> None:
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(later.set_result, None)
    assert await work.run(threading.current_thread) is threading.current_thread()
    assert not later.done()


async def test_after_a_disk_that_hung_threads_wait_for_it(
    work: BriefWork, clock: FakeClock
) -> None:
    here = threading.current_thread()
    await work.run(lambda: clock.advance(LONGEST_SECONDS))
    assert await work.run(threading.current_thread) is here
    await work.run(lambda: clock.advance(LONGEST_SECONDS * 2))
    assert await work.run(threading.current_thread) is not here
    clock.advance(REST_SECONDS)
    assert await work.run(threading.current_thread) is here


async def test_work_that_fails_slowly_counts(work: BriefWork, clock: FakeClock) -> None:
    def fail() -> None:
        clock.advance(LONGEST_SECONDS * 2)
        raise OSError

    for _ in range(2):
        with pytest.raises(OSError):  # noqa: PT011 - any
            await work.run(fail)
    assert await work.run(threading.current_thread) is not threading.current_thread()


async def test_long_work_never_holds_up_the_loop(executor: ThreadPoolExecutor) -> None:
    work = BriefWork(executor=executor, clock=FakeClock())
    assert await work.run_apart(threading.current_thread) is not threading.current_thread()
