"""Which addresses a host may dial for a tenant. Pure; whoever dials uses the very address that
was judged here, so that a name cannot mean something else the second time (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network

from chassis.public_addresses import (
    Address,
    Network,
    is_literal,
    is_loopback,
    is_metadata,
    is_private,
    is_public,
    meant,
)


class EgressRules:
    """Public addresses, and what is allowed besides: names of hosts, single addresses, networks.

    A name that is allowed may mean private addresses. This machine's own (`is_own` says which)
    have to be allowed as such, and metadata services too, which no name reaches. Raises ValueError
    for an entry that is none.
    """

    def __init__(self, *, allowed: Iterable[str] = (), is_own: Callable[[Address], bool]) -> None:
        self._is_own = is_own
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
        each = meant(address)
        is_listed = any(is_literal(network, each) for network in self._networks)
        if is_metadata(each):
            return is_listed and _is_address(host)
        if is_loopback(each) or self._is_own(each):
            return is_listed
        if is_public(each) or any(each in network for network in self._networks):
            return True
        return host.lower().rstrip(".") in self._names and is_private(each)


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
