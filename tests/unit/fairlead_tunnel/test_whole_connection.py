"""Steps that nobody waits for any more, and an end that takes a bounded time."""

from __future__ import annotations

import asyncio

import pytest

from fairlead_tunnel import whole_connection
from fairlead_tunnel.whole_connection import NotClosed, WholeConnection

pytestmark = pytest.mark.asyncio


class Recorded:
    """A connection that notes what happens, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.may_gather = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def gather(self) -> str:
        self.events.append("gathering")
        try:
            await self.may_gather.wait()
        except asyncio.CancelledError:
            self.events.append("cut")
            raise
        self.events.append("gathered")
        return "offer"

    async def fail(self) -> str:
        await self.may_gather.wait()
        raise ValueError("no")

    async def close(self) -> None:
        self.events.append("closing")
        await self.may_close.wait()
        self.events.append("closed")


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[str]) -> None:
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_step_gives_its_result_and_its_error() -> None:
    connection = Recorded()
    whole = WholeConnection(connection=connection)
    connection.may_gather.set()
    assert await whole.step(connection.gather()) == "offer"
    with pytest.raises(ValueError, match="no"):
        await whole.step(connection.fail())


async def test_a_step_that_is_cancelled_goes_on_and_the_end_waits_for_it() -> None:
    connection = Recorded()
    whole = WholeConnection(connection=connection)
    await cancelled(asyncio.create_task(whole.step(connection.gather())))
    closing = asyncio.create_task(whole.close())
    await settled()
    assert connection.events == ["gathering"]
    connection.may_gather.set()
    await closing
    assert connection.events == ["gathering", "gathered", "closing", "closed"]


async def test_a_step_that_fails_when_nobody_waits_is_no_error_of_the_loop() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    connection = Recorded()
    whole = WholeConnection(connection=connection)
    await cancelled(asyncio.create_task(whole.step(connection.fail())))
    connection.may_gather.set()
    await whole.close()
    assert connection.events == ["closing", "closed"]
    assert errors == []


async def test_an_end_that_is_cancelled_goes_on_and_is_taken_once() -> None:
    connection = Recorded()
    connection.may_close.clear()
    whole = WholeConnection(connection=connection)
    first = asyncio.create_task(whole.close())
    await settled()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    connection.may_close.set()
    await whole.close()
    assert connection.events == ["closing", "closed"]


@pytest.mark.parametrize("what", ["a step", "the end"])
async def test_what_does_not_end_in_time_is_cut_and_told(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_connection, "CLOSE_SECONDS", 0.01)
    connection = Recorded()
    whole = WholeConnection(connection=connection)
    if what == "a step":
        await cancelled(asyncio.create_task(whole.step(connection.gather())))
    else:
        connection.may_close.clear()
    with pytest.raises(NotClosed):
        await whole.close()
    ends = ["gathering", "cut", "closing", "closed"] if what == "a step" else ["closing"]
    assert connection.events == ends
