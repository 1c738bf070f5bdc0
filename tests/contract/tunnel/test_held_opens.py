"""An open that waits for its first bytes leaves with those that came in time, however busy it is
here.
"""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from fairlead_tunnel.frames import Open, Segment, decode
from fairlead_tunnel.outbox import Batch
from tests.contract.tunnel.talks import echo
from tests.contract.tunnel.tunnel_world import ClientEnd, world

pytestmark = pytest.mark.asyncio


def watched(client: ClientEnd, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Return the batches that carry an OPEN, as they leave."""
    tunnel, found = client.tunnel, list[Batch]()
    take = tunnel.take_batch

    def taken(*, carrier: int, most: int, now: float) -> Batch | None:
        batch = take(carrier=carrier, most=most, now=now)
        if batch is not None and any(isinstance(each, Open) for each in frames(batch)):
            found.append(batch)
        return batch

    monkeypatch.setattr(tunnel, "take_batch", taken)
    return found


def frames(batch: Batch) -> list[object]:
    return [*decode(b"".join(batch.pieces))[2]]


def is_of(frame: object, channel: int) -> bool:
    return isinstance(frame, Open | Segment) and frame.channel == channel


async def test_bytes_that_came_while_the_loop_was_busy_ride_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as it:
        await it.attach()
        target = f"127.0.0.1:{await it.serve(echo)}"
        client = it.client
        assert isinstance(client, ClientEnd)
        opens = watched(client, monkeypatch)
        client.hold_seconds = 0.05
        near, far = socket.socketpair()
        with far:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: client.port_for(target), sock=near)
            far.sendall(b"x")
            time.sleep(0.06)  # noqa: ASYNC251 - what else the loop has to do
            client.driver.flush_soon()
            far.setblocking(False)
            assert await loop.sock_recv(far, 1) == b"x"
            assert any(isinstance(each, Segment) for each in frames(opens[0]))
        await it.settled()


async def test_bytes_that_nobody_could_read_yet_ride_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as it:
        await it.attach()
        target = f"127.0.0.1:{await it.serve(echo)}"
        client = it.client
        assert isinstance(client, ClientEnd)
        opens = watched(client, monkeypatch)
        client.hold_seconds = 0.05
        (silent, silent_far), (near, far) = socket.socketpair(), socket.socketpair()
        with silent_far, far:
            loop = asyncio.get_running_loop()
            # The hold of this one is over in the turn in which the other one's connection is made,
            # whose own hold is over by then too.
            await loop.create_connection(lambda: client.port_for(target), sock=silent)
            far.sendall(b"x")
            making = loop.create_task(
                loop.create_connection(lambda: client.port_for(target), sock=near)
            )
            loop.call_soon(time.sleep, 0.12)
            await making
            far.setblocking(False)
            assert await loop.sock_recv(far, 1) == b"x"
            late = [each for batch in opens for each in frames(batch) if is_of(each, 2)]
            assert [type(each) for each in late] == [Open, Segment]
        await it.settled()
