"""Programs that share one connection: their calls do not meet, and who leaves leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_channel import HostChannel
from fairlead_sdk.ssh_connection import SshConnection
from fairlead_sdk.ssh_errors import SshUnauthorized
from fairlead_sdk.ssh_frames import Decoder, Frame, encoded
from fairlead_sdk.ssh_kept import KeptSsh, Timing
from fairlead_sdk.ssh_relay import relay
from tests.fakes.virtual_time import run, settle

ADDRESS = SshAddress.read("ssh://ada@box/srv/fairlead")


class End:
    """One end of a stream in memory: what is written is kept as frames."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.frames: list[Frame] = []
        self.closed = False
        self._decoder = Decoder()

    def write(self, content: bytes) -> None:
        self.frames += self._decoder.feed(content)

    async def drain(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True

    def say(self, call: int, type_: str, payload: bytes = b"", **fields: object) -> None:
        self.reader.feed_data(encoded(call, type_, payload, **fields))

    def said(self) -> list[tuple[int, str]]:
        return [(frame.call, frame.type) for frame in self.frames]


class Shared:
    """A kept connection to a host in memory, and the programs that share it."""

    def __init__(self) -> None:
        self.host = End()
        self.error: SshUnauthorized | None = None
        timing = Timing(now=asyncio.get_running_loop().time)
        self.kept = KeptSsh(address=ADDRESS, connect=self._connect, timing=timing)

    @asynccontextmanager
    async def _connect(self, address: SshAddress) -> AsyncIterator[SshConnection]:
        if self.error is not None:
            raise self.error
        channel = HostChannel(reader=self.host.reader, writer=self.host, destination="ada@box")
        following = asyncio.ensure_future(channel.follow())
        try:
            yield SshConnection(channel=channel, hello={})
        finally:
            following.cancel()
            await asyncio.wait((following,))

    def program(self, tasks: asyncio.TaskGroup) -> End:
        end = End()
        tasks.create_task(relay(end.reader, end, self.kept))
        end.say(0, "open", patience=0)
        return end


def shared(scenario: Callable[[Shared, asyncio.TaskGroup], Awaitable[None]]) -> None:
    async def hold() -> None:
        world = Shared()
        async with world.kept, asyncio.TaskGroup() as tasks:
            await scenario(world, tasks)

    run(hold())


def test_two_programs_may_use_the_same_numbers() -> None:
    async def scenario(world: Shared, tasks: asyncio.TaskGroup) -> None:
        one, other = world.program(tasks), world.program(tasks)
        one.say(1, "call", verb="get")
        other.say(1, "call", b"more", verb="run")
        await settle()
        calls = {frame.fields["verb"]: frame.call for frame in world.host.frames}
        assert len(set(calls.values())) == 2
        other.say(1, "bytes", b"in")
        other.say(1, "credit", credit=7)
        await settle()
        last = world.host.frames[-2:]
        assert [(frame.call, frame.type) for frame in last] == [
            (calls["run"], "bytes"),
            (calls["run"], "credit"),
        ]
        world.host.say(calls["run"], "bytes", b"out", stream="stdout")
        world.host.say(calls["get"], "answer", workspace={})
        world.host.say(calls["run"], "answer", reason="exited", code=0)
        await settle()
        assert one.said() == [(0, "hello"), (1, "answer")]
        assert other.said() == [(0, "hello"), (1, "bytes"), (1, "answer")]
        assert other.frames[1].payload == b"out"
        for end in (one, other):
            end.reader.feed_eof()

    shared(scenario)


def test_what_a_program_began_is_given_up_when_it_leaves() -> None:
    async def scenario(world: Shared, tasks: asyncio.TaskGroup) -> None:
        one = world.program(tasks)
        one.say(1, "call", verb="run")
        one.say(2, "call", verb="get")
        await settle()
        world.host.say(world.host.frames[1].call, "answer")
        await settle()
        one.reader.feed_eof()
        await settle()
        run_call = world.host.frames[0].call
        assert world.host.said()[2:] == [(run_call, "cancel")]
        assert one.closed

    shared(scenario)


def test_the_end_of_the_connection_ends_every_program() -> None:
    async def scenario(world: Shared, tasks: asyncio.TaskGroup) -> None:
        ends = [world.program(tasks) for _ in range(3)]
        for end in ends:
            end.say(1, "call", verb="run")
        await settle()
        world.host.reader.feed_eof()
        await settle()
        assert [end.closed for end in ends] == [True, True, True]

    shared(scenario)


def test_the_error_of_connecting_is_told_and_nothing_is_relayed() -> None:
    async def scenario(world: Shared, tasks: asyncio.TaskGroup) -> None:
        world.error = SshUnauthorized("ada@box")
        one = world.program(tasks)
        one.say(1, "call", verb="run")
        await settle()
        assert one.said() == [(0, "error")]
        assert one.frames[0].fields["reason"] == "ssh_unauthorized"
        assert one.frames[0].fields["kind"] == "unauthenticated"
        assert one.closed

    shared(scenario)


@pytest.mark.parametrize(
    "first", [b"\0" * 8, encoded(0, "close"), encoded(0, "open", patience="x")]
)
def test_who_does_not_open_is_not_served(first: bytes) -> None:
    async def scenario(world: Shared, tasks: asyncio.TaskGroup) -> None:
        end = End()
        end.reader.feed_data(first)
        tasks.create_task(relay(end.reader, end, world.kept))
        await settle()
        assert end.said() == []
        assert end.closed
        assert not world.kept.is_open

    shared(scenario)
