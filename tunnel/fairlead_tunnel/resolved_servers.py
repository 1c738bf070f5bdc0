"""Which servers of a plan the native core asks: over UDP, by address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from fairlead_tunnel.ice_urls import IceTransport, IceUrl, IceUrlInvalid, ice_url
from fairlead_tunnel.peer_connection import IceServer

RESOLVE_SECONDS: Final = 3.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One address of a server; `is_relay` tells TURN from STUN, name and password are TURN's."""

    is_relay: bool
    host: str
    port: int
    username: str = ""
    credential: str = field(default="", repr=False)


async def resolved(
    servers: Iterable[IceServer], *, seconds: float = RESOLVE_SECONDS
) -> tuple[ServerAddress, ...]:
    """Return where the servers are, each name at its first address of each family, in order.

    Passed over with a line in the log: what is not over UDP, and what has no address in `seconds`.
    """
    named = [(server, url) for server in servers for text in server.urls for url in _over_udp(text)]
    found = await asyncio.gather(*(_addresses(url, seconds) for _, url in named))
    addresses = [
        ServerAddress(url.is_relay, host, url.port, server.username, server.credential)
        if url.is_relay
        else ServerAddress(url.is_relay, host, url.port)
        for (server, url), hosts in zip(named, found, strict=True)
        for host in hosts
    ]
    return tuple(dict.fromkeys(addresses))


def _over_udp(text: str) -> Iterable[IceUrl]:
    try:
        url = ice_url(text)
    except IceUrlInvalid:
        log.warning("server passed over", extra={"reason": "url_invalid"})
        return
    if url.is_secure or url.transport is not IceTransport.UDP:
        log.info("server passed over", extra={"reason": "not_over_udp", "url": str(url)})
        return
    yield url


async def _addresses(url: IceUrl, seconds: float) -> tuple[str, ...]:
    with contextlib.suppress(ValueError):
        return (str(ip_address(url.host)),)  # no thread looks it up, and nothing takes too long
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        log.warning(
            "server passed over", extra={"reason": "name_unknown", "cause": type(error).__name__}
        )
        return ()
    firsts: dict[int, str] = {}
    for family, _, _, _, address in found:
        firsts.setdefault(family, str(address[0]))
    return tuple(firsts.values())
