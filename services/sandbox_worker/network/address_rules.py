"""Which addresses are dialled for a sandbox, whatever its policy allows. Pure.

Whoever dials uses the very address that was judged here, so that a name cannot mean something else
the second time (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chassis.public_addresses import (
    Address,
    Network,
    is_literal,
    is_loopback,
    is_metadata,
    is_public,
    meant,
)
from sandbox_worker.network.decision import Reason


class AddressRules:
    """Public addresses that are not this host's own, and what the operator adds.

    `opened` are the operator's networks; the mesh's own ports stay shut there too. This machine's
    own addresses have to be opened as such, and metadata services too, which no name reaches.
    `is_own` says whether an address is one of this machine's.
    """

    def __init__(
        self,
        *,
        opened: Iterable[Network],
        mesh_ports: Iterable[int],
        is_own: Callable[[Address], bool],
    ) -> None:
        self._opened = tuple(opened)
        self._mesh_ports = frozenset(mesh_ports)
        self._is_own = is_own

    def fault(self, address: Address, port: int, *, is_named: bool) -> Reason | None:
        """Say why an address may not be dialled, for a name or for itself; None when it may."""
        each = meant(address)
        is_own = is_loopback(each) or self._is_own(each)
        if is_metadata(each):
            is_opened = not is_named and self._is_listed(each)
        elif is_own:
            is_opened = self._is_listed(each)
        else:
            is_opened = any(each in network for network in self._opened)
        if not is_opened:
            if not is_public(each):
                return Reason.ADDRESS_PRIVATE
            return Reason.ADDRESS_OWN if is_own else None
        if port in self._mesh_ports:
            return Reason.MESH_PORT
        return None

    def _is_listed(self, address: Address) -> bool:
        return any(is_literal(network, address) for network in self._opened)
