"""Carriers of tunnels over two requests: one long answer down, one long body up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Final

from chassis.http_server import note_known
from fairlead_tunnel.carriers import GatewayAttach, TunnelDesk
from fairlead_tunnel.message_stream import MessageStream
from fairlead_tunnel.stream_wire import (
    NAME_BYTES,
    SIGN_SECONDS,
    SILENT_SECONDS,
    STREAM_PATH,
    BodyInvalid,
    MessageReader,
    framed,
)
from relay_gateway.message_queue import MessageQueue
from relay_gateway.tunnel_polls import reply
from relay_gateway.tunnel_socket import Receive, Scope, Send

_MEET_SECONDS: Final = 10.0
"""So long one request waits for the other one, and both for a hello."""


class _StreamCarrier(GatewayAttach):
    """The gateway's use of two requests of one name."""

    stream: MessageStream

    def __init__(self, desk: TunnelDesk) -> None:
        super().__init__(desk)
        self.queue = MessageQueue(has_room=lambda: self.stream.has_room())
        self.stream = MessageStream(self, self.queue)
        self.asked: dict[str, Scope] = {}
        self.is_down_open = False
        self.is_up_open = False
        self.has_begun = False
        self.heard_at = 0.0
        self.over = asyncio.Event()

    def opened(self) -> None:
        """Use the carrier."""
        for scope in self.asked.values():
            note_known(scope)
        super().opened()

    def begin(self) -> None:
        """Say that both requests are here: only then does the client say who it is."""
        if self.is_down_open and self.is_up_open and not self.has_begun:
            self.has_begun = True
            self.queue.write(b"")

    def received(self, message: bytes) -> None:
        """Take a message of the client; an empty one says that it is there."""
        if message:
            self.stream.received(message)

    def end(self) -> None:
        """End both requests."""
        self.queue.close()
        self.stream.lost(None)
        self.over.set()


class StreamDesk:
    """The carriers by two requests of one gateway; their listener bounds how many say no hello."""

    def __init__(self, *, desk: TunnelDesk) -> None:
        self._desk = desk
        self._carriers: dict[str, _StreamCarrier] = {}

    def close(self) -> None:
        """End what there is."""
        for carrier in [*self._carriers.values()]:
            carrier.end()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one of the two requests."""
        method = str(scope["method"])
        name = str(scope["path"]).removeprefix(STREAM_PATH)
        if method not in ("GET", "POST"):
            await reply(send, 405, b"")
            return
        carrier = self._carriers.get(name)
        if carrier is None:
            if len(name) != 2 * NAME_BYTES:
                await reply(send, 404, b"")
                return
            carrier = self._carriers[name] = _StreamCarrier(self._desk)
        if method in carrier.asked:
            await reply(send, 409, b"")
            return
        carrier.asked[method] = scope
        try:
            if method == "GET":
                await _serve_down(receive, send, carrier)
            else:
                await _serve_up(receive, send, carrier)
        finally:
            carrier.end()
            if self._carriers.get(name) is carrier:
                del self._carriers[name]


async def _serve_down(receive: Receive, send: Send, carrier: _StreamCarrier) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [
                (b"content-type", b"application/octet-stream"),
                (b"cache-control", b"no-store, no-transform"),
                (b"x-accel-buffering", b"no"),  # by which some hops know not to hold it back
            ],
        }
    )
    carrier.is_down_open = True
    carrier.begin()
    await _first_of(_write(carrier.queue, send), _leave(receive), _watch(carrier))
    await send({"type": "http.response.body", "body": b""})


async def _serve_up(receive: Receive, send: Send, carrier: _StreamCarrier) -> None:
    await _first_of(_read(receive, carrier), carrier.over.wait())
    await reply(send, 200, b"")


async def _first_of(*works: Coroutine[None, None, object]) -> None:
    """Do all of them until one is done."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _write(queue: MessageQueue, send: Send) -> None:
    async def send_one(message: bytes) -> None:
        await send({"type": "http.response.body", "body": framed(message), "more_body": True})

    await queue.run(send_one)


async def _leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _watch(carrier: _StreamCarrier) -> None:
    """End with a client that does not say who it is, and with one that falls silent."""
    await asyncio.sleep(_MEET_SECONDS)
    if carrier.is_greeting:
        return
    loop = asyncio.get_running_loop()
    while loop.time() - carrier.heard_at < SILENT_SECONDS:
        carrier.queue.write(b"")
        await asyncio.sleep(SIGN_SECONDS)


async def _read(receive: Receive, carrier: _StreamCarrier) -> None:
    """Take the body to its end, or until its other half has not come in time."""
    reader = MessageReader()
    loop = asyncio.get_running_loop()
    with contextlib.suppress(BodyInvalid, TimeoutError):
        async with asyncio.timeout(_MEET_SECONDS) as patience:
            while (message := await receive())["type"] == "http.request":
                carrier.heard_at = loop.time()
                content = message.get("body", b"")
                for each in reader.take(content if isinstance(content, bytes) else b""):
                    carrier.is_up_open = True
                    carrier.begin()
                    carrier.received(each)
                if carrier.has_begun:
                    patience.reschedule(None)
                if not message.get("more_body"):
                    return
