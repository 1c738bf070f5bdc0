"""How the two ends of a tunnel take a connection as a carrier: who greets, and with which keys."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from fairlead_tunnel.driver_sides import TICKET_CARRIER, CarrierDriver, OrderedCarrier
from fairlead_tunnel.handshake import (
    MAX_EARLY_BYTES,
    SECRET_BYTES,
    AttachRefused,
    ClientHandshake,
    GatewayHandshake,
    Hello,
    Keys,
    Kind,
    attach_psk,
    attach_token,
    read_attach_token,
    read_hello,
    refusal,
)
from fairlead_tunnel.record_stream import RecordStream
from fairlead_tunnel.records import Suite
from fairlead_tunnel.ticket import Grant, TicketInvalid, TicketKey, UsedTickets

TUNNEL_UNKNOWN: Final = "tunnel_unknown"
"""The reason for which a gateway refuses a carrier of a tunnel that it does not have."""


class CarrierLost(ConnectionError):
    """A carrier ended before its handshake was done."""


class CarrierStream(OrderedCarrier, Protocol):
    """A connection that keeps order: greets first, and then sends batches."""

    def greet(self, hello: bytes) -> None:
        """Send this side's part of the handshake."""
        ...


class ClientAttach:
    """The client's use of one connection.

    `ready` is done with the answer's secret, which is empty unless a ticket was shown; `gone` once
    the connection has ended. A ticket whose answer does not come ends the tunnel: whether the
    gateway took it, and the early data with it, is not known, so neither is ever sent again.
    """

    stream: CarrierStream

    def __init__(self, *, driver: CarrierDriver, number: int, handshake: ClientHandshake) -> None:
        self._driver = driver
        self._number = number
        self._handshake = handshake
        self._has_begun = False
        self._is_attached = False
        self._batch = b""
        self._secret = b""
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bytes] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()

    def begin(self) -> None:
        """Send the hello, with what the tunnel has to send; once, when there is a connection."""
        self._has_begun = True
        batch = self._driver.hello_batch(self._number, MAX_EARLY_BYTES)
        self.stream.greet(self._handshake.hello(batch))

    def greet(self, received: bytes) -> tuple[Keys, int] | None:
        """Take the answer."""
        found = self._handshake.finish(received)
        if found is None:
            return None
        keys, self._secret, self._batch, size = found
        return keys, size

    def opened(self) -> None:
        """Use the carrier."""
        self._is_attached = True
        if self._batch:
            self._driver.take(self._batch)
        self._driver.attach(self._number, self.stream)
        if not self.ready.done():
            self.ready.set_result(self._secret)

    def look(self) -> tuple[int, int] | None:
        """Return how many bytes have come, and how many have not left; None: it watches its path
        itself.
        """
        return None

    def take(self, batch: bytes) -> None:
        """Take a batch of the gateway."""
        self._driver.take(batch)

    def has_room(self) -> None:
        """Send on."""
        self._driver.flush_soon()

    def retire(self) -> None:
        """End it: another one is attached, which takes over what is under way."""
        self.stream.close()

    def lost(self, error: Exception | None) -> None:
        """Let what was under way go over another carrier, or end the tunnel where none can."""
        if self._has_begun:
            self._driver.detach(self._number)
        if self._is_attached and self._driver.carriers:
            self._driver.ping()  # the gateway, which may not notice the loss, is told over another
        refused = error if isinstance(error, AttachRefused) else None
        if refused is not None and refused.reason == TUNNEL_UNKNOWN:
            self._driver.close(refused.reason, refused.message)
        elif self._has_begun and not self._is_attached and self._number == TICKET_CARRIER:
            reason = refused.reason if refused is not None else "answer_lost"
            self._driver.close(reason, str(refused or "The ticket's answer was lost."))
        if not self.ready.done():
            self.ready.set_exception(error or CarrierLost("the gateway ended the connection"))
            self.ready.exception()  # whoever waits is told; nobody has to
        if not self.gone.done():
            self.gone.set_result(None)


