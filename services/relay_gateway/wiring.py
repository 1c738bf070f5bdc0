"""Builds the gateway."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial

from opentelemetry.trace import TracerProvider

from chassis.allow_list import parse_allow_list
from chassis.clock import SystemClock
from chassis.ids import random_id
from chassis.listeners import allow_many_files
from chassis.own_addresses import is_own
from chassis.resolver import SystemResolver
from chassis.rpc_channel import open_channel
from chassis.telemetry import start_telemetry, traceparent
from fairlead_tunnel.cores import NoCore, preferred_core
from fairlead_tunnel.peer_connection import PeerCore
from fairlead_tunnel.pumps import make_pump
from relay_gateway.dialler import Dialler
from relay_gateway.http_api import GatewayApp, serve_gateway
from relay_gateway.line import Line
from relay_gateway.link import Link
from relay_gateway.loop_tunnel import LoopTunnel
from relay_gateway.neighbours import GrpcSignalling
from relay_gateway.opener import Opener
from relay_gateway.pumped_tunnel import PumpedTunnel
from relay_gateway.settings import Settings
from relay_gateway.switchboard import Switchboard
from relay_gateway.target_rules import TargetRules
from relay_gateway.tracing import TracedCarrier, TracedConnector, TracedDialler, TracedOpener
from relay_gateway.tunnel_door import TunnelDoor
from relay_gateway.tunnel_room import MakeTunnel, TunnelRoom, either
from relay_gateway.webrtc_carrier import CoreMissing, WebrtcCarrier
from relay_gateway.worker_door import WorkerDoor

MOST_WELCOME_BYTES = 32 * 1024 * 1024
"""A welcome may carry the offer of every session, of up to 64 KiB each."""
_DRAIN_LOOK_SECONDS = 0.1
# Whoever waits longer than a dial may last is told so; its name server holds the thread on.
_RESOLVER_THREADS = 32


class Gateway:
    """A running gateway."""

    def __init__(
        self,
        *,
        switchboard: Switchboard,
        carrier: WebrtcCarrier,
        line: Line,
        http_port: int,
        tcp_port: int,
    ) -> None:
        self.http_port = http_port
        """The bound port of /healthz, /readyz and carriers over HTTP."""
        self.tcp_port = tcp_port
        """The bound port for clients of tunnels."""
        self._switchboard = switchboard
        self._carrier = carrier
        self._line = line

    @property
    def sessions(self) -> int:
        """How many sessions are held."""
        return len(self._switchboard.session_ids)

    @property
    def channels(self) -> int:
        """How many channels are open."""
        return self._switchboard.channels

    @property
    def is_ready(self) -> bool:
        """Say whether signalling has it."""
        return self._line.is_up

    async def drain(self) -> None:
        """Take no new sessions and channels, and wait for the open channels to end."""
        self._switchboard.drain()
        self._carrier.drain()
        # Looking ten times a second, once in a life, is simpler than counting in three classes.
        while self._switchboard.channels:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_LOOK_SECONDS)


@asynccontextmanager
async def build(
    settings: Settings,
    tracer_provider: TracerProvider | None = None,
    core: PeerCore | None = None,
) -> AsyncIterator[Gateway]:
    """Start a gateway; at the end of the block it stops, sessions first, then the line."""
    provider = tracer_provider or start_telemetry("relay-gateway")
    core = core or _installed_core()
    allow_many_files()
    limits = settings.connection_limits()
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(
            open_channel(
                settings.signalling,
                tracer_provider=provider,
                secret=settings.secret(),
                max_message_bytes=MOST_WELCOME_BYTES,
            )
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        workers = WorkerDoor(limits=limits)
        workers_address = await stack.enter_async_context(workers.serve(settings.workers_bind))
        resolve = stack.enter_context(closing(SystemResolver(threads=_RESOLVER_THREADS)))
        rules = TargetRules(allowed=parse_allow_list(settings.targets), is_own=is_own)
        line = Line(traceparent=traceparent)
        clock = SystemClock()
        opener = TracedOpener(opener=Opener(line=line, workers=workers), tracer_provider=provider)
        dialler = Dialler(rules=rules, resolve=resolve)
        carrier = WebrtcCarrier(
            core=core,
            opener=opener,
            dialler=TracedDialler(dialler=dialler, tracer_provider=provider),
            channels_per_session=settings.channels_per_session,
            seal_secret=settings.seal_secret(),
            desk=lambda: tunnels.desk,
        )
        switchboard = Switchboard(
            carrier=TracedCarrier(carrier=carrier, tracer_provider=provider),
            line=line,
            clock=clock,
            capacity=settings.sessions,
        )
        connector = TracedConnector(connector=dialler, tracer_provider=provider)
        channel_limit = settings.channels_per_session
        make_tunnel: MakeTunnel = partial(
            LoopTunnel, opener=opener, connector=connector, channel_limit=channel_limit
        )
        if (pump := make_pump(settings.tunnel_pump)) is not None:
            stack.callback(pump.close)
            make_tunnel = either(
                partial(
                    PumpedTunnel,
                    opener=opener,
                    judge=connector,
                    pump=pump,
                    channel_limit=channel_limit,
                ),
                make_tunnel,
            )
        gateway_id = random_id("gtw")
        tunnels = TunnelRoom(
            gateway_id=gateway_id,
            switchboard=switchboard,
            make_tunnel=make_tunnel,
            clock=clock,
        )
        tcp_port = await stack.enter_async_context(
            TunnelDoor(desk=tunnels.desk, limits=limits).serve(settings.tcp_bind)
        )

        def why_not_ready() -> str:
            if switchboard.is_draining:
                return "gateway_draining"
            return "" if line.is_up else "signalling_unavailable"

        app = GatewayApp(why_not_ready=why_not_ready, desk=tunnels.desk)
        http_port = await stack.enter_async_context(
            serve_gateway(app, bind=settings.http_bind, limits=limits)
        )
        urls = (
            _url("tcp", settings.tcp_bind, tcp_port),
            _url("http", settings.http_bind, http_port),
        )
        link = Link(
            gateway_id=gateway_id,
            capacity=settings.sessions,
            workers_address=settings.workers_advertise or workers_address,
            signalling=GrpcSignalling(channel=channel),
            line=line,
            switchboard=switchboard,
            jitter=random.SystemRandom().uniform,
            can_trickle=core.can_trickle,
            tunnel=tunnels.terms(settings.public_urls or urls),
        )
        linking = tasks.create_task(link.run())
        stack.callback(linking.cancel)
        stack.push_async_callback(link.stop)
        await stack.enter_async_context(switchboard)
        tasks.create_task(carrier.load())
        yield Gateway(
            switchboard=switchboard,
            carrier=carrier,
            line=line,
            http_port=http_port,
            tcp_port=tcp_port,
        )


def _url(scheme: str, bind: str, port: int) -> str:
    return f"{scheme}://{bind.rpartition(':')[0]}:{port}"


def _installed_core() -> PeerCore:
    try:
        return preferred_core()
    except NoCore as error:
        raise CoreMissing from error
