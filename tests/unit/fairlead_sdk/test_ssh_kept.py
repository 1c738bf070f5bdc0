"""A kept connection: one attempt at a time, never in a hurry, healthy after 15 seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_channel import HostChannel
from fairlead_sdk.ssh_connection import SshConnection
from fairlead_sdk.ssh_errors import ConnectionLost, SshUnauthorized, SshUnreachable
from fairlead_sdk.ssh_frames import Decoder, encoded
from fairlead_sdk.ssh_kept import DELAYS, PING_LIMIT_SECONDS, PING_SECONDS, KeptSsh, Timing
from tests.fakes.virtual_time import run, settle

Result = TypeVar("Result")
ADDRESS = SshAddress.read("ssh://ada@box/srv/fairlead")


class Wire:
    """A connection in memory whose host answers pings while it is told to."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.answers = True
        self.answer = "answer"
        self._decoder = Decoder()

    def write(self, content: bytes) -> None:
        for frame in self._decoder.feed(content):
            if self.answers:
                self.reader.feed_data(encoded(frame.call, self.answer))

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        return None


class Host:
    """A host that can be away; it counts the attempts, and how many run at once."""

    def __init__(self) -> None:
        self.error: FairleadError | None = None
        self.attempts: list[float] = []
        self.wires: list[Wire] = []
        self.at_once = 0
        self.most_at_once = 0
        self.takes = 0.0

    @asynccontextmanager
    async def connect(self, address: SshAddress) -> AsyncIterator[SshConnection]:
        assert address is ADDRESS
        self.attempts.append(asyncio.get_running_loop().time())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.takes)
            if self.error is not None:
                raise self.error
            wire = Wire()
            self.wires.append(wire)
            channel = HostChannel(
                reader=wire.reader,
                writer=wire,
                destination="ada@box",
            )
            following = asyncio.ensure_future(channel.follow())
            try:
                yield SshConnection(channel=channel, hello={})
            finally:
                following.cancel()
                await asyncio.wait((following,))
        finally:
            self.at_once -= 1

    def hang_up(self) -> None:
        self.wires[-1].reader.feed_eof()


def kept(
    host: Host,
    scenario: Callable[[KeptSsh], Coroutine[object, object, Result]],
    chance: float = 0.5,
) -> Result:
    async def hold() -> Result:
        timing = Timing(
            now=asyncio.get_running_loop().time, sleep=asyncio.sleep, chance=lambda: chance
        )
        async with KeptSsh(address=ADDRESS, connect=host.connect, timing=timing) as connection:
            return await scenario(connection)

    return run(hold())


def test_everybody_waits_for_the_same_attempt() -> None:
    host = Host()
    host.takes = 2.0

    async def scenario(connection: KeptSsh) -> None:
        channels = await asyncio.gather(*(connection.channel() for _ in range(50)))
        assert len(set(map(id, channels))) == 1

    kept(host, scenario)
    assert host.attempts == [0.0]


def test_a_stopping_host_is_not_hammered() -> None:
    host = Host()
    host.error = SshUnreachable("ada@box", "Connection refused")

    async def scenario(connection: KeptSsh) -> int:
        refused = 0
        for _ in range(1000):  # as fast as one client once asked, for a minute
            with pytest.raises(SshUnreachable):
                await connection.channel()
            refused += 1
            await asyncio.sleep(0.06)
        return refused

    assert kept(host, scenario) == 1000
    assert host.most_at_once == 1
    gaps = [after - before for before, after in zip(host.attempts, host.attempts[1:], strict=False)]
    assert gaps[:4] == pytest.approx(DELAYS[:4])
    assert all(gap >= DELAYS[-1] - 0.001 for gap in gaps[4:])
    assert len(host.attempts) <= 10


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.8), (1.0, 1.2)])
def test_the_pauses_are_a_fifth_more_or_less(chance: float, share: float) -> None:
    host = Host()
    host.error = SshUnreachable("ada@box", "no route")

    async def scenario(connection: KeptSsh) -> None:
        with pytest.raises(SshUnreachable):
            await connection.channel(patience=26.0)

    kept(host, scenario, chance)
    gaps = [after - before for before, after in zip(host.attempts, host.attempts[1:], strict=False)]
    assert gaps[:4] == pytest.approx([delay * share for delay in DELAYS[:4]])


