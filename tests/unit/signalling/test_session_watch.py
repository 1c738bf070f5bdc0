"""How watchers wait for the records of a session: nothing is lost between two waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from signalling.session import Session
from signalling.session_book import Watch
from tests.fakes.session_house import HELD, House, make_house

pytestmark = pytest.mark.asyncio


async def opened() -> tuple[House, Session]:
    house = make_house()
    await house.connect()
    return house, await house.broker.open("default", HELD.launch_id, "complete", None)


async def waiting(watch: Watch, version: int) -> asyncio.Task[int]:
    """A task that waits for a newer record, and does so by now; its result is the version."""

    async def wait() -> int:
        return (await watch.after(version)).version

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


async def test_shown_twice_before_it_wakes_it_has_the_newest() -> None:
    house, session = await opened()
    with house.book.watching(session.session_id) as watch:
        task = await waiting(watch, 1)
        watch.show(replace(session, version=2))
        watch.show(replace(session, version=3))
        assert await task == 3


async def test_shown_between_two_waits_it_does_not_wait() -> None:
    house, session = await opened()
    with house.book.watching(session.session_id) as watch:
        watch.show(session)
        assert await watch.after(0) is session
        watch.show(replace(session, version=2))
        assert (await watch.after(1)).version == 2


async def test_a_record_that_is_not_newer_wakes_nobody_for_good() -> None:
    house, session = await opened()
    with house.book.watching(session.session_id) as watch:
        task = await waiting(watch, 1)
        watch.show(session)
        await asyncio.sleep(0)
        assert not task.done()
        watch.show(replace(session, version=2))
        assert await task == 2


async def test_shown_while_a_wait_is_given_up_the_next_one_has_it() -> None:
    house, session = await opened()
    with house.book.watching(session.session_id) as watch:
        task = await waiting(watch, 1)
        task.cancel()
        watch.show(replace(session, version=2))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await watch.after(1)).version == 2


async def test_who_leaves_does_not_take_the_others_along() -> None:
    house, session = await opened()
    with house.book.watching(session.session_id) as staying:
        with house.book.watching(session.session_id) as leaving:
            task = await waiting(staying, 1)
        assert house.book.is_watched(session.session_id)
        closed = await house.broker.close("default", session.session_id)
        assert await task == closed.version
        assert leaving.session is None
    assert not house.book.is_watched(session.session_id)
