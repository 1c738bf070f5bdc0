"""Checks the API key of every public call and names the caller; health is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc

from chassis.errors import FairleadError, Unauthenticated
from chassis.rpc_wrapping import Request, Response, ServicerContext, nothing, wrapped
from signalling.api_keys import ApiKeys
from signalling.caller import set_caller
from signalling.open_calls import OpenCalls
from signalling.rate_limits import RateLimited, RateLimits

_HEALTH = "/grpc.health.v1.Health/"


class KeyCheck(grpc.aio.ServerInterceptor):
    """Takes metadata `authorization: Bearer <key>`; the caller is set for the task that serves the
    call.
    """

    def __init__(self, *, keys: ApiKeys, calls: OpenCalls, limits: RateLimits) -> None:
        self._keys = keys
        self._calls = calls
        self._limits = limits

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]
        ],
        call: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Request, Response] | None:
        if call.method.startswith(_HEALTH):
            return await continuation(call)
        given = [value for key, value in call.invocation_metadata or () if key == "authorization"]
        try:
            caller = self._keys.caller_of(str(given[0]) if given else "")
            self._limits.take(caller.key_id)
        except (Unauthenticated, RateLimited) as error:
            return _refusal(error)
        set_caller(caller)
        method = await continuation(call)

        @asynccontextmanager
        async def held(context: ServicerContext) -> AsyncIterator[Callable[[], None]]:
            with self._calls.held(caller.key_id):
                yield nothing

        return None if method is None else wrapped(method, held)


def _refusal(error: FairleadError) -> grpc.RpcMethodHandler[Request, Response]:
    async def refuse(
        requests: AsyncIterator[Request], context: ServicerContext
    ) -> AsyncIterator[Response]:
        raise error
        yield  # makes this a generator, which answers without reading a request

    return grpc.stream_stream_rpc_method_handler(refuse)
