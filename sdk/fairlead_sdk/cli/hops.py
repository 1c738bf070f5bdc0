"""The addresses that `--via` names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlead_tunnel.hops import Hop

VIA_HELP = """Reach the gateway also by this address, a hop that forwards to it or another name of \
it; repeatable. Addresses with the same LABEL are of one account, and share what may wait there."""


def read_hops(texts: Sequence[str]) -> list[Hop]:
    """Read each `[LABEL=]URL`; raises InvalidArgument."""
    if not texts:
        return []
    from fairlead_tunnel.hops import read_hop

    hops = []
    for text in texts:
        try:
            hops.append(read_hop(text))
        except ValueError as error:
            raise InvalidArgument(
                f"{text!r} cannot be used with --via: {error}.",
                reason="via_invalid",
                remedy="Give [LABEL=]URL, such as us=https://hop.example/t or tcp://gate.example:7311.",
            ) from None
    return hops


@asynccontextmanager
async def watching_hops(hops: Sequence[Hop], terminal: Terminal) -> AsyncIterator[None]:
    """Warn of each hop that leads to no gateway, once, while the block runs."""

    async def look(hop: Hop) -> None:
        from fairlead_tunnel.gateway_ways import try_hop

        try:
            await try_hop(hop)
        except OSError as error:
            cause = error.strerror or str(error) or "it does not answer in time"
            terminal.warn(f"--via {hop.url} leads to no gateway: {cause}.")

    looking = [asyncio.ensure_future(look(each)) for each in hops]
    try:
        yield
    finally:
        for each in looking:
            each.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
