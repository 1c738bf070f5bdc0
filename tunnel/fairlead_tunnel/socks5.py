"""The server's side of SOCKS5 (RFC 1928) with names and passwords (RFC 1929), without I/O.

CONNECT only; names are not looked up. What a client sends after its request is its early data.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from fairlead_tunnel.targets import Target, target_of

_VERSION = 5
_PASSWORD_VERSION = 1
_CONNECT = 1
_OWN_NAMES = frozenset({"localhost", "sandbox", "127.0.0.1", "::1"})


class Method(IntEnum):
    """How a client shows who it is."""

    NONE = 0
    PASSWORD = 2
    UNACCEPTABLE = 0xFF


class AddressType(IntEnum):
    """How a destination is written."""

    IPV4 = 1
    NAME = 3
    IPV6 = 4


class Reply(IntEnum):
    """What a request is answered with (RFC 1928, section 6)."""

    SUCCEEDED = 0
    GENERAL_FAILURE = 1
    NOT_ALLOWED = 2
    NETWORK_UNREACHABLE = 3
    HOST_UNREACHABLE = 4
    CONNECTION_REFUSED = 5
    TTL_EXPIRED = 6
    COMMAND_UNSUPPORTED = 7
    ADDRESS_TYPE_UNSUPPORTED = 8


_REPLIES: Final = {
    "target_denied": Reply.NOT_ALLOWED,
    "dial_refused": Reply.CONNECTION_REFUSED,
    "port_refused": Reply.CONNECTION_REFUSED,
    "host_unknown": Reply.HOST_UNREACHABLE,
    "host_unreachable": Reply.HOST_UNREACHABLE,
    "channel_unknown": Reply.HOST_UNREACHABLE,
    "sandbox_not_found": Reply.HOST_UNREACHABLE,
    "sandbox_released": Reply.HOST_UNREACHABLE,
    "host_lost": Reply.HOST_UNREACHABLE,
    "dial_timeout": Reply.TTL_EXPIRED,
    "port_timeout": Reply.TTL_EXPIRED,
    "gateway_unreachable": Reply.NETWORK_UNREACHABLE,
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The name and password that clients must have, 1 to 255 bytes each."""

    user: bytes
    password: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not (1 <= len(self.user) <= 255 and 1 <= len(self.password) <= 255):
            raise ValueError("a name and a password have 1 to 255 bytes")

    def match(self, user: bytes, password: bytes) -> bool:
        """Say whether they are these, in a time that tells nothing of either."""
        is_user = hmac.compare_digest(user, self.user)
        is_password = hmac.compare_digest(password, self.password)
        return is_user and is_password


@dataclass(frozen=True, slots=True)
class Asked:
    """A client wants to be connected: `reply` when that is done; `early` it has sent already."""

    target: Target
    early: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A client was refused, or speaks something else: close once the answer is sent."""

    message: str


Outcome: TypeAlias = Asked | Refused


def reply_of(reason: str) -> Reply:
    """Return what a client is answered whose channel was reset with `reason`."""
    return _REPLIES.get(reason, Reply.GENERAL_FAILURE)


def encode_reply(reply: Reply) -> bytes:
    """Return the answer to a request; the address that was bound over there is not told."""
    return bytes((_VERSION, reply, 0, AddressType.IPV4)) + bytes(6)


class _Violation(Exception):
    """Why a client is refused; its answer is in the outgoing bytes."""


class Socks5Server:
    """One connection of a client; with `credentials` it has to show them, else it shows nothing.

    At most 515 bytes wait here, as many as the longest message has.
    """

    def __init__(self, *, credentials: Credentials | None = None) -> None:
        self._credentials = credentials
        self._received = bytearray()
        self._outgoing = bytearray()
        self._talk = self._talking()
        self._wanted = next(self._talk)
        self._outcome: Outcome | None = None

    def take_outgoing(self) -> bytes:
        """Return what is to be sent now, and forget it."""
        outgoing = bytes(self._outgoing)
        self._outgoing.clear()
        return outgoing

    def receive(self, content: bytes) -> Outcome | None:
        """Take bytes of the client, nothing once there is an outcome; None: more has to come."""
        if self._outcome is not None:
            return None
        self._received += content
        try:
            while len(self._received) >= self._wanted:
                taken = bytes(self._received[: self._wanted])
                del self._received[: self._wanted]
                self._wanted = self._talk.send(taken)
        except StopIteration as ended:
            target: Target = ended.value
            self._outcome = Asked(target, bytes(self._received))
            self._received.clear()
        except _Violation as violation:
            self._outcome = Refused(str(violation))
            self._received.clear()
        return self._outcome

    def _talking(self) -> Generator[int, bytes, Target]:
        """Go through the messages: yields how many bytes are needed next, and gets these."""
        version, count = yield 2
        if version != _VERSION:
            raise _Violation("A client speaks no SOCKS5.")
        methods = yield count
        method = Method.NONE if self._credentials is None else Method.PASSWORD
        if method not in methods:
            self._outgoing += bytes((_VERSION, Method.UNACCEPTABLE))
            raise _Violation("A client offers no method that is taken here.")
        self._outgoing += bytes((_VERSION, method))
        if self._credentials is not None:
            yield from self._check(self._credentials)
        version, command, _, kind = yield 4
        if version != _VERSION:
            raise _Violation("A request is none of SOCKS5.")
        host = yield from self._host(kind)
        port = int.from_bytes((yield 2), "big")
        if command != _CONNECT:
            name = {2: "BIND", 3: "UDP ASSOCIATE"}.get(command, f"command {command}")
            raise self._refused(Reply.COMMAND_UNSUPPORTED, f"{name} is not done here.")
        return self._target(host, port)

    def _check(self, credentials: Credentials) -> Generator[int, bytes, None]:
        (version,) = yield 1
        if version != _PASSWORD_VERSION:
            raise _Violation("A client shows its password in a way that is not known here.")
        user = yield (yield 1)[0]
        password = yield (yield 1)[0]
        is_right = credentials.match(user, password)
        self._outgoing += bytes((_PASSWORD_VERSION, 0 if is_right else 1))
        if not is_right:
            raise _Violation("A client has another name or password.")

    def _host(self, kind: int) -> Generator[int, bytes, str]:
        match kind:
            case AddressType.IPV4:
                return str(ipaddress.IPv4Address((yield 4)))
            case AddressType.IPV6:
                address = ipaddress.IPv6Address((yield 16))
                mapped = address.ipv4_mapped  # Python's releases differ (RFC 5952, section 5)
                return str(address) if mapped is None else f"::ffff:{mapped}"
            case AddressType.NAME:
                name = yield (yield 1)[0]
                return name.decode("ascii", "replace")
        raise self._refused(Reply.ADDRESS_TYPE_UNSUPPORTED, "An address is of no known type.")

    def _target(self, host: str, port: int) -> Target:
        is_own = host.rstrip(".").lower() in _OWN_NAMES
        if ":" in host:
            host = f"[{host.strip('[]')}]"
        target = Target(port, "" if is_own else host)
        if not host or target_of(target.label) != target:
            raise self._refused(Reply.HOST_UNREACHABLE, "A request names no host or no port.")
        return target

    def _refused(self, reply: Reply, message: str) -> _Violation:
        self._outgoing += encode_reply(reply)
        return _Violation(message)
