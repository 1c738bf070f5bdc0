"""The ports of the mesh: the defaults of its services' settings, and what no sandbox may dial.

Pure.
"""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import urlsplit


class MeshPort(IntEnum):
    """The default port of each listener of a mesh."""

    SIGNALLING_HTTP = 7300
    SIGNALLING_GRPC = 7301
    SIGNALLING_INTERNAL = 7302
    RELAY_HTTP = 7310
    RELAY_TCP = 7311
    RELAY_WORKERS = 7312
    WORKSPACE = 7320
    SANDBOX = 7330
    COLLECTOR_OTLP = 4318
    JAEGER = 16686


MESH_PORTS = frozenset(int(port) for port in MeshPort)
"""The default ports of all services."""

REDIS_PORT = 6379
"""Redis' own default; a port of the mesh only where the mesh's Redis is reached at it."""


def on_loopback(port: MeshPort) -> str:
    """Return the address of a listener on this machine, `host:port`."""
    return f"127.0.0.1:{port.value}"


def ports_of(*addresses: str) -> frozenset[int]:
    """Return the mesh's own ports: the defaults, and those that `host:port` and URLs name.

    Raises ValueError.
    """
    found = set(MESH_PORTS)
    for each in addresses:
        address = each.strip()
        if address.startswith("unix:") or not address:
            continue
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or (REDIS_PORT if parts.scheme.startswith("redis") else None)
        if port is not None:
            found.add(port)
    return frozenset(found)
