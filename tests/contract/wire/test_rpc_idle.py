"""A stream in which nothing happens stays open: clients send pings, and servers allow them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider

from chassis.rpc_channel import open_channel
from chassis.rpc_server import serve_grpc

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

PING_SECONDS = 11
"""A little more than what servers want between two pings; clients of ours send one each 20 s."""


async def test_a_stream_that_is_idle_is_not_cut() -> None:
    """By default a server takes the third ping without data for a flood."""
    goes_on = asyncio.Event()

    async def answer(request: bytes, context: object) -> AsyncIterator[bytes]:
        yield b"first"
        await goes_on.wait()
        yield b"last"

    method = cast(Any, grpc.unary_stream_rpc_method_handler)(answer)
    handler = grpc.method_handlers_generic_handler("test.Idle", {"Answer": method})
    with tempfile.TemporaryDirectory(prefix="flw-") as directory:
        bind = f"unix:{directory}/s"
        async with (
            serve_grpc(
                bind=bind,
                register=lambda server: server.add_generic_rpc_handlers((handler,)),
                services=[],
                tracer_provider=TracerProvider(),
            ),
            grpc.aio.insecure_channel(
                bind,
                options=[
                    ("grpc.keepalive_time_ms", PING_SECONDS * 1000),
                    ("grpc.http2.max_pings_without_data", 0),  # without limit
                ],
            ) as channel,
            open_channel(bind, tracer_provider=TracerProvider()) as ours,
        ):
            calls = [
                cast(Any, each).unary_stream("/test.Idle/Answer")(b"") for each in (channel, ours)
            ]
            for call in calls:
                assert await call.read() == b"first"
            await asyncio.sleep(4.5 * PING_SECONDS)
            goes_on.set()
            for call in calls:
                assert await call.read() == b"last"
                assert await call.code() is grpc.StatusCode.OK
