"""Which addresses a host may dial for a tenant. Pure; whoever dials uses the very address that
was judged here, so that a name cannot mean something else the second time (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IANA's special-purpose registries (RFC 6890), with what clouds put behind them: 169.254.169.254
# and fd00:ec2::254 answer with the machine's own credentials.
_DENIED: tuple[Network, ...] = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "::/96", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16",
        "64:ff9b:1::/48", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
)  # fmt: skip
_NAT64 = IPv6Network("64:ff9b::/96")


class EgressRules:
    """Public addresses, and what is allowed besides: names of hosts, single addresses, networks.

    A name that is allowed may mean any address. Raises ValueError for an entry that is none.
    """

    def __init__(self, *, allowed: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._networks: list[Network] = []
        for entry in allowed:
            text = entry.strip().lower().rstrip(".")
            try:
                self._networks.append(ip_network(text))
            except ValueError:
                if not text or "/" in text or ":" in text or " " in text:
                    raise ValueError(f"{entry!r} is neither a host's name nor a network") from None
                self._names.add(text)

    def allow(self, host: str, addresses: Iterable[str]) -> tuple[str, ...]:
        """Return those of a host's addresses that may be dialled, in their order."""
        return tuple(each for each in addresses if self._is_allowed(host, ip_address(each)))

    def _is_allowed(self, host: str, address: Address) -> bool:
        if host.lower().rstrip(".") in self._names:
            return True
        meant = _meant(address)
        if any(each in network for network in self._networks for each in {address, meant}):
            return True
        return not any(meant in network for network in _DENIED)


def _meant(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for (RFC 4291, RFC 6052), or itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
