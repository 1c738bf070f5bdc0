"""What may be dialled: names, names below a name, literal addresses, with ports. Pure.

A name is compared as ASCII in lower case. What a resolver would read as a number (`127.1`,
`0x7f000001`) is never a name (URL Standard, host parsing: "ends in a number").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from chassis.errors import InvalidArgument
from chassis.limits import check_size
from chassis.public_addresses import Address, Network, is_all_special, is_literal
from fairlead_limits.table import ALLOW_ENTRIES

Host = str | Address
"""A name in lower case without a last dot, or a literal address."""

DEFAULT_PORTS = frozenset({80, 443})
_LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")
_LONGEST_TOLD = 200


class AllowEntryInvalid(InvalidArgument):
    """An entry of an allow list cannot be read."""

    def __init__(self, entry: str, cause: str) -> None:
        told = entry if len(entry) <= _LONGEST_TOLD else entry[: _LONGEST_TOLD - 1] + "…"
        super().__init__(
            f"The allow list's entry {told!r} cannot be read: {cause}.",
            reason="allow_entry_invalid",
            remedy="Write a name, *.name, an address or a network, each with :port when wanted.",
            fields={"entry": told},
        )


@dataclass(frozen=True, slots=True)
class AllowEntry:
    """One entry: `name` exactly, every name below `suffix` (all names when it is empty), or the
    literal addresses of `network`; on `port`, or on 80 and 443 when that is None.
    """

    name: str | None = None
    suffix: str | None = None
    network: Network | None = None
    port: int | None = None

    def means(self, host: Host) -> bool:
        """Say whether the entry is about this host."""
        if not isinstance(host, str):
            return self.network is not None and host in self.network
        if self.suffix is not None:
            return self.suffix == "" or host.endswith("." + self.suffix)
        return host == self.name

    def opens(self, address: Address) -> bool:
        """Say whether the entry is this very address, or a network of it where all is private."""
        network = self.network
        if network is None or address not in network:
            return False
        return network.num_addresses == 1 or is_all_special(network)

    def lists(self, address: Address) -> bool:
        """Say whether the entry is this very address, or a network of loopback addresses."""
        return self.network is not None and is_literal(self.network, address)

    def takes(self, port: int) -> bool:
        """Say whether the entry is about this port."""
        return port == self.port if self.port is not None else port in DEFAULT_PORTS


class AllowList:
    """Entries, of which one is enough."""

    def __init__(self, *, entries: Iterable[AllowEntry] = ()) -> None:
        self._entries = tuple(entries)

    def allows(self, host: Host, port: int) -> bool:
        """Say whether an entry allows this."""
        return any(each.takes(port) and each.means(host) for each in self._entries)

    def knows(self, host: Host) -> bool:
        """Say whether any entry is about this host, on whatever port."""
        return any(each.means(host) for each in self._entries)

    def names(self, host: str, port: int) -> bool:
        """Say whether an entry allows this name as it is, not as one of many."""
        return any(each.takes(port) and each.name == host for each in self._entries)

    def opens(self, address: Address, port: int) -> bool:
        """Say whether an entry is this very address, or a network of it where all is private."""
        return any(each.takes(port) and each.opens(address) for each in self._entries)

    def lists(self, address: Address, port: int) -> bool:
        """Say whether an entry is this very address, or a network of loopback addresses."""
        return any(each.takes(port) and each.lists(address) for each in self._entries)


def parse_allow_list(texts: Iterable[str]) -> AllowList:
    """Read entries; raises AllowEntryInvalid and LimitBroken."""
    entries = [parse_entry(text) for text in texts]
    check_size(ALLOW_ENTRIES, len(entries))
    return AllowList(entries=entries)


def parse_entry(text: str) -> AllowEntry:
    """Read `name`, `*.name`, `*`, an address or a network, each with `:port` when wanted.

    An IPv6 address or network with a port stands in brackets. Raises AllowEntryInvalid.
    """
    try:
        where, port = _cut_port(text)
        if where == "*":
            return AllowEntry(suffix="", port=port)
        if where.startswith("*."):
            return AllowEntry(suffix=parse_name(where[2:]), port=port)
        network = _network(where)
        if network is not None:
            return AllowEntry(network=network, port=port)
        return AllowEntry(name=parse_name(where), port=port)
    except ValueError as error:
        raise AllowEntryInvalid(text, str(error)) from None


def parse_host(text: str) -> Host:
    """Read a host as a request names it, IPv6 addresses in brackets; raises ValueError."""
    if text.startswith("[") and text.endswith("]"):
        address = IPv6Address(text[1:-1])
        if address.scope_id is not None:
            raise ValueError("an address with a zone")
        return address
    try:
        # Strict: no leading zeros, four parts.
        found = ip_address(text)
    except ValueError:
        return parse_name(text)
    if isinstance(found, IPv6Address):
        raise ValueError("an IPv6 address without brackets")
    return found


def parse_name(text: str) -> str:
    """Return a host's name in lower case, without a last dot; raises ValueError."""
    name = text.lower().removesuffix(".")
    if not name.isascii():
        raise ValueError("names are written in ASCII (xn--…)")
    labels = name.split(".")
    if len(name) > _LONGEST_NAME or not all(_LABEL.fullmatch(each) for each in labels):
        raise ValueError("it is neither a host's name nor an address")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError("its last part is a number, and it is not an address")
    return name


def parse_port(text: str) -> int:
    """Return a port; raises ValueError."""
    if not _PORT.fullmatch(text) or not 0 < int(text) < 65536:
        raise ValueError("a port is from 1 to 65535")
    return int(text)


def _cut_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        where, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("a bracket is not closed")
        if "%" in where:
            raise ValueError("an address with a zone")
        IPv6Network(where)
        return where, parse_port(rest[1:]) if rest else None
    if text.count(":") == 1:
        where, _, port = text.partition(":")
        return where, parse_port(port)
    return text, None


def _network(text: str) -> IPv4Network | IPv6Network | None:
    if "%" in text:
        raise ValueError("an address with a zone")
    try:
        return ip_network(text)
    except ValueError:
        if "/" in text or ":" in text:
            raise ValueError("it is no network (are bits set behind its prefix?)") from None
        return None
