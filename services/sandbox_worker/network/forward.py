"""Carries one plain HTTP request to its origin, and its response back."""

from __future__ import annotations

import asyncio

import h11

from sandbox_worker.network.pump import CHUNK, take_leave
from sandbox_worker.network.request_target import Target, without_hop_fields

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_VIA = (b"via", b"1.1 fairlead")
_CLOSE = (b"connection", b"close")


async def forward(
    client: Streams, origin: Streams, inner: h11.Connection, request: h11.Request, target: Target
) -> None:
    """Send `request` on, then what follows of it while the response comes back, and end.

    Both connections carry this one exchange. What either side sends that is no HTTP ends it.
    """
    outer = h11.Connection(h11.CLIENT)
    fields = [each for each in without_hop_fields(request.headers) if each[0] != b"host"]
    head = h11.Request(
        method=request.method,
        target=target.path.encode(),
        headers=[(b"host", target.authority.encode()), *fields, _VIA, _CLOSE],
    )
    try:
        async with asyncio.TaskGroup() as ways:
            origin[1].write(outer.send(head) or b"")
            body = ways.create_task(_send_body(client[0], inner, origin[1], outer))
            await _return_response(origin[0], outer, client[1], inner)
            body.cancel()
    except* (h11.ProtocolError, OSError):
        if inner.our_state is h11.SEND_RESPONSE:
            _answer_bad_gateway(client[1], inner)
    await take_leave(*client)


async def _send_body(
    reader: asyncio.StreamReader,
    inner: h11.Connection,
    writer: asyncio.StreamWriter,
    outer: h11.Connection,
) -> None:
    while True:
        event = inner.next_event()
        if event is h11.NEED_DATA:
            inner.receive_data(await reader.read(CHUNK))
        elif isinstance(event, h11.Data | h11.EndOfMessage):
            writer.write(outer.send(event) or b"")
            await writer.drain()
            if isinstance(event, h11.EndOfMessage):
                return
        else:
            return


async def _return_response(
    reader: asyncio.StreamReader,
    outer: h11.Connection,
    writer: asyncio.StreamWriter,
    inner: h11.Connection,
) -> None:
    while True:
        event = outer.next_event()
        if event is h11.NEED_DATA:
            outer.receive_data(await reader.read(CHUNK))
            continue
        match event:
            case h11.Response(status_code=status, headers=fields, reason=phrase):
                kept = [*without_hop_fields(fields), _CLOSE]
                event = h11.Response(status_code=status, headers=kept, reason=phrase)
            case h11.InformationalResponse() | h11.Data() | h11.EndOfMessage():
                pass
            case _:
                return
        writer.write(inner.send(event) or b"")
        await writer.drain()
        if isinstance(event, h11.EndOfMessage):
            return


def _answer_bad_gateway(writer: asyncio.StreamWriter, inner: h11.Connection) -> None:
    status = (b"proxy-status", b"fairlead; error=http_response_incomplete")
    fields = [(b"content-length", b"0"), status, _CLOSE]
    answer = h11.Response(status_code=502, headers=fields, reason=b"Bad Gateway")
    writer.write(inner.send(answer) or b"")
