"""Serves gRPC for a room: health, reflection, tracing, errors, the stack secret, graceful stop."""

from __future__ import annotations

import errno
import hmac
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from opentelemetry.trace import TracerProvider

from chassis.errors import Unauthenticated
from chassis.listeners import AddressNotBindable
from chassis.rpc_channel import MAX_MESSAGE_BYTES, SECRET_METADATA
from chassis.rpc_errors import ErrorMapping, to_status
from chassis.rpc_tracing import ServerTracing
from chassis.rpc_wrapping import Request, Response

_HANDSHAKE_MS = 10_000
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class SecretMismatch(Unauthenticated):
    """An internal call came without the stack's secret, or with another one."""

    def __init__(self) -> None:
        super().__init__(
            "This internal call does not carry the stack's secret.",
            reason="secret_mismatch",
            remedy="Give all rooms of a stack the same FAIRLEAD_SECRET_FILE.",
        )


class RpcServer:
    """A running server."""

    def __init__(
        self,
        *,
        server: grpc.aio.Server,
        servicer: health.aio.HealthServicer,
        address: str,
        port: int,
    ) -> None:
        self._server = server
        self._servicer = servicer
        self.address = address
        """Where to dial it: `unix:/path`, or `host:port` with the port that was bound."""
        self.port = port
        """The bound TCP port; 0 on a unix socket."""

    async def drain(self) -> None:
        """Report NOT_SERVING from now on; calls are still taken."""
        await self._servicer.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls, let the open ones run for `grace_seconds`, then cancel them."""
        await self.drain()
        await self._server.stop(grace_seconds)


class _Registry:
    """A server, as generated code adds servicers to it: by their generic handlers only.

    For each call that comes, grpcio 1.85 waits anew on one future per registered method, which cost
    the worker 30 us a call.
    """

    def __init__(self, *, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, methods: object) -> None:
        """Do without."""


class SecretCheck(grpc.aio.ServerInterceptor):
    """Refuses calls without the stack's secret, except health checks: probes cannot know it."""

    def __init__(self, *, secret: str) -> None:
        self._secret = secret.encode()

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]
        ],
        call: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Request, Response] | None:
        if call.method.startswith(f"/{_HEALTH}/"):
            return await continuation(call)
        given = [value for key, value in call.invocation_metadata or () if key == SECRET_METADATA]
        if len(given) == 1 and hmac.compare_digest(_bytes(given[0]), self._secret):
            return await continuation(call)
        return grpc.unary_unary_rpc_method_handler(_refuse)


@asynccontextmanager
async def serve_grpc(
    *,
    bind: str,
    register: Callable[[grpc.aio.Server], None],
    services: Sequence[str],
    tracer_provider: TracerProvider,
    secret: str | None = None,
    trusts_callers: bool = True,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    grace_seconds: float = 5.0,
) -> AsyncIterator[RpcServer]:
    """Serve on `bind` (`unix:/path`, mode 0600, or `host:port`, port 0 for any) while in the block.

    `register` adds the servicers, `services` are their full names for health and reflection. Order
    of interception: tracing, error mapping, the secret, then `interceptors`. Whoever does not trust
    its callers links to their traces instead of continuing them. Raises AddressNotBindable.
    """
    check = [SecretCheck(secret=secret)] if secret is not None else []
    server = grpc.aio.server(
        interceptors=[
            ServerTracing(tracer_provider=tracer_provider, trusts_callers=trusts_callers),
            ErrorMapping(),
            *check,
            *interceptors,
        ],
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", max_message_bytes),
            # For the preface and settings of HTTP/2; grpcio's default is 120 s.
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # Else a client whose stream is idle for 100 s is taken for one that floods with pings.
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
    )
    registry = cast(grpc.aio.Server, _Registry(server=server))
    register(registry)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, registry)
    reflection.enable_server_reflection((*services, _HEALTH, reflection.SERVICE_NAME), server)
    port = _bind(server, bind)
    await server.start()
    for name in ("", *services):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    address = bind if port == 0 else f"{bind.rpartition(':')[0]}:{port}"
    running = RpcServer(server=server, servicer=servicer, address=address, port=port)
    try:
        yield running
    finally:
        await running.stop(grace_seconds)


def _bind(server: grpc.aio.Server, bind: str) -> int:
    """Bind `bind` and return the TCP port, or 0 for a unix socket."""
    path = Path(bind.removeprefix("unix:").removeprefix("//")) if bind.startswith("unix:") else None
    if path is not None:
        _remove_stale_socket(path, bind)
    # By the mask and not by chmod(2) afterwards: between the two, others could connect.
    mask = os.umask(0o177) if path is not None else None
    try:
        port = server.add_insecure_port(bind)
    except RuntimeError as error:
        raise AddressNotBindable(bind, "it is in use or not allowed") from error
    finally:
        if mask is not None:
            os.umask(mask)
    return port if path is None else 0


def _remove_stale_socket(path: Path, bind: str) -> None:
    """Remove the socket that a dead process left at `path`; never one that somebody listens on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                path.unlink(missing_ok=True)
                return
            raise AddressNotBindable(bind, "the socket file is not usable") from error
    raise AddressNotBindable(bind, "another process listens there")


async def _refuse(request: object, context: grpc.aio.ServicerContext[object, object]) -> None:
    await context.abort_with_status(to_status(SecretMismatch()))


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
