"""Terminals over channels: a real worker dials a gateway's door, and a client talks through it."""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from fairlead_tunnel.byte_channel import Side
from fairlead_tunnel.conversation import Conversation, own_connection
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.pump import Ending, Pump
from relay_gateway.worker_door import WorkerDoor
from tests.contract.wire.sandbox_room import SandboxRoom, room_in_process, room_settings
from tests.eventually import SECONDS

pytestmark = pytest.mark.asyncio

_LONG = "stty -echo; echo ready; cat"


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@dataclass
class Gate:
    """A worker, and the door of a gateway that it dials."""

    room: SandboxRoom
    door: WorkerDoor
    address: str


@pytest_asyncio.fixture
async def gate(tmp_path: Path, sockets: Path) -> AsyncIterator[Gate]:
    door = WorkerDoor()
    async with (
        door.serve(f"unix:{sockets}/relay") as address,
        room_in_process(room_settings(tmp_path, sockets)) as room,
    ):
        yield Gate(room, door, address)


class Client:
    """The opener's end of a channel to a terminal."""

    def __init__(self, talk: Conversation, ending: asyncio.Task[Ending]) -> None:
        self.talk = talk
        self.ending = ending
        self.shown = b""
        self.sequence = 0

    async def say(self, kind: str, **members: object) -> None:
        await self.talk.send(json.dumps({"type": kind, **members}))

    async def type(self, offset: int, content: bytes) -> None:
        await self.talk.send(struct.pack(">Q", offset) + content)

    async def next(self) -> dict[str, object] | None:
        """The next message that is not output, which is kept in `shown`."""
        while (message := await self.talk.receive()) is not None:
            if isinstance(message, str):
                found = json.loads(message)
                assert isinstance(found, dict)
                return found
            self.sequence = struct.unpack_from(">Q", message)[0]
            self.shown += message[8:]
        return None

    async def until(self, kind: str) -> dict[str, object]:
        while (found := await self.next()) is not None:
            if found["type"] == kind:
                return found
        raise AssertionError(f"no {kind} after {self.shown!r}")

    async def sees(self, wanted: bytes) -> None:
        while wanted not in self.shown:
            message = await self.talk.receive()
            assert message is not None, self.shown
            if isinstance(message, bytes):
                self.sequence = struct.unpack_from(">Q", message)[0]
                self.shown += message[8:]


@asynccontextmanager
async def attached(gate: Gate, sandbox_id: str, execution_id: str) -> AsyncIterator[Client]:
    async with asyncio.timeout(SECONDS):
        with gate.door.expect() as expected:
            await gate.room.open_port(
                sandbox_id, 0, gate.address, expected.ticket, execution_id=execution_id
            )
            await expected.arrived()
            outer = expected.take()
        framed = FramedPort(reader=outer[0], writer=outer[1])
        pump = Pump(port=framed, side=Side.OPENER)
        reading = asyncio.create_task(framed.run())
        inner, talk = await own_connection()
        ending = asyncio.create_task(pump.carry(*inner))
        try:
            yield Client(talk, ending)
        finally:
            talk.close()
            await asyncio.wait((ending,))
            framed.abort()
            reading.cancel()
            await asyncio.wait((reading,))


async def terminal(gate: Gate, *arguments: str) -> tuple[str, str]:
    sandbox = await gate.room.create(isolation="process")
    execution = await gate.room.start(
        sandbox.sandbox_id, *(arguments or ("sh", "-c", _LONG)), terminal=(24, 80)
    )
    return sandbox.sandbox_id, execution.execution_id


async def test_it_is_typed_into_and_shown_and_its_exit_ends_both(gate: Gate) -> None:
    sandbox_id, execution_id = await terminal(gate, "sh", "-c", "read x; stty size; exit 3")
    async with attached(gate, sandbox_id, execution_id) as client:
        await client.say("open", owner="me", size={"rows": 33, "columns": 101})
        snapshot = await client.until("snapshot")
        assert (snapshot["input_offset"], snapshot["resumed"]) == (0, False)
        await client.type(0, b"go\n")
        exit_ = await client.until("exit")
        assert isinstance(exit_["exit"], dict)
        assert exit_["exit"]["code"] == 3
        assert b"33 101" in client.shown
        assert await client.next() is None
        # Late input changes nothing of the end.
        await client.type(3, b"late\n")
        client.talk.finish()
        assert (await client.ending).reason == ""


