"""Resolves an origin's host once; what is dialled afterwards is one of these very addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from workspace_provisioner.egress import EgressRules
from workspace_provisioner.origins import Origin, OriginFailed, OriginFault

Resolve = Callable[[str, int], Awaitable[list[str]]]

_MOST_ADDRESSES = 4
# Those of many tenants whose name servers are silent: each may have 8 fetches, and 8 builds.
_THREADS = 128


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


class SystemResolver:
    """Asks the system's resolver, which also turns every spelling of a number into an address.

    Whoever leaves need not wait for a name server that is silent; nor need anybody else.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name; raises OSError and UnicodeError."""
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._executor, ask)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def close(self) -> None:
        """Ask nothing any more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
