"""base64url without padding (RFC 4648, section 5), with one text for each value."""

from __future__ import annotations

import base64
import re

_ALPHABET = re.compile(r"[A-Za-z0-9_-]*")


def base64url(raw: bytes) -> str:
    """Return `raw` as text."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def from_base64url(text: str) -> bytes:
    """Return the bytes of a text; raises ValueError for any text that `base64url` does not give."""
    if not _ALPHABET.fullmatch(text) or len(text) % 4 == 1:
        raise ValueError("This is no base64url.")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64url(raw) != text:
        raise ValueError("The last character of this base64url has bits that no encoder sets.")
    return raw
