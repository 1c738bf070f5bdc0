"""One connection of a sandbox to its proxy: reads one request, decides, and carries bytes.

h11 reads and writes every HTTP message, so that what an origin gets is what was judged here,
and nothing of a second request behind the first one.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Protocol

import h11

from chassis.allow_list import Host
from chassis.public_addresses import Address
from sandbox_worker.network.decision import Reason, Refused
from sandbox_worker.network.forward import forward
from sandbox_worker.network.pump import CHUNK, take_leave
from sandbox_worker.network.request_target import Target, TargetInvalid, read_target
from sandbox_worker.network.tunnel import UNRECOGNIZED_NAME, Tunnel, needs_tls

_LONGEST_HEAD = 16 * 1024
_HEAD_PIECE = 4096  # h11 bounds a head only while it is incomplete
_HEAD_SECONDS = 10.0
_PHRASES = {400: b"Bad Request", 403: b"Forbidden", 502: b"Bad Gateway", 504: b"Gateway Timeout"}

_STATUS = {
    Reason.REQUEST_INVALID: (400, "http_request_error"),
    Reason.UNRESOLVED: (502, "dns_error"),
    Reason.UNREACHABLE: (502, "destination_ip_unroutable"),
    Reason.TIMED_OUT: (504, "connection_timeout"),
    Reason.ADDRESS_PRIVATE: (403, "destination_ip_prohibited"),
    Reason.ADDRESS_OWN: (403, "destination_ip_prohibited"),
    Reason.MESH_PORT: (403, "destination_ip_prohibited"),
}
"""Status and the error type of the Proxy-Status field (RFC 9209); 403 and
`http_request_denied` for the rest.
"""


class Guard(Protocol):
    """What an exchange asks its door."""

    async def dial(self, host: Host, port: int) -> tuple[socket.socket, Address]:
        """Connect to a host that is allowed; raises Refused."""
        ...

    def admit(self, target: Target) -> None:
        """Note where the calling task goes, before anything is resolved: from here on a change of
        the list cancels it. Raises Refused when the list in force does not allow it.
        """
        ...

    def decide(self, host: str, port: int, address: str, reason: Reason) -> None:
        """Log, count and keep a decision."""
        ...


class Exchange:
    """Serves one accepted connection."""

    def __init__(self, *, connection: socket.socket, guard: Guard) -> None:
        self._connection = connection
        self._guard = guard
        self._inner = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)
        self._writers: list[asyncio.StreamWriter] = []
        self._host = ""
        self._port = 0

    async def run(self) -> None:
        """Serve it to its end; whoever runs this calls `close` afterwards, however it ends."""
        with suppress(OSError):  # one of the two sides is gone
            self._connection.setblocking(False)
            reader, writer = await self._streams(self._connection)
            try:
                await self._serve(reader, writer)
            except Refused as refused:
                self._decide(refused.reason, refused.address)
                await self._answer(reader, writer, refused.reason)

    def close(self) -> None:
        """Leave no connection open, also when `run` never began."""
        for each in self._writers:
            each.transport.abort()
        if not self._writers:
            self._connection.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await self._request(reader)
        if request is None:
            return
        target = _target(request)
        self._host, self._port = str(target.host), target.port
        self._guard.admit(target)
        connection, address = await self._guard.dial(target.host, target.port)
        origin = await self._streams(connection)

        def allow() -> None:
            self._decide(Reason.ALLOWED, str(address))

        if not target.is_tunnel:
            allow()
            await forward((reader, writer), origin, self._inner, request, target)
            return
        established = h11.Response(status_code=200, headers=[], reason=b"Established")
        writer.write(self._inner.send(established) or b"")
        early, _ = self._inner.trailing_data
        tunnel = Tunnel(client=(reader, writer), origin=origin, host=target.host, early=early)
        try:
            await tunnel.carry(needs_tls=needs_tls(target.port), allow=allow)
        except Refused as refused:
            raise Refused(refused.reason, address=str(address)) from None

    async def _request(self, reader: asyncio.StreamReader) -> h11.Request | None:
        """Return the request's head; None when the client left before its end."""
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                while (event := self._inner.next_event()) is h11.NEED_DATA:
                    self._inner.receive_data(await reader.read(_HEAD_PIECE))
        except TimeoutError:
            raise Refused(Reason.TIMED_OUT) from None
        except h11.RemoteProtocolError:
            raise Refused(Reason.REQUEST_INVALID) from None
        return event if isinstance(event, h11.Request) else None

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reason: Reason
    ) -> None:
        """Say why it is refused in what is spoken on the connection, HTTP or TLS."""
        if self._inner.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            if reason in (Reason.SNI_MISMATCH, Reason.SNI_MISSING):
                writer.write(UNRECOGNIZED_NAME)
            return
        status, kind = _STATUS.get(reason, (403, "http_request_denied"))
        body = f"The sandbox's network policy: {reason}.\n".encode()
        fields = [
            ("Content-Type", "text/plain"),
            ("Content-Length", str(len(body))),
            ("Proxy-Status", f'fairlead; error={kind}; details="{reason}"'),
            ("Connection", "close"),
        ]
        with suppress(h11.LocalProtocolError):
            answer = h11.Response(status_code=status, headers=fields, reason=_PHRASES[status])
            writer.write(self._inner.send(answer) or b"")
            writer.write(self._inner.send(h11.Data(data=body)) or b"")
            await take_leave(reader, writer)

    async def _streams(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=CHUNK)
        except BaseException:
            connection.close()
            raise
        self._writers.append(writer)
        return reader, writer

    def _decide(self, reason: Reason, address: str) -> None:
        self._guard.decide(self._host, self._port, address, reason)


def _target(request: h11.Request) -> Target:
    fields = list(request.headers)
    lengths = {name for name, _ in fields if name in (b"content-length", b"transfer-encoding")}
    if len(lengths) > 1 or (lengths and request.method == b"CONNECT"):
        # Different readers see the end of such a body, and the tunnel behind it, elsewhere.
        raise Refused(Reason.REQUEST_INVALID)
    try:
        return read_target(request.method, request.target, fields)
    except TargetInvalid:
        raise Refused(Reason.REQUEST_INVALID) from None
