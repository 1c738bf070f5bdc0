"""One connection's calls: as many at once as a host serves, and pings beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead_sdk.ssh_channel import HostChannel
from fairlead_sdk.ssh_errors import ConnectionLost
from fairlead_sdk.ssh_frames import MAX_CALLS, Decoder, Frame, encoded
from tests.fakes.virtual_time import run, settle
from workspace_provisioner.resident import frames as resident_frames


def test_both_ends_know_how_many_calls_there_may_be() -> None:
    assert MAX_CALLS == resident_frames.MAX_CALLS


class Host:
    """The host's end in memory, which answers when the test says so."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.open: dict[int, Frame] = {}
        self._decoder = Decoder()

    def write(self, content: bytes) -> None:
        for frame in self._decoder.feed(content):
            if frame.type == "call":
                self.open[frame.call] = frame
            elif frame.type == "cancel":
                del self.open[frame.call]

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        self.reader.feed_eof()

    def answer(self, number: int) -> None:
        del self.open[number]
        self.reader.feed_data(encoded(number, "answer"))


def connected(scenario: Callable[[Host, HostChannel], Awaitable[None]]) -> None:
    async def hold() -> None:
        host = Host()
        channel = HostChannel(reader=host.reader, writer=host, destination="ada@box")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(channel.follow())
            await scenario(host, channel)
            host.close()

    run(hold())


def test_calls_beyond_what_a_host_serves_wait_for_a_place() -> None:
    async def scenario(host: Host, channel: HostChannel) -> None:
        asking = [asyncio.ensure_future(channel.ask("run")) for _ in range(2 * MAX_CALLS)]
        await settle()
        first = list(host.open)
        assert len(first) < MAX_CALLS
        host.answer(first[0])
        await settle()
        assert len(host.open) == len(first)
        asking[1].cancel()  # who gives a call up leaves its place too
        await settle()
        assert len(host.open) == len(first)
        while host.open:
            host.answer(next(iter(host.open)))
            await settle()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert outcomes.count({}) == 2 * MAX_CALLS - 1

    connected(scenario)


def test_a_ping_needs_no_place() -> None:
    async def scenario(host: Host, channel: HostChannel) -> None:
        asking = [asyncio.ensure_future(channel.ask("run")) for _ in range(MAX_CALLS)]
        await settle()
        pinging = asyncio.ensure_future(channel.ping())
        await settle()
        host.answer(
            next(number for number, call in host.open.items() if call.fields == {"verb": "ping"})
        )
        await pinging
        for task in asking:
            task.cancel()

    connected(scenario)


def test_who_waits_for_a_place_hears_that_the_connection_is_lost() -> None:
    async def scenario(host: Host, channel: HostChannel) -> None:
        starting = [asyncio.ensure_future(channel.start("run")) for _ in range(MAX_CALLS)]
        await settle()
        waiting = [each for each in starting if not each.done()]
        assert waiting
        host.close()  # while those that have a place stay open
        for each in waiting:
            with pytest.raises(ConnectionLost):
                await each

    connected(scenario)
