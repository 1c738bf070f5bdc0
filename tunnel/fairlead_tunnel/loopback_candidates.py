"""Loopback ICE candidates for machines that have no other address.

aioice leaves 127.0.0.1 and ::1 out of its host candidates, as RFC 8445 (section 5.1.1.1) asks, so
that no two peers meet on a machine with nothing else. Both ends call this once, before they gather.
"""

from __future__ import annotations

from typing import Protocol

LOOPBACK = ("127.0.0.1", "::1")


class IceModule(Protocol):
    """The module `aioice.ice` (seen with 0.13), which looks this function up at each gathering."""

    def get_host_addresses(self, use_ipv4: bool, use_ipv6: bool) -> list[str]:
        """Return the machine's addresses without the loopback ones."""
        ...


def offer_loopback_when_alone(ice: IceModule) -> None:
    """Let `ice` offer the loopback addresses where it finds no other; once is enough.

    An address that cannot be bound, such as ::1 without IPv6, is left out by aioice itself.
    """
    found = ice.get_host_addresses
    if getattr(found, "offers_loopback", False):
        return

    def addresses(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        others = found(use_ipv4, use_ipv6)
        if others:
            return others
        return [address for address in LOOPBACK if (use_ipv6 if ":" in address else use_ipv4)]

    addresses.offers_loopback = True  # type: ignore[attr-defined]
    ice.get_host_addresses = addresses  # type: ignore[method-assign]
