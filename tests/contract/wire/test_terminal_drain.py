"""A gateway drains while a terminal is open over WebRTC: it may finish, and no other begins."""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
from pathlib import Path

import pytest

from fairlead_sdk.errors import Unavailable
from fairlead_sdk.forwarding import open_session
from fairlead_sdk.terminal_channels import TerminalChannel, terminal_channel
from tests.contract.wire.gateway_mesh import LAUNCH, mesh
from tests.contract.wire.sandbox_room import SandboxRoom, room_in_process, room_settings
from tests.eventually import SECONDS
from tests.fakes.port_worker import PortWorkerFake

pytestmark = pytest.mark.asyncio


class TerminalWorker(PortWorkerFake):
    """Has a real worker bring one terminal, whatever is asked for."""

    def __init__(self, *, room: SandboxRoom, sandbox_id: str, execution_id: str) -> None:
        super().__init__()
        self._room = room
        self._sandbox_id = sandbox_id
        self._execution_id = execution_id

    async def bring(self, address: str, ticket: bytes, port: int) -> bool:
        await self._room.open_port(
            self._sandbox_id, port, address, ticket, execution_id=self._execution_id
        )
        return True


async def shown_until(channel: TerminalChannel, wanted: bytes) -> None:
    """Read what the terminal shows up to some bytes."""
    shown = b""
    while wanted not in shown:
        message = await channel.receive()
        assert message is not None, shown
        if isinstance(message, bytes):
            shown += message[8:]


async def exit_code(channel: TerminalChannel) -> object:
    """Read to the exit, which is the last word."""
    while (message := await channel.receive()) is not None:
        if isinstance(message, str) and (told := json.loads(message))["type"] == "exit":
            assert await channel.receive() is None
            return told["exit"]["code"]
    raise AssertionError("no exit")


async def test_a_drain_lets_a_terminal_finish_and_begins_no_other(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fls-") as sockets:
        async with (
            asyncio.timeout(SECONDS),
            mesh() as it,
            room_in_process(room_settings(tmp_path, Path(sockets))) as room,
        ):
            sandbox_id = (await room.create()).sandbox_id
            script = "stty -echo; echo ready; read line; echo got $line; exit 3"
            execution_id = (
                await room.start(sandbox_id, "sh", "-c", script, terminal=(24, 80))
            ).execution_id
            it.signalling.worker = TerminalWorker(
                room=room, sandbox_id=sandbox_id, execution_id=execution_id
            )
            async with open_session(it.sessions, LAUNCH) as session:
                async with terminal_channel(session, execution_id) as channel:
                    await channel.send(json.dumps({"type": "open"}))
                    await shown_until(channel, b"ready")
                    draining = asyncio.create_task(it.gateway.drain())
                    await it.signalling.until(lambda: it.signalling.heartbeats[-1].draining)
                    async with terminal_channel(session, execution_id) as late:
                        with pytest.raises(Unavailable) as refused:
                            await late.receive()
                    assert refused.value.reason == "gateway_draining"
                    assert len(it.signalling.ports) == 1
                    assert not draining.done()
                    await channel.send(struct.pack(">Q", 0) + b"on\n")
                    await shown_until(channel, b"got on")
                    assert await exit_code(channel) == 3
                await draining
                assert it.gateway.sessions == 1
