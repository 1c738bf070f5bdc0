"""Addresses beside the gateway's own that lead to it, such as hops that forward."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

SCHEMES: Final = ("tcp", "http", "https")
_TEXT = re.compile(r"(?:(?P<label>[A-Za-z0-9][A-Za-z0-9._-]{0,62})=)?(?P<url>[a-z]+://\S+)")


@dataclass(frozen=True, slots=True)
class Hop:
    """One address; those of one account have the same label, and share what it may have at once."""

    url: str
    label: str = ""


def read_hop(text: str) -> Hop:
    """Read `[LABEL=]URL`; ValueError: it is none, or of a scheme that no carrier has."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError("a hop is [LABEL=]URL")
    parts = urlsplit(found["url"])
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError("a hop is reached by tcp://, http:// or https://")
    if parts.scheme == "tcp" and not parts.port:
        raise ValueError("a hop by tcp:// has a port")
    return Hop(found["url"], found["label"] or "")
