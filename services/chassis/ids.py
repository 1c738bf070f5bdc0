"""Prefixed ids: random, or derived from an idempotency key so that a retry finds the result."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

_ID = re.compile(r"[a-z]{3}_[a-z2-7]{26}")


def _text(raw: bytes) -> str:
    return base64.b32encode(raw).decode("ascii").rstrip("=").lower()


def random_id(prefix: str) -> str:
    """Make an id with 128 random bits, such as `lch_…`; `prefix` is three lower-case letters."""
    return f"{prefix}_{_text(secrets.token_bytes(16))}"


def derived_id(prefix: str, *parts: str, key: bytes) -> str:
    """Derive an id from `parts` (tenant, route, idempotency key): same parts, same id.

    HMAC-SHA256 (RFC 2104) over the length-prefixed parts, cut to 128 bits; `key` is the stack's
    secret, so that nobody outside can compute another tenant's ids.
    """
    message = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return f"{prefix}_{_text(hmac.new(key, message, hashlib.sha256).digest()[:16])}"


def is_id(prefix: str, text: str) -> bool:
    """Say whether `text` has an id's form; what does not is never used as a key or path."""
    return _ID.fullmatch(text) is not None and text.startswith(prefix + "_")
