"""Errors cross the wire whole, and nothing else of the server does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from chassis.errors import (
    BY_KIND,
    DeadlineExceeded,
    FairleadError,
    Internal,
    Kind,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from chassis.rpc_channel import open_channel
from chassis.rpc_errors import neighbour_errors
from tests.contract.wire.echo import NAME, echo, stream_at, unary_at, wire


class LaunchMissing(NotFound):
    """A concrete error, as a room has it."""

    def __init__(self) -> None:
        super().__init__(
            "The launch is not there: «ÿ».",
            reason="launch_not_found",
            remedy="Look with `fairlead list`.",
            fields={"launch_id": "lch_1", "tenant": "defaült"},
        )


def raising(error: BaseException) -> Callable[[bytes], Awaitable[bytes]]:
    async def on_unary(request: bytes) -> bytes:
        raise error

    return on_unary


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_arrives_with_all_that_it_says(bind: str, stream: bool) -> None:
    async with wire(bind, raising(LaunchMissing())) as w:
        with pytest.raises(NotFound) as caught, neighbour_errors("signalling"):
            await (w.yielding()(b"").read() if stream else w.unary()(b""))
    sent = LaunchMissing()
    assert str(caught.value) == caught.value.message == sent.message
    assert caught.value.reason == "launch_not_found"
    assert caught.value.remedy == sent.remedy
    assert caught.value.fields == sent.fields


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", list(Kind))
async def test_each_kind_keeps_its_class_and_has_the_status_of_its_name(
    bind: str, kind: Kind
) -> None:
    async with wire(bind, raising(BY_KIND[kind]("So it is.", reason="so"))) as w:
        with pytest.raises(grpc.aio.AioRpcError) as raw:
            await w.unary()(b"")
        with pytest.raises(FairleadError) as caught, neighbour_errors("signalling"):
            await w.unary()(b"")
    assert raw.value.code().name == kind.name
    assert type(caught.value) is BY_KIND[kind]
    assert caught.value.fields == {}
    assert caught.value.remedy == ""


@pytest.mark.asyncio
async def test_a_bug_shows_nothing_of_itself_and_is_logged(
    bind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire(bind, raising(ValueError("/var/secret/path"))) as w:
        with pytest.raises(grpc.aio.AioRpcError) as raw:
            await w.unary()(b"")
        with pytest.raises(Internal) as caught, neighbour_errors("signalling"):
            await w.unary()(b"")
    assert raw.value.details() == "Something went wrong inside the service."
    assert "secret" not in str(raw.value.trailing_metadata())
    assert caught.value.reason == "internal"
    assert [record.message for record in caplog.records] == ["rpc failed"] * 2
    assert "/var/secret/path" in caplog.text


@pytest.mark.asyncio
async def test_the_first_error_of_a_task_group_is_the_answer(bind: str) -> None:
    async def missing() -> None:
        raise LaunchMissing

    async def grouped(request: bytes) -> bytes:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(missing())
        return request

    async with wire(bind, grouped) as w:
        with pytest.raises(NotFound), neighbour_errors("signalling"):
            await w.unary()(b"")


@pytest.mark.asyncio
async def test_a_group_with_a_bug_in_it_is_internal(
    bind: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = ExceptionGroup("two", [LaunchMissing(), ValueError("bug")])
    async with wire(bind, raising(group)) as w:
        with pytest.raises(Internal), neighbour_errors("signalling"):
            await w.unary()(b"")
    assert [record.message for record in caplog.records] == ["rpc failed"]


@pytest.mark.asyncio
async def test_a_method_that_is_not_there_is_unimplemented(bind: str) -> None:
    async with wire(bind, raising(NotImplementedError())) as w:
        for path in (f"/{NAME}/Unary", f"/{NAME}/Absent"):
            with pytest.raises(grpc.aio.AioRpcError) as raw:
                await unary_at(w.channel, path)(b"")
            assert raw.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.asyncio
async def test_a_peer_that_is_away(bind: str) -> None:
    async with wire(bind) as w:
        await w.server.stop(0)
        with pytest.raises(Unavailable) as caught, neighbour_errors("sandbox_worker"):
            await w.unary()(b"")
    assert caught.value.reason == "sandbox_worker_unavailable"
    assert "sandbox-worker" in caught.value.message
    assert bind not in caught.value.message


@pytest.mark.asyncio
async def test_a_peer_that_goes_away_in_a_stream(bind: str) -> None:
    async with wire(bind) as w:
        call = w.both()()
        await call.write(b"a")
        assert await call.read() == b"a"
        await w.server.stop(0)
        for step in (call.read, lambda: call.write(b"b")):
            with pytest.raises(Unavailable), neighbour_errors("signalling"):
                await step()


@pytest.mark.asyncio
async def test_a_closed_channel_is_an_unavailable_peer(bind: str) -> None:
    async with wire(bind) as w:
        await w.channel.close()
        with pytest.raises(Unavailable), neighbour_errors("signalling"):
            await w.unary()(b"")


@pytest.mark.asyncio
async def test_a_deadline_is_a_timeout_of_the_peer(bind: str) -> None:
    async def forever(request: bytes) -> bytes:
        await asyncio.Event().wait()
        return request

    async with wire(bind, forever) as w:
        with pytest.raises(DeadlineExceeded) as caught, neighbour_errors("signalling"):
            await w.unary()(b"", timeout=0.1)
    assert caught.value.reason == "signalling_timeout"


@pytest.mark.asyncio
async def test_a_request_over_the_limit_has_a_reason(bind: str) -> None:
    async with wire(bind) as w:
        with pytest.raises(ResourceExhausted) as caught, neighbour_errors("signalling"):
            await w.unary()(b"x" * (4 * 1024 * 1024 + 1))
    assert caught.value.reason == "message_too_large"


@pytest.mark.asyncio
async def test_a_response_over_the_limit_has_a_reason(bind: str) -> None:
    async def large(request: bytes) -> bytes:
        return b"x" * 2000

    async with (
        wire(bind, large) as w,
        open_channel(bind, tracer_provider=w.tracer_provider, max_message_bytes=1000) as narrow,
    ):
        with pytest.raises(ResourceExhausted) as caught, neighbour_errors("signalling"):
            await unary_at(narrow, f"/{NAME}/Unary")(b"")
    assert caught.value.reason == "message_too_large"


@pytest.mark.asyncio
async def test_a_status_without_a_reason_is_logged_and_internal(
    bind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire(bind) as w:
        with pytest.raises(Internal) as caught, neighbour_errors("signalling"):
            await unary_at(w.channel, f"/{NAME}/Absent")(b"")
    assert caught.value.reason == "signalling_failed"
    assert [record.message for record in caplog.records] == ["neighbour answered without a reason"]


@pytest.mark.asyncio
async def test_cancellation_is_not_translated(bind: str) -> None:
    async with wire(bind) as w:
        call = w.yielding()(b"")
        with neighbour_errors("signalling"):
            assert await call.read() == b"0"
            assert call.cancel()
        with pytest.raises(asyncio.CancelledError), neighbour_errors("signalling"):
            await call.read()


@pytest.mark.asyncio
@pytest.mark.parametrize("given", ["other", None])
@pytest.mark.parametrize("path", [f"/{NAME}/Unary", f"/{NAME}/Absent"])
async def test_a_call_without_the_stacks_secret_is_refused(
    bind: str, given: str | None, path: str
) -> None:
    async with (
        wire(bind, echo, secret="right") as w,
        open_channel(bind, tracer_provider=w.tracer_provider, secret=given) as channel,
    ):
        assert await w.unary()(b"a") == b"a"
        with pytest.raises(FairleadError) as caught, neighbour_errors("signalling"):
            await unary_at(channel, path)(b"")
        with pytest.raises(FairleadError) as on_stream, neighbour_errors("signalling"):
            await stream_at(channel, f"/{NAME}/Both")(iter([b"a"])).read()
        assert not w.echo.cancelled.is_set()
    assert caught.value.kind is on_stream.value.kind is Kind.UNAUTHENTICATED
    assert caught.value.reason == "secret_mismatch"
