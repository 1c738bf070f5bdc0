"""What the interceptors record, and that they never stand in the way of cancellation."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2
from opentelemetry.sdk.trace import ReadableSpan, Span
from opentelemetry.trace import SpanKind, StatusCode

from chassis.rpc_channel import closing
from tests.contract.wire.echo import NAME, Wire, health, wire

UNARY = "rpc.EchoService/Unary"
YIELD = "rpc.EchoService/Yield"
COLLECT = "rpc.EchoService/Collect"
BOTH = "rpc.EchoService/Both"


async def forever(request: bytes) -> bytes:
    await asyncio.Event().wait()
    return request


async def failing(request: bytes) -> bytes:
    raise ValueError("a bug")


async def first_answer(w: Wire, kind: str) -> object:
    match kind:
        case "Unary":
            return await w.unary()(b"")
        case "Yield":
            return await w.yielding()(b"").read()
        case _:
            call = w.both()()
            await call.write(b"")
            return await call.read()


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    assert child.context is not None
    return (
        child.parent is not None
        and child.parent.span_id == parent.context.span_id
        and child.context.trace_id == parent.context.trace_id
    )


def code(span: ReadableSpan) -> object:
    return (span.attributes or {})["rpc.response.status_code"]


@pytest.mark.asyncio
async def test_unary_call_is_one_trace_through_both_ends(bind: str) -> None:
    async with wire(bind) as w:
        with w.tracer_provider.get_tracer("t").start_as_current_span("work"):
            assert await w.unary()(b"a") == b"a"
        spans = await w.until("internal work", f"client {UNARY}", f"server {UNARY}")
    assert is_child(spans[f"client {UNARY}"], spans["internal work"])
    assert is_child(spans[f"server {UNARY}"], spans[f"client {UNARY}"])
    assert is_child(spans["internal echo.unary"], spans[f"server {UNARY}"])
    for end in ("client", "server"):
        assert dict(spans[f"{end} {UNARY}"].attributes or {}) == {
            "rpc.system": "grpc",
            "rpc.method": f"{NAME}/Unary",
            "rpc.response.status_code": "OK",
        }
        assert spans[f"{end} {UNARY}"].status.status_code is StatusCode.UNSET


@pytest.mark.asyncio
async def test_a_caller_that_is_not_trusted_is_only_linked_to(bind: str) -> None:
    async with wire(bind, trusts_callers=False) as w:
        await w.unary()(b"a")
        spans = await w.until(f"client {UNARY}", f"server {UNARY}")
    server, client = spans[f"server {UNARY}"], spans[f"client {UNARY}"]
    assert server.parent is None
    assert client.context is not None
    assert [link.context.span_id for link in server.links] == [client.context.span_id]
    assert is_child(spans["internal echo.unary"], server)


def kept_spans(name: str) -> list[Span]:
    """The recording spans of servers that somebody holds, ended ones included."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, Span) and each.name == name and each.kind is SpanKind.SERVER
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["Yield", "Both"])
async def test_an_open_stream_keeps_nothing_of_its_span_but_the_identity(
    bind: str, kind: str
) -> None:
    name = f"rpc.EchoService/{kind}"
    async with wire(bind) as w:
        call = w.yielding()(b"") if kind == "Yield" else w.both()()
        if isinstance(call, grpc.aio.StreamStreamCall):
            await call.write(b"")
        await call.read()
        await w.until(f"server {name}")
        w.exporter.clear()
        gc.collect()
        assert kept_spans(name) == []
        call.cancel()


@pytest.mark.asyncio
async def test_calls_without_a_trace_make_one_each(bind: str) -> None:
    async with wire(bind) as w:
        await w.unary()(b"a")
        await w.unary()(b"b")
        roots = [s for s in w.exporter.get_finished_spans() if s.parent is None]
    assert {root.name for root in roots} == {UNARY}
    assert len({root.context.trace_id for root in roots if root.context}) == 2


@pytest.mark.asyncio
async def test_client_stream(bind: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"a", b"b", b"c"):
            yield part

    async with wire(bind) as w:
        assert await w.collect()(parts()) == b"abc"
        spans = await w.until(f"client {COLLECT}", f"server {COLLECT}")
    assert is_child(spans[f"server {COLLECT}"], spans[f"client {COLLECT}"])
    assert is_child(spans["internal echo.collect"], spans[f"server {COLLECT}"])
    assert code(spans[f"client {COLLECT}"]) == "OK"


@pytest.mark.asyncio
async def test_a_server_streams_spans_end_at_its_first_response(bind: str) -> None:
    async with wire(bind) as w, closing(w.yielding()(b"")) as call:
        assert await call.read() == b"0"
        spans = await w.until(f"client {YIELD}", f"server {YIELD}")
        assert not call.done()
        assert is_child(spans[f"server {YIELD}"], spans[f"client {YIELD}"])
        assert is_child(spans["internal echo.opening"], spans[f"server {YIELD}"])
        assert code(spans[f"server {YIELD}"]) == code(spans[f"client {YIELD}"]) == "OK"
        assert await call.read() == b"1"
        later = (await w.until("internal echo.later"))["internal echo.later"]
    assert is_child(later, spans[f"server {YIELD}"])


