"""Which ways there are to a gateway, by the URLs that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from fairlead_tunnel.endpoints import Endpoint
from fairlead_tunnel.http_ways import PipeWay, PollsWay
from fairlead_tunnel.stream_pipe import connect_stream
from fairlead_tunnel.tcp_way import TcpWay
from fairlead_tunnel.ways import Kind, Way
from fairlead_tunnel.websocket_pipe import connect_websocket


def ways_to(urls: Sequence[str]) -> list[Way]:
    """Return all ways to `tcp://`, `http://` and `https://` URLs; others are passed over."""
    ways: list[Way] = [TcpWay(url) for url in urls if urlsplit(url).scheme == "tcp"]
    over_http = [url for url in urls if urlsplit(url).scheme in ("http", "https")]
    for url in over_http:
        ways.append(PipeWay(url, kind=Kind.WEBSOCKET, connect=connect_websocket))
        ways.append(PipeWay(url, kind=Kind.REQUESTS, connect=connect_stream))
    if over_http:
        ways.append(PollsWay([Endpoint(url) for url in over_http]))
    return ways
