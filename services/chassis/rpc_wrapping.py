"""Wraps a gRPC servicer method of any of the four kinds in one async context manager.

Everything runs in the call's own task, generators included, so that a context variable set around
the method is seen inside it and nothing is left open when the call is cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import TypeAlias, TypeVar, cast

import grpc

Request = TypeVar("Request")
Response = TypeVar("Response")
ServicerContext: TypeAlias = "grpc.aio.ServicerContext[object, object]"
Around: TypeAlias = Callable[[ServicerContext], AbstractAsyncContextManager[Callable[[], None]]]
"""Entered around the method; yields what is called after each response of a stream."""

_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
_Unary: TypeAlias = Callable[[object, ServicerContext], Awaitable[object]]
_Writing: TypeAlias = Callable[[object, ServicerContext], Awaitable[None]]
_Yielding: TypeAlias = Callable[[object, ServicerContext], AsyncGenerator[object, None]]


_WRITE_SECONDS = 1.0


def nothing() -> None:
    """Be the answer of an `Around` that does not care about responses."""


class _WatchedContext:
    """A servicer context that also tells when a response has been written."""

    __slots__ = ("_context", "_written")

    def __init__(self, *, context: ServicerContext, written: Callable[[], None]) -> None:
        self._context = context
        self._written = written

    def __getattr__(self, name: str) -> object:
        return getattr(self._context, name)

    async def write(self, message: object) -> None:
        await self._context.write(message)
        self._written()


class _Wrapped:
    """A method with what is about it; a third of a closure, and kept while a stream is open."""

    __slots__ = ("_around", "_inner")

    def __init__(self, *, inner: object, around: Around) -> None:
        self._inner = inner
        self._around = around

    async def unary(self, request: object, context: ServicerContext) -> object:
        async with self._around(context):
            return await cast(_Unary, self._inner)(request, context)

    async def streaming(self, request: object, context: ServicerContext) -> None:
        async with self._around(context) as responded:
            watched = context
            if responded is not nothing:
                watched = cast(ServicerContext, _WatchedContext(context=context, written=responded))
            if not inspect.isasyncgenfunction(self._inner):
                await cast(_Writing, self._inner)(request, watched)
                return
            write: Callable[[object], Awaitable[None]] = partial(_begun, watched)
            async with aclosing(cast(_Yielding, self._inner)(request, watched)) as responses:
                async for response in responses:
                    await write(response)
                    write = watched.write
                    del response  # the next one may be hours away


async def _begun(context: ServicerContext, response: object) -> None:
    """Write the first response, to its end also when the call is cancelled meanwhile, in a second
    at most: gRPC sends the headers with it, and knows that only afterwards. A call whose headers
    were sent twice would not end (seen with grpcio 1.85).
    """
    writing = asyncio.ensure_future(context.write(response))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing], timeout=_WRITE_SECONDS)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        raise


def wrapped(
    method: grpc.RpcMethodHandler[Request, Response], around: Around
) -> grpc.RpcMethodHandler[Request, Response]:
    """Return `method`, a coroutine or async generator function, with `around` about it."""
    inner = method.stream_stream or method.stream_unary or method.unary_stream or method.unary_unary
    both = _Wrapped(inner=inner, around=around)
    make = _MAKERS[method.request_streaming, method.response_streaming]
    return cast(
        "grpc.RpcMethodHandler[Request, Response]",
        cast(Callable[..., object], make)(
            both.streaming if method.response_streaming else both.unary,
            method.request_deserializer,
            method.response_serializer,
        ),
    )
