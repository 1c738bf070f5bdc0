"""Resolves an origin's host once; what is dialled afterwards is one of these very addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from workspace_provisioner.egress import EgressRules
from workspace_provisioner.origins import Origin, OriginFailed, OriginFault

Resolve = Callable[[str, int], Awaitable[list[str]]]

_MOST_ADDRESSES = 4


class OriginAddresses:
    """The addresses that the rules leave of what a name means now."""

    def __init__(self, *, rules: EgressRules, resolve: Resolve) -> None:
        self._rules = rules
        self._resolve = resolve

    async def of(self, origin: Origin) -> tuple[str, ...]:
        """Return at most four addresses; raises OriginFailed."""
        try:
            found = await self._resolve(origin.host, origin.port)
        except (OSError, UnicodeError) as error:
            raise OriginFailed(OriginFault.UNREACHABLE, "its name has no address") from error
        allowed = self._rules.allow(origin.host, found)
        if not allowed:
            raise OriginFailed(OriginFault.DENIED, "its address is one that a host must not dial")
        return allowed[:_MOST_ADDRESSES]
