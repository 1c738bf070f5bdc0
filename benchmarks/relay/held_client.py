"""A client over polls with a number of workers and a hold of its own, which counts its opens.

`python -m benchmarks.relay.held_client LAUNCH TARGET WORKERS HOLD` leads a port of loopback to the
target and prints it; for each line that it is told it prints how many channels it has opened, and
of how many the OPEN and the first bytes left in one batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.sessions.program import own_input
from fairlead_sdk import AsyncFairlead
from fairlead_sdk.tunnel_sessions import ticket_of, tunnel_of
from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.channel_port import ChannelPort
from fairlead_tunnel.endpoints import Endpoint, EndpointPool
from fairlead_tunnel.frames import Open, Range, Segment, decode
from fairlead_tunnel.http_posts import HttpPosts
from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.poll_carrier import PollCarrier
from fairlead_tunnel.tunnel import Side, Tunnel
from fairlead_tunnel.tunnel_driver import TunnelDriver


class CountingTunnel(Tunnel):
    """A client's tunnel that notes what leaves with each OPEN."""

    def __init__(self) -> None:
        super().__init__(side=Side.CLIENT)
        self.opened = 0
        self.bundled = 0
        self._pending: set[int] = set()

    def open(self, target: str, *, hold_until: float | None = None) -> int:
        """Open a channel."""
        channel = super().open(target, hold_until=hold_until)
        self._pending.add(channel)
        return channel

    def take_batch(
        self,
        *,
        carrier: int,
        most: int,
        now: float,
        answer: bool = False,
        alive: Sequence[Range] = (),
        opens: bool = True,
    ) -> Batch | None:
        """Look into what leaves, as long as a channel's OPEN has not left."""
        batch = super().take_batch(
            carrier=carrier, most=most, now=now, answer=answer, alive=alive, opens=opens
        )
        if batch is not None and self._pending:
            self._note(batch)
        return batch

    def _note(self, batch: Batch) -> None:
        _, _, frames = decode(b"".join(batch.pieces))
        opens = {frame.channel for frame in frames if isinstance(frame, Open)} & self._pending
        first = {frame.channel for frame in frames if isinstance(frame, Segment)}
        self.opened += len(opens)
        self.bundled += len(opens & first)
        self._pending -= opens


class _Workers(EndpointPool):
    """One endpoint with a number of workers of its own."""

    def __init__(self, url: str, count: int, now: float) -> None:
        super().__init__((Endpoint(url),), now=now)
        self._count = count

    @property
    def workers(self) -> int:
        """How many active polls there may be at once."""
        return self._count


class _Client:
    """Opens channels; `TunnelDriver`'s user."""

    def __init__(self, *, tunnel: Tunnel, target: str, hold_seconds: float) -> None:
        self.driver = TunnelDriver(tunnel=tunnel, user=self)
        self._target = target
        self._hold_seconds = hold_seconds

    def port(self) -> ChannelPort:
        """Open a channel for a connection that was made."""
        channel = self.driver.open(self._target, hold_seconds=self._hold_seconds)
        port = ChannelPort(channel, self.driver)
        self.driver.connect(channel, port)
        return port

    def wanted(self, channel: int, target: str) -> None:
        """Never comes."""

    def accepted(self, channel: int) -> None:
        """Nothing follows."""

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Nothing follows."""

    def over(self, reason: str, message: str) -> None:
        """Say why nothing goes on."""
        print(f"{reason}: {message}", file=sys.stderr)


@asynccontextmanager
async def _polling(
    driver: TunnelDriver, ticket: TunnelTicket, url: str, workers: int
) -> AsyncIterator[None]:
    posts = HttpPosts()
    pool = _Workers(url, workers, asyncio.get_running_loop().time())
    carrier = PollCarrier(driver=driver, ticket=ticket, pool=pool, posts=posts)
    async with asyncio.TaskGroup() as tasks:
        polling = tasks.create_task(carrier.run())
        try:
            ticket.keep(await carrier.ready)
            yield
        finally:
            carrier.stream.close()
            await asyncio.wait((polling,))
            posts.close()


async def serve(launch_id: str, target: str, workers: int, hold_seconds: float) -> None:
    """Lead a port to the target until the input ends."""
    tunnel = CountingTunnel()
    client = _Client(tunnel=tunnel, target=target, hold_seconds=hold_seconds)
    url, key = os.environ["FAIRLEAD_URL"], os.environ["FAIRLEAD_API_KEY"]
    async with AsyncFairlead(url=url, api_key=key) as mesh:
        opened = tunnel_of(await mesh.sessions.create(launch_id, mode="tunnel"))
        async with _polling(client.driver, ticket_of(opened), opened.urls[0], workers):
            loop = asyncio.get_running_loop()
            server = await loop.create_server(client.port, "127.0.0.1", 0, backlog=1024)
            print(server.sockets[0].getsockname()[1], flush=True)
            lines = await own_input()
            while await lines.readline():
                print(json.dumps([tunnel.opened, tunnel.bundled]), flush=True)
            server.close()


def main() -> None:
    launch_id, target, workers, hold_seconds = sys.argv[1:]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(launch_id, target, int(workers), float(hold_seconds)))


if __name__ == "__main__":
    main()
