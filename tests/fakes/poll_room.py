"""A client that polls a gateway in memory, under a clock that a test may move."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fairlead_tunnel.carriers import TunnelDesk, TunnelTicket
from fairlead_tunnel.endpoints import Endpoint, EndpointPool
from fairlead_tunnel.frames import Content
from fairlead_tunnel.http_posts import Answer
from fairlead_tunnel.poll_carrier import PollCarrier
from fairlead_tunnel.poll_desk import PollDesk
from fairlead_tunnel.records import Suite
from fairlead_tunnel.ticket import Grant, TicketKey
from fairlead_tunnel.tunnel import Side, Tunnel
from fairlead_tunnel.tunnel_driver import TunnelDriver

Fault = Answer | OSError | None
"""What a poll meets: an answer of somebody else, an error, or nothing."""


@dataclass
class MemoryPosts:
    """Brings bodies to a gateway's desk; `meets` says what poll number n meets on its way."""

    desk: PollDesk
    meets: Callable[[int, str], Fault] = lambda number, url: None
    swallows: Callable[[int, str], bool] = lambda number, url: False
    cuts: Callable[[bytes], bytes] = lambda body: body
    """What a hop leaves of each body, in either direction."""
    upload_rate: float = math.inf
    """Bytes per second of each body on its way up."""
    sent: list[tuple[float, str]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0

    async def post(
        self, url: str, target: str, body: bytes, *, first_seconds: float, most_bytes: int
    ) -> Answer:
        """Post a body."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        self.sent.append((started, url))
        number = len(self.sent)
        fault = self.meets(number, url)
        if isinstance(fault, Answer):
            return fault
        if fault is not None:
            raise fault
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            async with asyncio.timeout(first_seconds):
                if self.swallows(number, url):
                    await asyncio.Event().wait()
                await asyncio.sleep(len(body) / self.upload_rate)
                answer = self.cuts(await self._met(self.cuts(body)))
        finally:
            self.under_way -= 1
        return Answer(200, answer, loop.time() - started)

    async def _met(self, body: bytes) -> bytes:
        met = self.desk.meet(body)
        if isinstance(met, bytes):
            return met
        line, poll = met
        try:
            return await poll.answer
        finally:
            line.drop(poll)


@dataclass
class End:
    """One side in memory: keeps what comes; the gateway's accepts everything."""

    side: Side
    driver: TunnelDriver = field(init=False)
    received: bytearray = field(default_factory=bytearray)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    over_reason: str = ""
    channel: int = 0
    answers: bool = False
    """Whether everything is sent back."""

    def __post_init__(self) -> None:
        self.driver = TunnelDriver(tunnel=Tunnel(side=self.side), user=self)

    def wanted(self, channel: int, target: str) -> None:
        """Accept it."""
        self.channel = channel
        self.driver.accept(channel)
        self.driver.connect(channel, self)

    def open(self) -> None:
        """Open a channel."""
        self.channel = self.driver.open("port:80", hold_seconds=0.001)
        self.driver.connect(self.channel, self)

    def say(self, content: bytes) -> None:
        """Send bytes in the channel."""
        self.driver.port_read(self.channel, content)

    async def heard(self, count: int) -> None:
        """Wait until so many bytes have come."""
        while len(self.received) < count:
            self.news.clear()
            await self.news.wait()

    def write(self, content: Content) -> None:
        """Keep bytes."""
        self.received += content
        self.news.set()
        self.driver.port_consumed(self.channel, len(content))
        if self.answers:
            self.say(bytes(content))

    def accepted(self, channel: int) -> None:
        """Note nothing."""

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Note nothing."""

    def over(self, reason: str, message: str) -> None:
        """Keep why."""
        self.over_reason = reason

    def go_on(self) -> None:
        """Read nothing: `say` is not bounded here."""

    def finish(self) -> None:
        """Note nothing."""

    def close(self) -> None:
        """Be gone."""
        self.driver.port_lost(self.channel, None)

    def abort(self) -> None:
        """Note nothing."""


@dataclass
class PollRoom:
    """Both ends, and what is between them."""

    client: End
    gateways: list[End]
    posts: MemoryPosts
    carrier: PollCarrier
    desk: TunnelDesk
    running: asyncio.Task[None]

    @property
    def gateway(self) -> End:
        """The gateway's end of the tunnel."""
        return self.gateways[0]


@asynccontextmanager
async def poll_room(
    *urls: str,
    meets: Callable[[int, str], Fault] = lambda number, url: None,
    swallows: Callable[[int, str], bool] = lambda number, url: False,
) -> AsyncIterator[PollRoom]:
    """Poll endpoints in memory while in the block; `urls` are `http://a` when none is given."""
    private = X25519PrivateKey.generate()
    key = TicketKey(secret=bytes(32), gateway_id="gtw_a")
    gateways: list[End] = []

    def begin(grant: Grant) -> TunnelDriver:
        gateways.append(End(Side.GATEWAY))
        return gateways[-1].driver

    loop = asyncio.get_running_loop()
    desk = TunnelDesk(
        tickets=key, private_key=private.private_bytes_raw(), begin=begin, unix_time=loop.time
    )
    tunnel_id, psk = secrets.token_bytes(16), secrets.token_bytes(32)
    grant = Grant(tunnel_id.hex(), "default", "ses_a", "lch_a", psk, loop.time() + 60)
    ticket = TunnelTicket(
        tunnel_id=tunnel_id,
        ticket=key.seal(grant, random=secrets.token_bytes),
        psk=psk,
        gateway_key=private.public_key().public_bytes_raw(),
        suite=Suite.AES_256_GCM,
    )
    client = End(Side.CLIENT)
    posts = MemoryPosts(PollDesk(desk=desk), meets=meets, swallows=swallows)
    pool = EndpointPool([Endpoint(url) for url in urls or ("http://a",)], now=loop.time())
    carrier = PollCarrier(driver=client.driver, ticket=ticket, pool=pool, posts=posts)
    running = asyncio.ensure_future(carrier.run())
    try:
        yield PollRoom(client, gateways, posts, carrier, desk, running)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await running
