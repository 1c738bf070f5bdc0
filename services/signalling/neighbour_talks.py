"""Calls of neighbours that both sides stream on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TypeVar

import grpc

from chassis.rpc_channel import closing
from chassis.rpc_errors import neighbour_errors

Request = TypeVar("Request")
Response = TypeVar("Response")

WORKER = "sandbox_worker"


@asynccontextmanager
async def talk(
    call: grpc.aio.StreamStreamCall[Request, Response], requests: AsyncIterator[Request]
) -> AsyncIterator[AsyncIterator[Response]]:
    """Send requests to a worker until there are no more, and yield what it answers; what
    `requests` raises is raised at the end of the answers.
    """

    async def send() -> None:
        # What fails of the call itself is told by its answers.
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.UsageError):
            try:
                async for request in requests:
                    await call.write(request)
            finally:
                # The worker ends the call then, and with it the answers.
                await call.done_writing()

    async def answers() -> AsyncGenerator[Response, None]:
        with neighbour_errors(WORKER):
            async for message in call:
                yield message
        if sending.done() and (fault := sending.exception()) is not None:
            raise fault

    async with closing(call):
        sending = asyncio.create_task(send(), name="requests")
        try:
            async with aclosing(answers()) as stream:
                yield stream
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