def test_who_has_patience_gets_the_connection_when_the_host_is_back() -> None:
    host = Host()
    host.error = SshUnreachable("ada@box", "Connection refused")

    async def scenario(connection: KeptSsh) -> float:
        waiting = asyncio.ensure_future(connection.channel(patience=60.0))
        await asyncio.sleep(5.0)
        host.error = None
        await waiting
        return asyncio.get_running_loop().time()

    assert kept(host, scenario) == pytest.approx(7.0)
    assert host.attempts == pytest.approx([0.0, 1.0, 3.0, 7.0])


def test_what_no_waiting_changes_is_raised_at_once_and_not_tried_by_itself() -> None:
    host = Host()
    host.error = SshUnauthorized("ada@box")

    async def scenario(connection: KeptSsh) -> None:
        with pytest.raises(SshUnauthorized):
            await connection.channel(patience=60.0)
        await asyncio.sleep(100.0)

    kept(host, scenario)
    assert host.attempts == [0.0]


def test_a_connection_that_broke_after_15_seconds_is_made_again_at_once() -> None:
    host = Host()

    async def scenario(connection: KeptSsh) -> None:
        await connection.channel()
        await asyncio.sleep(16.0)
        host.hang_up()
        await settle()
        await connection.channel()

    kept(host, scenario)
    assert host.attempts == [0.0, 16.0]


def test_a_connection_that_broke_earlier_counts_as_a_failure() -> None:
    host = Host()

    async def scenario(connection: KeptSsh) -> None:
        for _ in range(3):
            await connection.channel()
            await asyncio.sleep(5.0)
            host.hang_up()
            await settle()
        await connection.channel()

    kept(host, scenario)
    assert host.attempts == pytest.approx([0.0, 6.0, 13.0, 22.0])


def test_after_a_loss_one_attempt_is_waited_for_and_then_its_failure_told() -> None:
    host = Host()

    async def scenario(connection: KeptSsh) -> float:
        await connection.channel()
        host.error = SshUnreachable("ada@box", "Connection refused")
        host.hang_up()
        await settle()
        for _ in range(3):
            with pytest.raises(SshUnreachable):
                await connection.channel()
        return asyncio.get_running_loop().time()

    assert kept(host, scenario) == pytest.approx(1.0)
    assert host.attempts == pytest.approx([0.0, 1.0])


def test_a_host_that_answers_no_ping_is_given_up_and_its_calls_fail() -> None:
    host = Host()

    async def scenario(connection: KeptSsh) -> float:
        channel = await connection.channel()
        host.wires[0].answers = False
        with pytest.raises(ConnectionLost):
            await channel.ask("get")
        return asyncio.get_running_loop().time()

    assert kept(host, scenario) == pytest.approx(PING_SECONDS + PING_LIMIT_SECONDS)


@pytest.mark.parametrize("answer", ["answer", "error"])
def test_a_quiet_connection_is_kept_for_an_hour(answer: str) -> None:
    host = Host()

    async def scenario(connection: KeptSsh) -> None:
        first = await connection.channel()
        host.wires[0].answer = answer
        await asyncio.sleep(3600.0)
        assert await connection.channel() is first

    kept(host, scenario)
    assert host.attempts == [0.0]


def test_the_end_of_the_block_ends_the_connection() -> None:
    host = Host()

    async def scenario(connection: KeptSsh) -> HostChannel:
        return await connection.channel()

    channel = kept(host, scenario)
    assert channel.lost.is_set()
    assert host.at_once == 0
