"""Which addresses a host may dial for a tenant. Pure; whoever dials uses the very address that
was judged here, so that a name cannot mean something else the second time (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from chassis.public_addresses import Address, Network, is_public, meant


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
        forms = {address, meant(address)}
        if any(each in network for network in self._networks for each in forms):
            return True
        return is_public(address)
