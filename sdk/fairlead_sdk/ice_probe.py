"""Tries a STUN or TURN server the way a session would, and says in a sentence what came of it.

It needs aioice, which comes with `fairlead-sdk[webrtc]`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

from aioice import stun
from aioice.turn import TurnTransport, create_turn_endpoint

from fairlead_tunnel.ice_urls import IceTransport, IceUrl, ice_url

_CLOSING_SECONDS = 2.0
_AGAIN_SECONDS = 0.25


class IceOutcome(StrEnum):
    """What came of trying a server."""

    OK = "ok"
    NAME_UNKNOWN = "name_unknown"
    UNREACHABLE = "unreachable"
    CREDENTIAL_REFUSED = "credential_refused"
    RELAY_FORBIDDEN = "relay_forbidden"
    RELAY_FULL = "relay_full"
    RELAY_SILENT = "relay_silent"
    SERVER_FAULT = "server_fault"
    UNSUPPORTED = "unsupported"


_SENTENCES = {
    IceOutcome.OK: ("It answered.", ""),
    IceOutcome.NAME_UNKNOWN: (
        "Its name has no address here.",
        "Look the name up on this machine; the operator may have named a server of another one.",
    ),
    IceOutcome.UNREACHABLE: (
        "No answer came.",
        "Let this port through the firewall between here and the server, and check that it runs.",
    ),
    IceOutcome.CREDENTIAL_REFUSED: (
        "It does not take the credential.",
        "The server's static-auth-secret has to be the one in FAIRLEAD_SIGNALLING_TURN_SECRET_FILE,"
        " and the two clocks have to agree.",
    ),
    IceOutcome.RELAY_FORBIDDEN: (
        "It takes the credential, but forbids this use of it.",
        "Ask its operator to allow UDP allocations and peers with its own relay addresses.",
    ),
    IceOutcome.RELAY_FULL: (
        "It has no room for another allocation.",
        "Try again later, or ask its operator for a larger quota or range of ports.",
    ),
    IceOutcome.RELAY_SILENT: (
        "It gave relay addresses, but no bytes came through them.",
        "Its relay ports have to be reachable from itself; check --external-ip and the range of"
        " ports.",
    ),
    IceOutcome.SERVER_FAULT: ("It answered with an error.", "Look into the server's log."),
    IceOutcome.UNSUPPORTED: (
        "This probe does not speak to such servers: stuns, and turns over UDP.",
        "Try the server's other URLs.",
    ),
}


@dataclass(frozen=True, slots=True)
class IceFinding:
    """What is known of one server after trying it.

    `address` is where the server sees this machine (STUN) or what it relays at (TURN), as
    host:port, empty where it gave none; `milliseconds` is how long that took, bytes included.
    """

    url: str
    outcome: IceOutcome
    milliseconds: float
    address: str = ""
    detail: str = ""

    @property
    def sentence(self) -> str:
        """Say what was found, in a sentence."""
        text = _SENTENCES[self.outcome][0]
        return f"{text} ({self.detail})" if self.detail else text

    @property
    def remedy(self) -> str:
        """Say what to do about it, in a sentence; empty when there is nothing to do."""
        return _SENTENCES[self.outcome][1]


async def probe_ice_server(
    url: str, *, username: str = "", credential: str = "", seconds: float = 5.0
) -> IceFinding:
    """Ask a STUN server for our address, or send bytes both ways through a TURN server, for at most
    `seconds`; what fails is a finding. Raises IceUrlInvalid.

    Two allocations are made, so that nothing but the relay takes part; both are given back.
    """
    parsed = ice_url(url)
    began = time.monotonic()
    seen: list[str] = []
    outcome, detail = IceOutcome.OK, ""
    try:
        if parsed.is_secure and not (parsed.is_relay and parsed.transport is IceTransport.TCP):
            outcome = IceOutcome.UNSUPPORTED
        elif parsed.is_relay:
            await _relay(parsed, username, credential, seen, seconds)
        else:
            await _own_address(parsed, seen, seconds)
    except (TimeoutError, stun.TransactionTimeout):
        outcome = IceOutcome.RELAY_SILENT if seen else IceOutcome.UNREACHABLE
    except stun.TransactionFailed as error:
        outcome, detail = _refusal(error.response.error_code)
    except socket.gaierror:
        outcome = IceOutcome.NAME_UNKNOWN
    except OSError as error:
        # aioice says with a bare ConnectionError that an answer lacks what it has to have.
        outcome = IceOutcome.SERVER_FAULT if error.errno is None else IceOutcome.UNREACHABLE
        detail = error.strerror or str(error)
    spent = (time.monotonic() - began) * 1000
    return IceFinding(url, outcome, spent, seen[0] if seen else "", detail)


def _refusal(code: int | None) -> tuple[IceOutcome, str]:
    """Read an error of STUN (RFC 8489, section 14.8) or TURN (RFC 8656, section 19)."""
    match code:
        case 401:
            return IceOutcome.CREDENTIAL_REFUSED, ""
        case 403:
            return IceOutcome.RELAY_FORBIDDEN, ""
        case 486 | 508:
            return IceOutcome.RELAY_FULL, ""
        case _:
            return IceOutcome.SERVER_FAULT, f"error {code}"


class _Binding(asyncio.DatagramProtocol):
    """Asks one STUN server once."""

    def __init__(self) -> None:
        self.transport: asyncio.DatagramTransport | None = None
        self.request = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        self.transaction: stun.Transaction | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, content: bytes, addr: tuple[str, int]) -> None:
        try:
            message = stun.parse_message(content)
        except ValueError:
            return
        if self.transaction and message.transaction_id == self.request.transaction_id:
            self.transaction.response_received(message, addr)

    def send_stun(self, message: stun.Message, addr: tuple[str, int]) -> None:
        """Send a request, as a transaction asks for it."""
        if self.transport is not None:
            self.transport.sendto(bytes(message))


async def _own_address(url: IceUrl, seen: list[str], seconds: float) -> None:
    """Put the address that the server sees into `seen`."""
    server = (url.host, url.port)
    async with asyncio.timeout(seconds):
        loop = asyncio.get_running_loop()
        transport, binding = await loop.create_datagram_endpoint(_Binding, remote_addr=server)
        try:
            binding.transaction = stun.Transaction(binding.request, server, binding)
            answer, _ = await binding.transaction.run()
        finally:
            transport.close()
    mapped = answer.attributes.get("XOR-MAPPED-ADDRESS")
    if mapped is None:
        raise ConnectionError("its answer has no XOR-MAPPED-ADDRESS")
    seen.append(_text(mapped))


class _Arrivals(asyncio.DatagramProtocol):
    """What comes out of one end of a relay."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.closed = asyncio.Event()
        self.refused: Exception | None = None

    def datagram_received(self, content: bytes, addr: tuple[str, int]) -> None:
        self.arrived.set()

    def error_received(self, error: Exception) -> None:
        self.refused = error

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()


