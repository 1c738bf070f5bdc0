"""Which hosts a gateway dials for its sessions, and why it did not; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address

from chassis.allow_list import AllowList, Host
from chassis.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from chassis.public_addresses import (
    Address,
    is_loopback,
    is_metadata,
    is_private,
    is_public,
    meant,
)

_AGAIN = "Try again in some seconds, or see whether the gateway can reach the host."


class TargetDenied(PermissionDenied):
    """The gateway may not dial this; its reset has to say what to do, as it carries no remedy."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"The gateway does not dial {host[:120]}:{port}: its operator allows that in"
            " FAIRLEAD_RELAY_TARGETS, its own addresses as such.",
            reason="target_denied",
            remedy="Have the operator add it, or reach a port of the sandbox.",
        )


class HostUnknown(NotFound):
    """A name has no address where the gateway is."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"The gateway finds no address of {host}.",
            reason="host_unknown",
            remedy="See whether the name is right, and known where the gateway is.",
        )


class DialRefused(FailedPrecondition):
    """Nothing listens there."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"Nothing listens on {host}:{port}.",
            reason="dial_refused",
            remedy="See whether the server runs, and on which port.",
        )


class DialTimeout(DeadlineExceeded):
    """The host, or the name server before it, does not answer."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"{host}:{port} did not answer the gateway in time.",
            reason="dial_timeout",
            remedy=_AGAIN,
        )


class HostUnreachable(Unavailable):
    """No way leads there from the gateway."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"The gateway cannot reach {host}:{port}.", reason="host_unreachable", remedy=_AGAIN
        )


class TargetRules:
    """The operator's list, and what is denied in spite of it.

    `is_own` says whether an address is one of this machine's. Whoever dials uses the very address
    that was judged here, so that a name cannot mean something else the second time (DNS rebinding).
    """

    def __init__(self, *, allowed: AllowList, is_own: Callable[[Address], bool]) -> None:
        self._allowed = allowed
        self._is_own = is_own

    def check(self, host: Host, port: int) -> None:
        """Raise TargetDenied for what the list does not allow; that is not even resolved."""
        asked = host if isinstance(host, str) else meant(host)
        if not self._allowed.allows(asked, port):
            raise TargetDenied(str(host), port)

    def lists(self, address: Address, port: int) -> bool:
        """Say whether the list has this very address, whatever it means at the time."""
        return self._allowed.lists(meant(address), port)

    def judged(self, host: Host, addresses: Iterable[str], port: int) -> list[Address]:
        """Return those of a host's addresses that may be dialled, in their order; raises
        TargetDenied when there is none.
        """
        found = [ip_address(each) for each in addresses]
        judged = [each for each in found if self._may_dial(host, meant(each), port)]
        if not judged:
            raise TargetDenied(str(host), port)
        return judged

    def _may_dial(self, host: Host, address: Address, port: int) -> bool:
        is_listed = self._allowed.lists(address, port)
        if is_metadata(address):
            return is_listed and not isinstance(host, str)
        if is_loopback(address) or self._is_own(address):
            return is_listed
        if is_public(address) or self._allowed.opens(address, port):
            return True
        return isinstance(host, str) and self._allowed.names(host, port) and is_private(address)