async def test_it_is_taken_over_and_come_back_to(gate: Gate) -> None:
    sandbox_id, execution_id = await terminal(gate)
    async with attached(gate, sandbox_id, execution_id) as first:
        await first.say("open", owner="one")
        await first.until("snapshot")
        await first.sees(b"ready")
        await first.type(0, b"abc\n")
        while (await first.until("accepted"))["offset"] != 4:
            continue
        async with attached(gate, sandbox_id, execution_id) as second:
            await second.say("open", owner="two")
            problem = (await second.until("problem"))["problem"]
            assert isinstance(problem, dict)
            assert problem["reason"] == "terminal_owned"
        async with attached(gate, sandbox_id, execution_id) as third:
            await third.say("open", owner="three", take_over=True)
            assert (await third.until("snapshot"))["input_offset"] == 4
            await first.until("taken_over")
    async with attached(gate, sandbox_id, execution_id) as back:
        await back.say("open", owner="three", after_sequence=first.sequence)
        assert (await back.until("snapshot"))["resumed"] is True


async def test_what_is_no_opening_is_a_problem(gate: Gate) -> None:
    sandbox_id, execution_id = await terminal(gate)
    async with attached(gate, sandbox_id, execution_id) as client:
        await client.type(0, b"no opening")
        problem = (await client.until("problem"))["problem"]
        assert isinstance(problem, dict)
        assert problem["reason"] == "terminal_frame_invalid"


async def test_only_executions_of_the_sandbox_are_reached(gate: Gate) -> None:
    sandbox_id, execution_id = await terminal(gate)
    other = await gate.room.create(isolation="process")
    for sandbox, execution in (
        (other.sandbox_id, execution_id),
        (sandbox_id, "exe_" + "a" * 26),
    ):
        with pytest.raises(FairleadError) as caught:
            await gate.room.open_port(sandbox, 0, gate.address, bytes(32), execution_id=execution)
        assert caught.value.reason == "execution_not_found"


async def test_a_sandbox_that_is_released_meanwhile_is_an_exit(gate: Gate) -> None:
    sandbox_id, execution_id = await terminal(gate)
    async with attached(gate, sandbox_id, execution_id) as client:
        # Before the attachment, while the channel stands.
        await gate.room.release(sandbox_id=sandbox_id)
        await client.say("open", owner="me")
        exit_ = await client.until("exit")
        assert isinstance(exit_["exit"], dict)
        assert exit_["exit"]["reason"] == "released"


async def test_a_client_that_leaves_frees_the_terminal(gate: Gate) -> None:
    sandbox_id, execution_id = await terminal(gate)
    for owner in ("one", "two", "three"):
        async with attached(gate, sandbox_id, execution_id) as client:
            await client.say("open", owner=owner)
            while (found := await client.next()) is not None:
                if found["type"] == "snapshot":
                    break
                # The one before has just left.
                raise AssertionError(found)
            client.talk.finish()
            await client.ending


async def test_a_client_that_reads_nothing_stalls_only_its_own(gate: Gate) -> None:
    sandbox_id, slow_id = await terminal(gate, "sh", "-c", "yes | head -c 8000000; sleep 60")
    quick = await gate.room.start(sandbox_id, "sh", "-c", _LONG, terminal=(24, 80))
    async with (
        attached(gate, sandbox_id, slow_id) as slow,
        attached(gate, sandbox_id, quick.execution_id) as other,
    ):
        await slow.say("open", owner="slow")
        await other.say("open", owner="quick")
        await other.sees(b"ready")
        await other.type(0, b"hello\n")
        await other.sees(b"hello")
