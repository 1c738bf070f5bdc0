"""Wraps a gRPC servicer method of any of the four kinds in one async context manager.

Everything runs in the call's own task, generators included, so that a context variable set around
the method is seen inside it and nothing is left open when the call is cancelled.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
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


def nothing() -> None:
    """Be the answer of an `Around` that does not care about responses."""


class _WatchedContext:
    """A servicer context that also tells when a response has been written."""

    def __init__(self, *, context: ServicerContext, written: Callable[[], None]) -> None:
        self._context = context
        self._written = written

    def __getattr__(self, name: str) -> object:
        return getattr(self._context, name)

    async def write(self, message: object) -> None:
        await self._context.write(message)
        self._written()


def wrapped(
    method: grpc.RpcMethodHandler[Request, Response], around: Around
) -> grpc.RpcMethodHandler[Request, Response]:
    """Return `method`, a coroutine or async generator function, with `around` about it."""
    inner = method.stream_stream or method.stream_unary or method.unary_stream or method.unary_unary

    async def unary(request: object, context: ServicerContext) -> object:
        async with around(context):
            return await cast(_Unary, inner)(request, context)

    async def streaming(request: object, context: ServicerContext) -> None:
        async with around(context) as responded:
            watched = cast(ServicerContext, _WatchedContext(context=context, written=responded))
            if not inspect.isasyncgenfunction(inner):
                await cast(_Writing, inner)(request, watched)
                return
            async with aclosing(cast(_Yielding, inner)(request, watched)) as responses:
                async for response in responses:
                    await watched.write(response)

    make = _MAKERS[method.request_streaming, method.response_streaming]
    behaviour = streaming if method.response_streaming else unary
    return cast(
        "grpc.RpcMethodHandler[Request, Response]",
        cast(Callable[..., object], make)(
            behaviour, method.request_deserializer, method.response_serializer
        ),
    )
