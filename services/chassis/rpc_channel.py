"""Opens channels to neighbours, and closes calls that are left early."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import grpc
from opentelemetry.trace import TracerProvider

from chassis.rpc_tracing import client_interceptors

SECRET_METADATA = "fairlead-secret"  # noqa: S105 - the metadata's name, not its value
MAX_MESSAGE_BYTES = 4 * 1024 * 1024


class Cancellable(Protocol):
    """What `closing` needs of a call."""

    def cancel(self) -> bool:
        """End the call; nothing happens when it has ended."""
        ...


AnyCall = TypeVar("AnyCall", bound=Cancellable)


def open_channel(
    target: str,
    *,
    tracer_provider: TracerProvider,
    secret: str | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """Open a channel to `target` (`unix:/path` or `host:port`); use it as an async context manager.

    It connects at the first call, traces each call, sends the stack's `secret` with it and never
    retries by itself: a retry is the use case's decision, with its idempotency key.
    """
    return grpc.aio.insecure_channel(
        target,
        options=[
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # A neighbour that restarts is found again quickly; gRPC's own backoff goes up to two
            # minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            # Of this, against its name, gRPC makes the least time that a connection has to come
            # about (grpc/grpc#33423): with 100 ms a busy or distant neighbour is never reached.
            ("grpc.min_reconnect_backoff_ms", 10_000),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.max_receive_message_length", max_message_bytes),
        ],
        interceptors=client_interceptors(
            tracer_provider, [(SECRET_METADATA, secret)] if secret else []
        ),
    )


@asynccontextmanager
async def closing(call: AnyCall) -> AsyncIterator[AnyCall]:
    """Cancel `call` at the end: leaving `async for` early does not (seen with grpcio 1.85)."""
    try:
        yield call
    finally:
        call.cancel()
