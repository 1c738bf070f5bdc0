"""Which AEAD is fast on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead_tunnel.records import Suite

_CPUS = Path("/proc/cpuinfo")


def preferred_suite() -> Suite:
    """Return the one for this machine; without Linux's word it is AES-256-GCM."""
    try:
        return suite_for(_CPUS.read_text("utf-8", "replace"))
    except OSError:
        return Suite.AES_256_GCM


def suite_for(cpus: str) -> Suite:
    """Return AES-256-GCM, or ChaCha20-Poly1305 where /proc/cpuinfo lists features without AES."""
    features = re.findall(r"^(?:flags|Features)\s*:(.*)$", cpus, re.MULTILINE)
    has_aes = all("aes" in each.split() for each in features)
    return Suite.AES_256_GCM if has_aes else Suite.CHACHA20_POLY1305
