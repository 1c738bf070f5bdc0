"""Asks the system's resolver from threads of its own."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial


class SystemResolver:
    """Asks the system's resolver, which also turns every spelling of a number into an address.

    Whoever leaves need not wait for a name server that is silent; nor need anybody else, as long
    as fewer than `threads` names are being asked for.
    """

    def __init__(self, *, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="resolver")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name; raises OSError and UnicodeError."""
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._executor, ask)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def close(self) -> None:
        """Ask nothing any more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
