"""Sockets to listen on, and the connections to them of which nobody has shown yet who it is."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated, Protocol

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from chassis.errors import FailedPrecondition
from chassis.public_addresses import Address, Network, meant
from chassis.settings import RoomSettings, room_config

LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
WANTED_FILES = 65536
_SITE_BITS = 64
"""How much of an IPv6 address says whose it is: one client has a /64 at least."""


class AddressNotBindable(FailedPrecondition):
    """The address to serve on is taken, not allowed or not an address."""

    def __init__(self, bind: str, cause: str) -> None:
        super().__init__(
            f"Cannot serve on {bind}: {cause}.",
            reason="address_not_bindable",
            remedy="Stop what uses the address, or set another one.",
            fields={"address": bind},
        )


def listen_on(bind: str) -> socket.socket:
    """Listen on `host:port`, port 0 for any; raises AddressNotBindable."""
    host, _, port = bind.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise AddressNotBindable(bind, "it is not host:port")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; left on, every answer on
    # a kept connection waits 40 ms for the client's delayed acknowledgement. Accepted connections
    # inherit the option.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, int(port)))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        cause = "it is in use" if is_taken else os.strerror(error.errno or 22)
        raise AddressNotBindable(bind, cause) from error
    return listener


def allow_many_files() -> None:
    """Raise the soft limit of open files: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What connections may cost before it is known whose they are."""

    head_seconds: float = 10.0
    """How long the head of an HTTP request may take, and a body that is not wanted any more."""
    most: int = 2048
    """Most connections that have not shown who they are."""
    most_each: int = 256
    """Most of them from one IPv4 address, or one /64 of IPv6."""
    trusted: tuple[Network, ...] = LOOPBACK
    """Proxies, to which `most_each` does not apply."""


class ListenerSettings(RoomSettings):
    """The settings of services that strangers can connect to."""

    model_config = room_config("FAIRLEAD_")

    head_seconds: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        validation_alias="FAIRLEAD_HEAD_SECONDS",
        description="How long the head of an HTTP request may take to arrive.",
    )
    waiting_connections: int = Field(
        default=2048,
        ge=1,
        le=65536,
        validation_alias="FAIRLEAD_WAITING_CONNECTIONS",
        description="Most connections to one port that have shown neither a key nor a ticket; at"
        " most half of the files that the process may open. When full, the oldest is closed.",
    )
    waiting_per_address: int = Field(
        default=256,
        ge=1,
        le=65536,
        validation_alias="FAIRLEAD_WAITING_PER_ADDRESS",
        description="Most of them from one IPv4 address or one /64 of IPv6.",
    )
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode] = Field(
        default=LOOPBACK,
        validation_alias="FAIRLEAD_TRUSTED_PROXIES",
        description="Addresses and networks, by comma, of proxies that connect for many clients:"
        " the limit per address does not apply to them.",
    )

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _networks(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(ip_network(each.strip()) for each in value.split(",") if each.strip())

    def connection_limits(self) -> ConnectionLimits:
        """Return the limits; a process that may open few files takes fewer connections."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = self.waiting_connections
        return ConnectionLimits(
            head_seconds=self.head_seconds,
            most=most if files == resource.RLIM_INFINITY else max(1, min(most, files // 2)),
            most_each=self.waiting_per_address,
            trusted=self.trusted_proxies,
        )


class Connection(Protocol):
    """An asyncio transport, as far as it is needed here."""

    def abort(self) -> None:
        """End it at once."""
        ...

    def get_extra_info(self, name: str) -> object:
        """Return its peer's address for `peername`."""
        ...


class WaitingConnections:
    """Connections of which nobody has shown a key or a ticket.

    When there are too many of them, in all or from one address, the oldest is ended and the newest
    stays: who opens silent connections ends their own, and a client that says at once who it is
    always gets through.
    """

    def __init__(self, *, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._all: dict[Connection, str] = {}
        self._by_source: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: Connection) -> None:
        """Count a connection from now on, as the newest."""
        source = _source(connection.get_extra_info("peername"), self._limits.trusted)
        self._all[connection] = source
        if source:
            those = self._by_source.setdefault(source, {})
            those[connection] = None
            if len(those) > self._limits.most_each:
                self._end(next(iter(those)))
        if len(self._all) > self._limits.most:
            self._end(next(iter(self._all)))

    def renew(self, connection: Connection) -> None:
        """Make a connection the newest, if it still counts: it was used."""
        source = self._all.pop(connection, None)
        if source is None:
            return
        self._all[connection] = source
        if source:
            those = self._by_source[source]
            del those[connection]
            those[connection] = None

    def discard(self, connection: Connection) -> None:
        """Count a connection no more: it has ended, or it is known whose it is."""
        source = self._all.pop(connection, "")
        if source:
            those = self._by_source[source]
            del those[connection]
            if not those:
                del self._by_source[source]

    def end_all(self) -> None:
        """End those that still wait."""
        for connection in [*self._all]:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        self.discard(connection)
        connection.abort()


def _source(peer: object, trusted: Iterable[Network]) -> str:
    """Return whose a connection is, empty for a Unix socket and for trusted proxies."""
    if not (isinstance(peer, tuple) and peer and isinstance(peer[0], str)):
        return ""
    address: Address = meant(ip_address(peer[0].partition("%")[0]))
    if any(address in network for network in trusted):
        return ""
    if isinstance(address, IPv6Address):
        return str(IPv6Address(int(address) >> _SITE_BITS << _SITE_BITS))
    return str(address)
