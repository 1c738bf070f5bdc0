"""Carriers of tunnels by polls: one POST, held until there is something to answer."""

from __future__ import annotations

import asyncio
from typing import Final

from chassis.http_server import note_known
from fairlead_tunnel.poll_desk import HeldPoll, PollDesk, PollLine
from fairlead_tunnel.poll_wire import HEAD_BYTES, MOST_BODY_BYTES
from relay_gateway.tunnel_socket import Receive, Scope, Send

_BODY_SECONDS: Final = 60.0


class _Unwanted(Exception):
    """A request that gets a status and no body."""

    def __init__(self, status: int) -> None:
        self.status = status


async def serve_poll(scope: Scope, receive: Receive, send: Send, *, desk: PollDesk) -> None:
    """Serve one request."""
    if scope["method"] != "POST":
        await reply(send, 405, b"")
        return
    try:
        body = await _body(receive, desk)
    except _Unwanted as unwanted:
        await reply(send, unwanted.status, b"")
        return
    if body is None:
        return
    met = desk.meet(body)
    if isinstance(met, tuple):
        note_known(scope)
        answer = await _held(receive, *met)
        if answer is None:
            return
    else:
        answer = met
    await reply(send, 200, answer)


async def _held(receive: Receive, line: PollLine, poll: HeldPoll) -> bytes | None:
    """Wait for a poll's answer; None: who asked is gone."""
    if poll.answer.done():
        return poll.answer.result()
    leaving = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((leaving, poll.answer), return_when=asyncio.FIRST_COMPLETED)
        return poll.answer.result() if poll.answer.done() else None
    finally:
        line.drop(poll)
        leaving.cancel()


async def _body(receive: Receive, desk: PollDesk) -> bytes | None:
    """Return a whole body; None when its sender left.

    Of what no carrier is known for it is the beginning. _Unwanted: too long, too slow.
    """
    pieces: list[bytes] = []
    size = 0
    is_known = False
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                piece = message.get("body", b"")
                if isinstance(piece, bytes):
                    pieces.append(piece)
                    size += len(piece)
                if size > MOST_BODY_BYTES:
                    raise _Unwanted(413)
                if not message.get("more_body"):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                if not is_known and size >= HEAD_BYTES:
                    is_known = desk.knows(b"".join(pieces))
                    if not is_known:
                        return b"".join(pieces)  # enough to refuse it
    except TimeoutError:
        raise _Unwanted(408) from None


async def reply(send: Send, status: int, body: bytes) -> None:
    """Answer with a whole body."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/octet-stream"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
