"""Which ways there are to a gateway, by the URLs that it gives and the hops that lead to it."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from fairlead_tunnel.endpoints import Endpoint, Health
from fairlead_tunnel.hops import Hop
from fairlead_tunnel.http_ways import PipeWay, PollsWay
from fairlead_tunnel.stream_pipe import connect_stream
from fairlead_tunnel.tcp_way import TcpWay
from fairlead_tunnel.ways import Kind, Way
from fairlead_tunnel.websocket_pipe import connect_websocket


async def try_hop(hop: Hop) -> None:
    """Find out that a hop leads to a gateway: that a poll passes, or a TCP connection is made.

    OSError: it does not.
    """
    way = (
        TcpWay(hop.url, health=Health())
        if urlsplit(hop.url).scheme == "tcp"
        else PollsWay([Endpoint(hop.url, hop.label)])
    )
    (await way.reach()).drop()


class GatewayWays:
    """The ways of one client's tunnels, one after the other: what was learnt of an address, such as
    that it is to be left alone for a while, holds for the next tunnel too.
    """

    def __init__(self, hops: Sequence[Hop] = ()) -> None:
        self._hops = hops
        self._endpoints: dict[str, Endpoint] = {}
        self._health: dict[tuple[Kind, str], Health] = {}

    def to(self, urls: Sequence[str]) -> list[Way]:
        """Return all ways to a gateway's URLs, and by the hops; other schemes are passed over."""
        ways: list[Way] = []
        endpoints: list[Endpoint] = []
        labels = dict.fromkeys(urls, "") | {hop.url: hop.label for hop in self._hops}
        for url, label in labels.items():
            match urlsplit(url).scheme:
                case "tcp":
                    ways.append(TcpWay(url, health=self._health_of(Kind.TCP, url)))
                case "http" | "https":
                    endpoints.append(self._endpoints.setdefault(url, Endpoint(url, label)))
                case _:
                    pass
        for kind, connect in (
            (Kind.WEBSOCKET, connect_websocket),
            (Kind.REQUESTS, connect_stream),
        ):
            for each in endpoints:
                health = self._health_of(kind, each.url)
                ways.append(PipeWay(each, kind=kind, connect=connect, health=health))
        if endpoints:
            ways.append(PollsWay(endpoints))
        return ways

    def _health_of(self, kind: Kind, url: str) -> Health:
        return self._health.setdefault((kind, url), Health())