@asynccontextmanager
async def _allocation(
    url: IceUrl, username: str, credential: str
) -> AsyncIterator[tuple[TurnTransport, _Arrivals]]:
    relay, arrivals = await create_turn_endpoint(
        _Arrivals,
        (url.host, url.port),
        username,
        credential,
        ssl=ssl.create_default_context() if url.is_secure else None,
        transport=url.transport.value,
    )
    try:
        yield relay, arrivals
    finally:
        relay.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_SECONDS):
                await arrivals.closed.wait()


async def _relay(
    url: IceUrl, username: str, credential: str, seen: list[str], seconds: float
) -> None:
    """Send bytes from one allocation to another and back; `seen` gets the first one's address."""
    async with AsyncExitStack() as stack:
        # Inside the stack, so that what is given back in time or late changes no finding.
        async with asyncio.timeout(seconds):
            ends = []
            for _ in range(2):
                end = await stack.enter_async_context(_allocation(url, username, credential))
                seen.append(_text(end[0].get_extra_info("sockname")))
                ends.append(end)
            (near, near_arrivals), (far, far_arrivals) = ends
            # What comes before the other end permits it is dropped, and datagrams may be lost.
            while not (near_arrivals.arrived.is_set() and far_arrivals.arrived.is_set()):
                near.sendto(b"fairlead", far.get_extra_info("sockname"))
                far.sendto(b"fairlead", near.get_extra_info("sockname"))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_SECONDS):
                        await near_arrivals.arrived.wait()
                        await far_arrivals.arrived.wait()
                if refused := near_arrivals.refused or far_arrivals.refused:
                    raise refused


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
