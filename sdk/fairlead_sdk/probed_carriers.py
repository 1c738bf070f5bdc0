"""Tries each carrier of tunnels by itself, as `fairlead forward` would use it.

Needs the extra `fairlead-sdk[webrtc]`, for its ciphers.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Final

from fairlead_sdk.client import make_idempotency_key
from fairlead_sdk.diagnosis import Seen
from fairlead_sdk.errors import FairleadError, Unavailable
from fairlead_sdk.session_records import TUNNEL
from fairlead_sdk.tunnel_sessions import TOLD_SECONDS, TunnelApi, ticket_of, tunnel_of
from fairlead_tunnel.channel_way import ChannelWays, Meet
from fairlead_tunnel.gateway_ways import GatewayWays
from fairlead_tunnel.tunnel_client import TunnelClient, TunnelGone
from fairlead_tunnel.ways import Kind, Way

ATTACH_SECONDS: Final = 15.0
"""For one carrier; a data channel negotiates a session first."""
_REMEDIES: Final = {
    Kind.TCP: "Let TCP connections pass to the gateway's port (7311), or name another address of it"
    " in FAIRLEAD_RELAY_PUBLIC_URLS.",
    Kind.WEBSOCKET: "Have what stands before the gateway pass `Upgrade: websocket`.",
    Kind.REQUESTS: "Have what stands before the gateway pass long requests and answers unbuffered.",
    Kind.POLLS: "See whether this machine reaches the gateway's HTTP address, and whether"
    " FAIRLEAD_RELAY_PUBLIC_URLS names it.",
    Kind.DATA_CHANNEL: "See whether UDP between this machine and the gateway is blocked.",
}


class CarrierFails(Unavailable):
    """No tunnel can be attached by one kind of carrier."""

    def __init__(self, kind: Kind, cause: str) -> None:
        super().__init__(
            f"No tunnel goes over {kind.carrier}: {cause}",
            reason="carrier_failed",
            remedy=_REMEDIES[kind],
            fields={"carrier": kind.carrier},
        )


async def probe_carrier(api: TunnelApi, target: str, kind: Kind, meet: Meet) -> Seen:
    """Attach a tunnel by one kind of carrier, in a session of its own, and close it.

    Raises CarrierFails, and what the mesh refuses.
    """
    try:
        opened = await api.open_session(
            target, mode=TUNNEL, ice_policy="all", key=make_idempotency_key()
        )
    except FairleadError as error:
        if error.reason.startswith("mode_"):
            return Seen(sentence=f"This mesh has no tunnels. {error.message}", is_configured=False)
        raise
    session_id = opened.session.session_id
    channels = ChannelWays(meet)
    try:
        tunnel = tunnel_of(opened)
        ways: list[Way] = [*GatewayWays().to(tunnel.urls), channels.to(session_id)]
        chosen = [each for each in ways if each.kind is kind]
        if not chosen:
            return Seen(sentence="The gateway gives no address for it.", is_configured=False)
        client = TunnelClient(ticket=ticket_of(tunnel), ways=chosen, uniform=random.uniform)
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await client.attach(0.0)
        except TunnelGone as gone:
            raise CarrierFails(kind, gone.end.message) from gone
        except TimeoutError:
            raise CarrierFails(kind, f"not within {ATTACH_SECONDS:g} seconds.") from None
        finally:
            await client.close("normal", "The diagnosis has ended.")
        return Seen(sentence=f"A tunnel was attached over {chosen[0].name}.")
    finally:
        await channels.close()
        with suppress(FairleadError, TimeoutError):
            async with asyncio.timeout(TOLD_SECONDS):
                await api.close_session(session_id)