class ClientCarrier(ClientAttach):
    """The client's use of one TCP connection."""

    stream: RecordStream

    def __init__(self, *, driver: CarrierDriver, number: int, handshake: ClientHandshake) -> None:
        super().__init__(driver=driver, number=number, handshake=handshake)
        self.stream = RecordStream(self)

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not arrived as far as is known."""
        return self.stream.look()


@dataclass(slots=True)
class HeldTunnel:
    """A tunnel at its gateway; `attached` is the highest number that a carrier came with."""

    driver: CarrierDriver
    grant: Grant
    secret: bytes
    attached: int = TICKET_CARRIER


class TunnelDesk:
    """The tunnels of one start of a gateway, by id; a hello that was seen before opens nothing."""

    def __init__(
        self,
        *,
        tickets: TicketKey,
        private_key: bytes,
        begin: Callable[[Grant], CarrierDriver],
        unix_time: Callable[[], float],
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._tickets = tickets
        self._private_key = private_key
        self._begin = begin
        self._unix_time = unix_time
        self._random = random
        self._used = UsedTickets()
        self._tunnels: dict[bytes, HeldTunnel] = {}

    def holds(self, tunnel_id: bytes) -> bool:
        """Say whether a tunnel may be attached to."""
        return tunnel_id in self._tunnels

    def forget(self, tunnel_id: bytes) -> None:
        """Refuse carriers of a tunnel from now on: it has ended."""
        self._tunnels.pop(tunnel_id, None)

    def meet(self, hello: Hello) -> tuple[HeldTunnel, int, GatewayHandshake, bytes, bytes]:
        """Return tunnel, the carrier's number, handshake, early batch and the answer's secret.

        AttachRefused says why not, also from `begin`, which then costs the ticket;
        HandshakeInvalid: whoever it is has no keys.
        """
        if hello.kind is Kind.TICKET:
            return self._meet_ticket(hello)
        tunnel_id, number = read_attach_token(hello.token)
        held = self._tunnels.get(tunnel_id)
        if held is None:
            raise AttachRefused(TUNNEL_UNKNOWN, "The gateway does not have this tunnel any more.")
        handshake = GatewayHandshake(
            hello, psk=attach_psk(held.secret, number), private_key=self._private_key
        )
        batch = handshake.early()
        if number <= held.attached:
            raise AttachRefused("attach_replayed", "A newer carrier has been attached already.")
        held.attached = number
        return held, number, handshake, batch, b""

    def _meet_ticket(self, hello: Hello) -> tuple[HeldTunnel, int, GatewayHandshake, bytes, bytes]:
        now = self._unix_time()
        try:
            grant = self._tickets.open(hello.token, now=now)
            handshake = GatewayHandshake(hello, psk=grant.psk, private_key=self._private_key)
            batch = handshake.early()
            self._used.use(grant, now=now)
        except TicketInvalid as error:
            raise AttachRefused("ticket_invalid", f"Another ticket is needed: {error}.") from None
        held = HeldTunnel(self._begin(grant), grant, self._random(SECRET_BYTES))
        if not held.driver.is_over:
            self._tunnels[bytes.fromhex(grant.tunnel)] = held
        return held, TICKET_CARRIER, handshake, batch, held.secret


class GatewayAttach:
    """The gateway's use of one connection."""

    stream: CarrierStream

    def __init__(self, desk: TunnelDesk) -> None:
        self._desk = desk
        self._held: HeldTunnel | None = None
        self._number = 0
        self._is_gone = False

    @property
    def is_greeting(self) -> bool:
        """Say whether nobody has shown a ticket yet."""
        return self._held is None and not self._is_gone

    @property
    def held(self) -> HeldTunnel | None:
        """The tunnel that it is a carrier of, once there are keys."""
        return self._held

    @property
    def number(self) -> int:
        """The carrier's number in that tunnel."""
        return self._number

    def greet(self, received: bytes) -> tuple[Keys, int] | None:
        """Take the hello and answer it, with what the tunnel has to send at once."""
        found = read_hello(received)
        if found is None:
            return None
        hello, size = found
        try:
            held, self._number, handshake, batch, secret = self._desk.meet(hello)
        except AttachRefused as error:
            self.stream.greet(refusal(error.reason, error.message))
            raise
        if batch:
            held.driver.take(batch)
        reply = held.driver.answer_batch(self._number, MAX_EARLY_BYTES)
        answer, keys = handshake.answer(secret=secret, batch=reply)
        self.stream.greet(answer)
        self._held = held
        return keys, size

    def opened(self) -> None:
        """Use the carrier."""
        if self._held is not None:
            self._held.driver.attach(self._number, self.stream)

    def take(self, batch: bytes) -> None:
        """Take a batch of the client."""
        if self._held is not None:
            self._held.driver.take(batch)

    def has_room(self) -> None:
        """Send on."""
        if self._held is not None:
            self._held.driver.flush_soon()

    def lost(self, error: Exception | None) -> None:
        """Let what was under way go over another carrier."""
        self._is_gone = True
        if self._held is not None:
            self._held.driver.detach(self._number)


class GatewayCarrier(GatewayAttach):
    """The gateway's use of one TCP connection."""

    stream: RecordStream

    def __init__(self, desk: TunnelDesk) -> None:
        super().__init__(desk)
        self.stream = RecordStream(self)


class TunnelTicket:
    """What a client has of a tunnel: a ticket at first, and then the secret that it got for it.

    `psk` and `gateway_key` have 32 bytes, `tunnel_id` 16.
    """

    def __init__(
        self, *, tunnel_id: bytes, ticket: bytes, psk: bytes, gateway_key: bytes, suite: Suite
    ) -> None:
        self._tunnel_id = tunnel_id
        self._ticket = ticket
        self._psk = psk
        self._gateway_key = gateway_key
        self._suite = suite
        self._secret = b""
        self._attached = TICKET_CARRIER

    @property
    def tunnel_id(self) -> bytes:
        """The tunnel's id."""
        return self._tunnel_id

    @property
    def has_secret(self) -> bool:
        """Say whether the ticket was taken, so that it is needed no more."""
        return bool(self._secret)

    def next_number(self) -> int:
        """Return a number that no carrier had, for one that needs no handshake."""
        self._attached += 1
        return self._attached

    def handshake(self) -> tuple[int, ClientHandshake]:
        """Return the number of the next carrier and its handshake; numbers are not used twice."""
        if not self._secret:
            return TICKET_CARRIER, self._made(Kind.TICKET, self._ticket, self._psk)
        number = self.next_number()
        token = attach_token(self._tunnel_id, number)
        return number, self._made(Kind.RESUME, token, attach_psk(self._secret, number))

    def keep(self, secret: bytes) -> None:
        """Note the secret of an answer, if it has one."""
        self._secret = secret or self._secret

    def _made(self, kind: Kind, token: bytes, psk: bytes) -> ClientHandshake:
        return ClientHandshake(
            suite=self._suite, kind=kind, token=token, psk=psk, gateway_key=self._gateway_key
        )