@pytest.mark.asyncio
async def test_leaving_a_stream_early_ends_both_ends(bind: str) -> None:
    async with wire(bind) as w:
        async with closing(w.yielding()(b"")) as call:
            async for response in call:
                assert response == b"0"
                break
        await asyncio.wait_for(w.echo.cancelled.wait(), 60)
        spans = await w.until(f"client {YIELD}", f"server {YIELD}")
    assert code(spans[f"client {YIELD}"]) == "OK"


@pytest.mark.asyncio
async def test_a_stream_cancelled_before_its_first_response(bind: str) -> None:
    async with wire(bind, forever) as w:
        call = w.yielding()(b"")
        reading = asyncio.ensure_future(anext(aiter(call)))
        await asyncio.wait_for(w.echo.entered.wait(), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        spans = await w.until(f"client {YIELD}", f"server {YIELD}")
    assert code(spans[f"client {YIELD}"]) == "CANCELLED"
    assert code(spans[f"server {YIELD}"]) == "CANCELLED"


@pytest.mark.asyncio
async def test_a_bidirectional_call_by_write_and_read(bind: str) -> None:
    async with wire(bind) as w:
        call = w.both()()
        for part in (b"a", b"b"):
            await call.write(part)
            assert await call.read() == part
        spans = await w.until(f"client {BOTH}", f"server {BOTH}")
        assert not call.done()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        inner = (await w.until("internal echo.both"))["internal echo.both"]
    assert is_child(spans[f"server {BOTH}"], spans[f"client {BOTH}"])
    assert is_child(inner, spans[f"server {BOTH}"])


@pytest.mark.asyncio
async def test_a_bidirectional_call_by_iterators(bind: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    async with wire(bind) as w:
        assert [part async for part in w.both()(parts())] == [b"a", b"b"]
        spans = await w.until(f"client {BOTH}", f"server {BOTH}")
    assert code(spans[f"client {BOTH}"]) == "OK"


@pytest.mark.asyncio
async def test_a_cancelled_caller_cancels_the_method_at_once(bind: str) -> None:
    async with wire(bind, forever) as w:

        async def ask() -> bytes:
            return await w.unary()(b"")

        asking = asyncio.ensure_future(ask())
        await asyncio.wait_for(w.echo.entered.wait(), 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(w.echo.cancelled.wait(), 60)
        spans = await w.until(f"client {UNARY}", f"server {UNARY}")
    for end in ("client", "server"):
        assert code(spans[f"{end} {UNARY}"]) == "CANCELLED"
        assert spans[f"{end} {UNARY}"].status.status_code is StatusCode.ERROR


@pytest.mark.asyncio
async def test_a_missed_deadline_is_an_error_on_both_ends(bind: str) -> None:
    async with wire(bind, forever) as w:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await w.unary()(b"", timeout=2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(w.echo.cancelled.wait(), 60)
        spans = await w.until(f"client {UNARY}", f"server {UNARY}")
    for end in ("client", "server"):
        assert code(spans[f"{end} {UNARY}"]) == "DEADLINE_EXCEEDED"
        assert spans[f"{end} {UNARY}"].status.status_code is StatusCode.ERROR


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["Unary", "Yield", "Both"])
async def test_a_failed_method_is_an_error_on_both_ends(
    bind: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire(bind, failing) as w:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first_answer(w, kind)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        name = f"rpc.EchoService/{kind}"
        spans = await w.until(f"client {name}", f"server {name}")
    for end in ("client", "server"):
        assert code(spans[f"{end} {name}"]) == "INTERNAL"
        assert spans[f"{end} {name}"].status.status_code is StatusCode.ERROR
    assert [record.message for record in caplog.records] == ["rpc failed"]


@pytest.mark.asyncio
async def test_a_server_that_is_away_ends_the_clients_span(bind: str) -> None:
    async with wire(bind) as w:
        await w.server.stop(0)
        with pytest.raises(grpc.aio.AioRpcError):
            await w.unary()(b"")
        spans = await w.until(f"client {UNARY}")
    assert code(spans[f"client {UNARY}"]) == "UNAVAILABLE"


@pytest.mark.asyncio
async def test_health_checks_make_no_spans(bind: str) -> None:
    async with wire(bind) as w:
        assert await health(w.channel, NAME) == health_pb2.HealthCheckResponse.SERVING
        assert w.exporter.get_finished_spans() == ()


@pytest.mark.asyncio
async def test_no_span_is_left_open_in_the_callers_context(bind: str) -> None:
    async with wire(bind) as w:
        with w.tracer_provider.get_tracer("t").start_as_current_span("work"):
            async with closing(w.yielding()(b"")) as call:
                await call.read()
                await w.unary()(b"")
        spans = await w.until("internal work", f"client {UNARY}", f"client {YIELD}")
    assert is_child(spans[f"client {UNARY}"], spans["internal work"])
    assert is_child(spans[f"client {YIELD}"], spans["internal work"])
