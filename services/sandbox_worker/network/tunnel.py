"""Carries the bytes of a tunnel; a TLS client must name the host that the tunnel was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chassis.allow_list import DEFAULT_PORTS, Host, parse_name
from sandbox_worker.network.client_hello import (
    HANDSHAKE,
    LONGEST_HELLO,
    Hello,
    HelloInvalid,
    read_hello,
)
from sandbox_worker.network.decision import Reason, Refused
from sandbox_worker.network.pump import CHUNK, pump

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_HELLO_SECONDS = 10.0
UNRECOGNIZED_NAME = bytes((21, 3, 1, 0, 2, 2, 112))
"""A fatal alert (RFC 8446 section 6, RFC 6066 section 3), for who names another host or none."""


def needs_tls(port: int) -> bool:
    """Say whether only TLS may be spoken: wherever no entry has to name the port."""
    return port in DEFAULT_PORTS


class Tunnel:
    """One tunnel; `early` is what the client sent before it was told that the tunnel stands."""

    def __init__(self, *, client: Streams, origin: Streams, host: Host, early: bytes) -> None:
        self._client = client
        self._origin = origin
        self._host = host
        self._early = early
        self._refused: Refused | None = None

    async def carry(self, *, needs_tls: bool, allow: Callable[[], None]) -> None:
        """Carry bytes both ways until both sides have ended; calls `allow` when the first may go.

        Raises Refused.
        """
        if needs_tls:
            await self._send_hello()
        allow()
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._outward(checked=needs_tls))
                ways.create_task(pump(self._origin[0], self._client[1]))
        except* (OSError, Refused):
            pass  # a side broke, or `_refused` says why
        if self._refused is not None:
            raise self._refused
        for _, writer in (self._client, self._origin):
            writer.close()
        for _, writer in (self._client, self._origin):
            await writer.wait_closed()

    async def _outward(self, *, checked: bool) -> None:
        if not checked:
            self._early = self._early or await self._client[0].read(CHUNK)
            if self._early[:1] == bytes([HANDSHAKE]):
                try:
                    await self._send_hello()
                except Refused as refused:
                    self._refused = refused
                    raise
            else:
                self._origin[1].write(self._early)
        await pump(self._client[0], self._origin[1])

    async def _send_hello(self) -> None:
        """Read a whole ClientHello, judge it, and send it on with what came behind it."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                hello = await self._read_hello()
        except TimeoutError:
            raise Refused(Reason.TLS_MISSING) from None
        reason = self._fault(hello)
        if reason is not None:
            raise Refused(reason)
        self._origin[1].write(self._early)

    async def _read_hello(self) -> Hello:
        while True:
            try:
                hello = read_hello(self._early)
            except HelloInvalid:
                raise Refused(Reason.TLS_MISSING) from None
            if hello is not None:
                return hello
            received = await self._client[0].read(LONGEST_HELLO)
            if not received:
                raise Refused(Reason.TLS_MISSING)
            self._early += received

    def _fault(self, hello: Hello) -> Reason | None:
        name = hello.server_name
        if not isinstance(self._host, str):
            # RFC 6066 has no literal addresses as server names.
            return Reason.SNI_MISMATCH if name is not None else None
        if name is None:
            return Reason.SNI_MISSING
        try:
            return None if parse_name(name) == self._host else Reason.SNI_MISMATCH
        except ValueError:
            return Reason.SNI_MISMATCH
