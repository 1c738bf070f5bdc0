"""A tunnel into a launch, and another one whenever it is gone for good.

Needs the extra `fairlead-sdk[webrtc]`, for its ciphers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Final

from fairlead_sdk.client import make_idempotency_key
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.session_errors import OpenTimeout, SessionEnded, is_gone, may_pass
from fairlead_sdk.session_records import TUNNEL, SessionTunnel
from fairlead_sdk.session_talk import Sleep
from fairlead_sdk.tracing import client_span
from fairlead_sdk.tunnel_drivers import MOST_CONNECTIONS, drivers_of
from fairlead_sdk.tunnel_sessions import (
    TOLD_SECONDS,
    TunnelApi,
    TunnelFollower,
    TunnelUnreachable,
    TunnelWaiter,
    ticket_of,
    tunnel_of,
    why_closed,
)
from fairlead_tunnel.channel_way import ChannelWays, Meet
from fairlead_tunnel.client_carriers import LEAST_PAUSE, MOST_PAUSE, TunnelEnd
from fairlead_tunnel.gateway_ways import GatewayWays
from fairlead_tunnel.hops import Hop
from fairlead_tunnel.pumps import PumpChoice
from fairlead_tunnel.tunnel_client import UNREACHABLE, MakeDriver, TunnelClient, TunnelGone
from fairlead_tunnel.ways import Way

ATTACH_SECONDS: Final = 5.0
"""For the first carrier of a tunnel."""
CALL_SECONDS: Final = 10.0
AWAY_SECONDS: Final = 1.0
"""A gateway that is away for longer is left by who waits for it."""
_CARRIER_ENDS: Final = frozenset({"tunnel_unknown", "ticket_invalid", UNREACHABLE})
_NO_TUNNELS: Final = "mode_unsupported"
_MOST_SESSIONS: Final = 3
_AGAIN_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 1.0


class TunnelLine:
    """Tunnels into one launch, one after the other; make it with `open_line`.

    `say` is told in a sentence of each loss and of what was done about it, `renewed` of the id of
    the session of another tunnel.
    """

    def __init__(
        self,
        *,
        api: TunnelApi,
        launch_id: str,
        ways: GatewayWays,
        channels: ChannelWays | None,
        make_driver: MakeDriver,
        say: Callable[[str], None],
        renewed: Callable[[str], None],
        away_seconds: float,
        uniform: Callable[[float, float], float],
        sleep: Sleep,
    ) -> None:
        self._api = api
        self._launch_id = launch_id
        self._ways = ways
        self._channels = channels
        self._make_driver = make_driver
        self._say = say
        self._renewed = renewed
        self._away_seconds = away_seconds
        self._uniform = uniform
        self._sleep = sleep
        self._client: TunnelClient | None = None
        self._leaving = asyncio.Event()
        self._drained: TunnelClient | None = None
        self._away_at = math.inf
        self._left_at = -math.inf
        self._left: dict[asyncio.Task[None], TunnelClient] = {}
        self._waiting: dict[TunnelWaiter, None] = {}
        self._followers: dict[TunnelFollower, None] = {}
        self._running: asyncio.Task[None] | None = None
        self._carrier = ""
        self.session_id = ""

    @property
    def carrier(self) -> str:
        """The name of the carrier that the newest tunnel goes over."""
        return self._client.carrier if self._client is not None else ""

    def want(self, waiter: TunnelWaiter) -> None:
        """Give the tunnel to somebody: now, or once there is one that a gateway takes part in.

        So what comes while the gateway is away can go on in another tunnel, if this one is gone.
        """
        client = self._usable()
        if client is not None:
            waiter.tunnel_ready(client)
        else:
            self._waiting[waiter] = None
            self._leave_who_is_away()

    def follow(self, follower: TunnelFollower) -> None:
        """Give each tunnel to somebody, from the one that there is now on."""
        self._followers[follower] = None
        client = self._usable()
        if client is not None:
            follower.tunnel_ready(client)

    def forsake(self, follower: TunnelFollower) -> None:
        """Give it no other tunnels."""
        self._followers.pop(follower, None)

    def turn_from(self, client: TunnelClient) -> None:
        """Open no more channels in a tunnel whose gateway is about to stop: what is open in it goes
        on, and others go through another one.
        """
        if client is self._client and client is not self._drained:
            self._drained = client
            self._leaving.set()
            self._let_go()

    def leave(self, waiter: TunnelWaiter) -> None:
        """Forget somebody who waits."""
        self._waiting.pop(waiter, None)

    async def wait_over(self) -> None:
        """Wait until no other tunnel can take the place of one that is gone, and raise why.

        SessionEnded says what the mesh told; else it is what the mesh refuses another one with.
        """
        if self._running is not None:
            await asyncio.shield(self._running)

    async def begin(self, attach_seconds: float) -> None:
        """Open the first tunnel; its gateway is dialled once, and again for so long.

        Raises TunnelUnreachable, OpenTimeout, and what the mesh refuses.
        """
        for attempt in range(_MOST_SESSIONS):
            is_last = attempt + 1 == _MOST_SESSIONS
            try:
                self._client = await self._opened(attach_seconds)
                break
            except TunnelGone as gone:
                if is_last or gone.end.reason == UNREACHABLE:
                    raise TunnelUnreachable(gone.end) from gone
            except TimeoutError:
                if is_last:
                    raise OpenTimeout(CALL_SECONDS) from None
            except FairleadError as error:
                if is_last or not may_pass(error):
                    raise
                await self._sleep(self._uniform(0.0, _AGAIN_SECONDS))
        self._name_carrier(self.carrier)
        self._running = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """End the tunnels, their channels and sessions."""
        tasks = [*self._left, *([self._running] if self._running is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # whoever wanted to know has waited for it
        clients = [*self._left.values(), *([self._client] if self._client is not None else [])]
        for client in clients:
            await client.close("normal", "The client has ended.")
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            waiter.no_tunnel()
        if self._channels is not None:
            await self._channels.close()
        await self._close_session(self.session_id)

    async def _run(self) -> None:
        while self._client is not None:
            client, session_id = self._client, self.session_id
            keeping = asyncio.ensure_future(client.keep())
            end = await _kept(keeping, self._leaving.wait())
            if end is None:
                what = "is about to stop" if client is self._drained else "stays away"
                self._say(f"the gateway {what}; another tunnel is opened.")
                self._leave(client, session_id, keeping)
                await self._hesitate()
            else:
                self._let_go()
                patient = end.reason not in _CARRIER_ENDS
                closed = await why_closed(self._api, session_id, is_patient=patient)
                if closed is not None and not closed.retryable:
                    raise SessionEnded(closed)
                self._say(f"the tunnel is gone, and another one is opened. {end.message}")
                await self._close_session(session_id)
            self._client = await self._another()
            self._away_at = math.inf
            self._leaving.clear()
            self._say("another tunnel is there.")
            self._name_carrier(self._client.carrier)
            self._renewed(self.session_id)
            self._serve()

    def _usable(self) -> TunnelClient | None:
        """Return the tunnel in which channels may be opened, if there is one."""
        client = self._client
        if client is None or client.is_over or client is self._drained:
            return None
        return client if client.is_attached else None

    def _serve(self) -> None:
        """Give the tunnel that there is to who waits for it."""
        client = self._usable()
        if client is None:
            return
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            self.want(waiter)
        for follower in [*self._followers]:
            follower.tunnel_ready(client)

    def _let_go(self) -> None:
        for follower in [*self._followers]:
            follower.tunnel_left()

    async def _hesitate(self) -> None:
        """Wait a little when the tunnel before was left just now: this gateway was meant, too."""
        now = asyncio.get_running_loop().time()
        if now - self._left_at < MOST_PAUSE:
            await self._sleep(self._uniform(0.0, _AGAIN_SECONDS))
        self._left_at = now

    def _leave(
        self, client: TunnelClient, session_id: str, keeping: asyncio.Future[TunnelEnd]
    ) -> None:
        """Keep a tunnel until it is over, or there is another one and it has no channels, or a
        gateway that does not come back, as the mesh says.
        """

        async def needless() -> None:
            while client is self._client or client.driver.channels:
                if not client.is_attached and await why_closed(
                    self._api, session_id, is_patient=False
                ):
                    return
                await asyncio.sleep(_LOOK_SECONDS)

        async def keep() -> None:
            if await _kept(keeping, needless()) is None:
                await client.close("normal", "Another tunnel has taken its place.")
                await keeping
            await self._close_session(session_id)

        task = asyncio.ensure_future(keep())
        self._left[task] = client
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._left.pop(task, None)

    async def _another(self) -> TunnelClient:
        """Open tunnels until one can be attached; raises what no other attempt helps against."""
        most = LEAST_PAUSE
        while True:
            try:
                return await self._opened(ATTACH_SECONDS)
            except TunnelGone:
                pass
            except FairleadError as error:
                # Tunnels there were: who has none to offer now is about to start.
                if not (may_pass(error) or is_gone(error) or error.reason == _NO_TUNNELS):
                    raise
            except TimeoutError:
                pass
            await self._sleep(self._uniform(0.0, most))
            most = min(2 * most, MOST_PAUSE)

    async def _opened(self, attach_seconds: float) -> TunnelClient:
        """Open a session and attach its tunnel; one that cannot be attached is closed again."""
        with client_span("tunnel.attach") as span:
            client = await self._attached(attach_seconds)
            span.note("fairlead.session.id", self.session_id)
            span.note("fairlead.tunnel.carrier", client.carrier)
            return client

    async def _attached(self, attach_seconds: float) -> TunnelClient:
        async with asyncio.timeout(CALL_SECONDS):
            opened = await self._api.open_session(
                self._launch_id, mode=TUNNEL, ice_policy="all", key=make_idempotency_key()
            )
        self.session_id = opened.session.session_id
        try:
            client = self._made(tunnel_of(opened))
            await client.attach(attach_seconds)
        except BaseException:
            await self._close_session(self.session_id)
            raise
        return client

    def _made(self, tunnel: SessionTunnel) -> TunnelClient:
        def changed(attached: bool) -> None:
            self._changed(client, attached)

        channels = [self._channels.to(self.session_id)] if self._channels else []

        def carried(way: Way) -> None:
            if client is self._client:
                self._name_carrier(way.kind.carrier)

        client = TunnelClient(
            ticket=ticket_of(tunnel),
            ways=[*self._ways.to(tunnel.urls), *channels],
            make_driver=self._make_driver,
            uniform=self._uniform,
            sleep=self._sleep,
            changed=changed,
            carried=carried,
        )
        return client

    def _name_carrier(self, carrier: str) -> None:
        """Say which carrier the tunnel goes over now, if that is another one."""
        before, self._carrier = self._carrier, carrier
        if before and before != carrier:
            self._say(f"the tunnel goes over {carrier} now, and no longer over {before}.")

    def _changed(self, client: TunnelClient, attached: bool) -> None:
        self._say("the gateway is back." if attached else "the gateway is away; trying again.")
        if client is not self._client:
            return
        loop = asyncio.get_running_loop()
        self._away_at = math.inf if attached else loop.time() + self._away_seconds
        loop.call_later(self._away_seconds, self._leave_who_is_away)
        if self._usable() is None:
            self._let_go()
        else:
            self._serve()

    def _leave_who_is_away(self) -> None:
        """Have another tunnel opened for who waits, beside one whose gateway stays away."""
        if self._waiting and asyncio.get_running_loop().time() >= self._away_at:
            self._leaving.set()

    async def _close_session(self, session_id: str) -> None:
        if not session_id:
            return
        with contextlib.suppress(FairleadError, TimeoutError):
            async with asyncio.timeout(TOLD_SECONDS):
                await self._api.close_session(session_id)


@asynccontextmanager
async def open_line(
    api: TunnelApi,
    launch_id: str,
    *,
    say: Callable[[str], None] = lambda sentence: None,
    renewed: Callable[[str], None] = lambda session_id: None,
    attach_seconds: float = ATTACH_SECONDS,
    via: Sequence[Hop] = (),
    meet: Meet | None = None,
    pump: PumpChoice = PumpChoice.AUTO,
    away_seconds: float = AWAY_SECONDS,
    most: int = MOST_CONNECTIONS,
    uniform: Callable[[float, float], float] = random.uniform,
    sleep: Sleep = asyncio.sleep,
) -> AsyncIterator[TunnelLine]:
    """Open a tunnel into a launch, or a sandbox of its own, and keep one to the end of the block.

    The gateway is dialled once, and again for `attach_seconds` where that fails: at the URLs that
    it gives, by `via`, which leads to it too, and where none goes over WebRTC, if it can `meet` it.
    When it is away for `away_seconds` whoever waits gets another tunnel, and what is open waits for
    it on. The tunnels run on the native pump where it is installed, unless `pump` says otherwise;
    one has `most` channels there.

    Raises TunnelUnreachable, OpenTimeout, and what the mesh refuses, such as `mode_unsupported`.
    """
    with drivers_of(pump, most) as make_driver:
        line = TunnelLine(
            api=api,
            launch_id=launch_id,
            ways=GatewayWays(via),
            channels=ChannelWays(meet) if meet is not None else None,
            make_driver=make_driver,
            say=say,
            renewed=renewed,
            away_seconds=away_seconds,
            uniform=uniform,
            sleep=sleep,
        )
        try:
            await line.begin(attach_seconds)
            yield line
        finally:
            await line.close()


async def _kept(
    keeping: asyncio.Future[TunnelEnd], until: Coroutine[None, None, object]
) -> TunnelEnd | None:
    """Keep a tunnel until it is over and say why, or None once `until` has ended before.

    Cancelled, it is kept no more.
    """
    waiting = asyncio.ensure_future(until)
    try:
        await asyncio.wait((keeping, waiting), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        keeping.cancel()
        await asyncio.wait((keeping,))
        raise
    finally:
        waiting.cancel()
        await asyncio.wait((waiting,))
    return keeping.result() if keeping.done() else None
