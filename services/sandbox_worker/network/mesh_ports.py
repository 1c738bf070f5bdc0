"""The ports on which the mesh itself listens. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

MESH_PORTS = frozenset({7300, 7301, 7310, 7311, 7312, 7320, 7330})
"""The defaults of all rooms."""

_REDIS_PORT = 6379


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
        port = parts.port or (_REDIS_PORT if parts.scheme.startswith("redis") else None)
        if port is not None:
            found.add(port)
    return frozenset(found)
