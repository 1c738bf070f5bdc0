"""A service of all four kinds over plain bytes, and what it takes to call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chassis.rpc_channel import open_channel
from chassis.rpc_server import RpcServer, serve_grpc
from tests.eventually import eventually

NAME = "fairlead.test.v1.EchoService"
Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass
class Echo:
    """Answers what `on_unary` says; streams `b"0"`, `b"1"`, … until it is cancelled."""

    tracer_provider: TracerProvider
    on_unary: Callable[[bytes], Awaitable[bytes]]
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    async def unary(self, request: bytes, context: Context) -> bytes:
        self.entered.set()
        try:
            with self._child("echo.unary"):
                return await self.on_unary(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def yielding(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        number = 0
        self.entered.set()
        try:
            with self._child("echo.opening"):
                await self.on_unary(request)
            while True:
                yield b"%d" % number
                number += 1
                with self._child("echo.later"):
                    await asyncio.sleep(0)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    async def collect(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        with self._child("echo.collect"):
            return b"".join([part async for part in requests])

    async def both(self, requests: AsyncIterator[bytes], context: Context) -> None:
        with self._child("echo.both"):
            async for part in requests:
                await context.write(await self.on_unary(part))

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to `server`."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Yield": grpc.unary_stream_rpc_method_handler(self.yielding),
            "Collect": grpc.stream_unary_rpc_method_handler(self.collect),
            "Both": grpc.stream_stream_rpc_method_handler(self.both),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, methods),))

    def _child(self, name: str) -> AbstractContextManager[object]:
        return self.tracer_provider.get_tracer("echo").start_as_current_span(name)


@dataclass
class Wire:
    """A served Echo, a channel to it and the spans that both ends made."""

    echo: Echo
    server: RpcServer
    channel: grpc.aio.Channel
    exporter: InMemorySpanExporter
    tracer_provider: TracerProvider

    def unary(self) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
        return unary_at(self.channel, f"/{NAME}/Unary")

    def yielding(self) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
        return self.channel.unary_stream(f"/{NAME}/Yield")

    def collect(self) -> grpc.aio.StreamUnaryMultiCallable[bytes, bytes]:
        return self.channel.stream_unary(f"/{NAME}/Collect")

    def both(self) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
        return self.channel.stream_stream(f"/{NAME}/Both")

    def spans(self) -> dict[str, ReadableSpan]:
        """The finished spans by `<kind> <name>`, the last one where several have the same."""
        return {
            f"{span.kind.name.lower()} {span.name}": span
            for span in self.exporter.get_finished_spans()
        }

    async def until(self, *names: str) -> dict[str, ReadableSpan]:
        """Wait until the named spans have ended, and return all."""

        async def look() -> dict[str, ReadableSpan]:
            return self.spans()

        return await eventually(look, lambda spans: set(names) <= spans.keys())


def unary_at(
    channel: grpc.aio.Channel, path: str
) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """Any unary method over plain bytes."""
    return channel.unary_unary(path)


def stream_at(
    channel: grpc.aio.Channel, path: str
) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    """Any bidirectional method over plain bytes."""
    return channel.stream_stream(path)


async def health(channel: grpc.aio.Channel, service: str) -> int:
    """Ask for the health of `service`."""
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    answer = await unary_at(channel, "/grpc.health.v1.Health/Check")(request)
    return health_pb2.HealthCheckResponse.FromString(answer).status


async def echo(request: bytes) -> bytes:
    """Answer with what was asked."""
    return request


@asynccontextmanager
async def wire(
    bind: str,
    on_unary: Callable[[bytes], Awaitable[bytes]] = echo,
    *,
    secret: str | None = None,
    channel_secret: str | None = None,
    grace_seconds: float = 0.0,
    trusts_callers: bool = True,
) -> AsyncIterator[Wire]:
    """Serve an Echo at `bind` and open a channel to it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    service = Echo(tracer_provider=provider, on_unary=on_unary)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            serve_grpc(
                bind=bind,
                register=service.register,
                services=[NAME],
                tracer_provider=provider,
                secret=secret,
                trusts_callers=trusts_callers,
                grace_seconds=grace_seconds,
            )
        )
        channel = await stack.enter_async_context(
            open_channel(server.address, tracer_provider=provider, secret=channel_secret or secret)
        )
        yield Wire(
            echo=service,
            server=server,
            channel=channel,
            exporter=exporter,
            tracer_provider=provider,
        )
