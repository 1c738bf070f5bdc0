"""Builds the front door from its settings; with `session_wiring` and `launch_wiring` the only place
that knows which class stands for which port.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import grpc

from chassis.clock import SystemClock
from chassis.http_server import serve_http
from chassis.listeners import AddressNotBindable, allow_many_files, listen_on
from chassis.redis_client import open_redis
from chassis.rpc_server import serve_grpc
from chassis.telemetry import start_telemetry
from signalling.api_keys import ApiKeys, make_first_key
from signalling.auth_grpc_api import KeyCheck
from signalling.event_stream import EventStreams
from signalling.front_door import FrontDoor
from signalling.gateway_grpc_api import GATEWAY_SERVICE, register_gateways
from signalling.launch_record import LaunchTimings
from signalling.launch_wiring import LAUNCH_SERVICES, open_launches
from signalling.open_calls import KeyWatch, OpenCalls
from signalling.rate_limits import RateLimits
from signalling.redis_answers import RedisAnswers
from signalling.rest_api import RestParts, rest_application
from signalling.session_grpc_api import SESSION_SERVICE, register_sessions
from signalling.session_wiring import open_sessions
from signalling.settings import Settings
from signalling.tracing import HttpTracing

_STOP_SECONDS = 0.5


@contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Name the setting to change when an address cannot be served on."""
    try:
        yield
    except AddressNotBindable as error:
        error.message = f"{error.message} The address comes from {setting}."
        error.remedy = f"Stop what uses the address, or set {setting} to another."
        raise


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[FrontDoor]:
    """Open everything top-down; it is closed in reverse, also when the start fails half way."""
    allow_many_files()
    secret = settings.internal_secret()
    clock = SystemClock()
    replica = settings.replica or socket.gethostname()
    keys = ApiKeys(state=settings.state, replica=replica)
    limits = RateLimits(
        per_second=settings.requests_per_second,
        burst=settings.requests_burst,
        monotonic=clock.monotonic,
    )
    make_first_key(keys, settings.bootstrap_key_file)
    calls = OpenCalls()
    provider = start_telemetry("signalling")
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(
            open_redis(settings.redis_url, settings.redis_password())
        )
        half = await stack.enter_async_context(
            open_sessions(
                settings,
                redis=redis,
                clock=clock,
                key=(secret or "").encode(),
                tracer_provider=provider,
            )
        )
        launches = await stack.enter_async_context(
            open_launches(
                redis=redis,
                tracer_provider=provider,
                secret=secret,
                replica=replica,
                channels=half.sessions,
                timings=LaunchTimings(upload_timeout=settings.upload_timeout_seconds),
                span_store_url=settings.span_store or None,
                span_store_token=secret,
                clock=clock,
            )
        )
        await stack.enter_async_context(half.looking_after(launches.reach))
        sessions = half.sessions(launches.reach)
        streams = EventStreams()
        watch = KeyWatch(keys=keys, calls=calls, end_sessions=half.book.close_of_key)
        await stack.enter_async_context(watch.running())
        door = FrontDoor(launches=launches, streams=streams, redis=redis)

        def register_internal(server: grpc.aio.Server) -> None:
            desk = half.desk(launches.reach)
            register_gateways(
                server,
                switchboard=half.switchboard,
                desk=desk,
                clock=clock,
                servers=sessions.ice_servers,
            )

        def register_public(server: grpc.aio.Server) -> None:
            launches.register(server)
            register_sessions(server, sessions)

        with _naming("FAIRLEAD_SIGNALLING_INTERNAL_BIND"):
            await stack.enter_async_context(
                serve_grpc(
                    bind=settings.internal_bind,
                    register=register_internal,
                    services=[GATEWAY_SERVICE],
                    tracer_provider=provider,
                    secret=secret,
                    grace_seconds=_STOP_SECONDS,
                )
            )
        stack.callback(half.switchboard.end_all)
        with _naming("FAIRLEAD_SIGNALLING_GRPC_BIND"):
            listen_on(settings.grpc_bind).close()  # gRPC itself would write a line of its own
            door.public = await stack.enter_async_context(
                serve_grpc(
                    bind=settings.grpc_bind,
                    register=register_public,
                    services=[*LAUNCH_SERVICES, SESSION_SERVICE],
                    tracer_provider=provider,
                    trusts_callers=False,
                    interceptors=[KeyCheck(keys=keys, calls=calls, limits=limits)],
                    grace_seconds=_STOP_SECONDS,
                )
            )
        parts = RestParts(
            launches=launches.launcher,
            executions=launches.executor,
            files=launches.filer,
            terminals=launches.executor,
            objects=launches.objects,
            uploads=launches.uploads,
            workspaces=launches.workspaces,
            sandboxes=launches.sandboxes,
            sessions=sessions,
            hosts=launches.hosts,
            gateways=half.switchboard,
            answers=RedisAnswers(redis=redis),
            checks={"redis": door.check_redis, "serving": door.check_serving},
        )
        app = rest_application(
            parts,
            keys=keys,
            calls=calls,
            limits=limits,
            streams=streams,
            traced=lambda inner: HttpTracing(inner, tracer_provider=provider),
        )
        with _naming("FAIRLEAD_SIGNALLING_HTTP_BIND"):
            http = await stack.enter_async_context(
                serve_http(app, bind=settings.http_bind, limits=settings.connection_limits())
            )
        door.http_port = http.port
        stack.callback(streams.close)
        yield door
