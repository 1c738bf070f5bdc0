"""Errors on the wire: FairleadError to gRPC status with `google.rpc.ErrorInfo` and back.

The reason is UPPER_SNAKE on the wire and lower case in Python; remedy and fields travel as the
ErrorInfo's metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from chassis.errors import BY_KIND, FairleadError, Internal, Kind, Unavailable
from chassis.rpc_wrapping import Request, Response, ServicerContext, nothing, wrapped

DOMAIN = "fairlead"
_DETAILS_KEY = "grpc-status-details-bin"
_KINDS = {
    grpc.StatusCode.ABORTED: Kind.UNAVAILABLE,
    grpc.StatusCode.CANCELLED: Kind.UNAVAILABLE,
    **{grpc.StatusCode[kind.name]: kind for kind in Kind},
}

log = logging.getLogger(__name__)


def to_status(error: FairleadError) -> grpc.Status:
    """Return the rich status of `error`, for `context.abort_with_status`."""
    message = AnyMessage()
    message.Pack(
        ErrorInfo(
            reason=error.reason.upper(),
            domain=DOMAIN,
            metadata={**error.fields, **({"remedy": error.remedy} if error.remedy else {})},
        )
    )
    details = [message]
    if error.retry_seconds is not None:
        details.append(AnyMessage())
        delay = Duration()
        delay.FromTimedelta(timedelta(seconds=error.retry_seconds))
        details[-1].Pack(RetryInfo(retry_delay=delay))
    code = grpc.StatusCode[error.kind.name]
    return rpc_status.to_status(Status(code=code.value[0], message=error.message, details=details))


def to_error(rpc_error: grpc.aio.AioRpcError, *, peer: str) -> FairleadError:
    """Restore the FairleadError that `peer` (a neighbour's name in lower snake case) answered with.

    A failure that carries no ErrorInfo of ours came from gRPC itself: UNAVAILABLE becomes
    `<peer>_unavailable`, DEADLINE_EXCEEDED `<peer>_timeout`, a message over the limit
    `message_too_large`, the rest `<peer>_failed`.
    """
    code = rpc_error.code()
    found = _sent_reason(rpc_error)
    kind = _KINDS.get(code, Kind.INTERNAL)
    if found is not None:
        fields = dict(found.metadata)
        remedy = fields.pop("remedy", "")
        return BY_KIND[kind](
            rpc_error.details() or "", reason=found.reason.lower(), remedy=remedy, fields=fields
        )
    name = peer.replace("_", "-")
    match kind:
        case Kind.UNAVAILABLE:
            return PeerUnavailable(peer)
        case Kind.DEADLINE_EXCEEDED:
            return BY_KIND[kind](
                f"The {name} did not answer in time.",
                reason=f"{peer}_timeout",
                remedy="Try again; if it stays so, look whether it is overloaded.",
            )
        case Kind.RESOURCE_EXHAUSTED if "larger than max" in (rpc_error.details() or ""):
            return BY_KIND[kind](
                "A message is larger than the limit.",
                reason="message_too_large",
                remedy="Send it in smaller pieces.",
            )
        case _:
            log.error(
                "neighbour answered without a reason",
                extra={"peer": peer, "code": code.name, "details": rpc_error.details()},
            )
            return Internal(
                f"The {name} failed.",
                reason=f"{peer}_failed",
                remedy=f"Look for the cause in the log of the {name}.",
            )


class PeerUnavailable(Unavailable):
    """A neighbour cannot be reached, or went away during a call."""

    def __init__(self, peer: str) -> None:
        super().__init__(
            f"The {peer.replace('_', '-')} is unavailable.",
            reason=f"{peer}_unavailable",
            remedy="Try again in a few seconds; if it stays so, look whether it runs.",
        )


@contextmanager
def neighbour_errors(peer: str) -> Iterator[None]:
    """Translate gRPC failures into FairleadError around any call or stream to `peer`.

    Writing to a stream that has ended and calling on a closed channel count as the peer being
    unavailable.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise to_error(error, peer=peer) from error
    except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
        raise PeerUnavailable(peer) from error


class ErrorMapping(grpc.aio.ServerInterceptor):
    """Turns what a method raises into a status; what is not ours becomes INTERNAL and logged."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]
        ],
        call: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Request, Response] | None:
        method = await continuation(call)
        if method is None or call.method.startswith("/grpc.health."):
            return method

        # The path and not the call, whose metadata would be kept as long as a stream is open.
        return wrapped(method, partial(_MappedCall, call.method))


class _MappedCall:
    """A call that is served, around its method."""

    __slots__ = ("_context", "_method")

    def __init__(self, method: str, context: ServicerContext) -> None:
        self._context = context
        self._method = method

    async def __aenter__(self) -> Callable[[], None]:
        return nothing

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(raised, Exception):
            return
        if isinstance(raised, grpc.aio.AbortError | grpc.aio.InternalError):
            # The status is set already, or the caller has left.
            return
        if isinstance(raised, NotImplementedError):
            await self._context.abort(grpc.StatusCode.UNIMPLEMENTED, "not implemented")
        error = _own_error(raised)
        if error is None:
            log.error("rpc failed", extra={"method": self._method}, exc_info=raised)
            error = Internal(
                "Something went wrong inside the service.",
                reason="internal",
                remedy="Look for the cause in its log, by the trace id.",
            )
        await self._context.abort_with_status(to_status(error))


def _own_error(raised: Exception) -> FairleadError | None:
    """Return the FairleadError in `raised`, or the first of a task group's if it has no others."""
    if isinstance(raised, FairleadError):
        return raised
    if isinstance(raised, ExceptionGroup):
        found = [_own_error(part) for part in raised.exceptions]
        return found[0] if all(found) else None
    return None


def _sent_reason(rpc_error: grpc.aio.AioRpcError) -> ErrorInfo | None:
    for key, value in rpc_error.trailing_metadata() or ():
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            for detail in Status.FromString(value).details:
                found = ErrorInfo()
                if detail.Unpack(found) and found.domain == DOMAIN:
                    return found
        except DecodeError:
            return None
    return None
