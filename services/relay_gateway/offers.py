"""What an offer must look like before a WebRTC core sees it; pure."""

from __future__ import annotations

from fairlead_limits.table import OFFER_BYTES
from relay_gateway.session import SdpInvalid

MOST_CANDIDATES = 100
"""RFC 8445, section 6.1.2.5: a checklist of 100 pairs is what an agent need take."""


_SEALED = "fl1."


def is_sealed(description: str) -> bool:
    """Say whether a description is meant to be opened first."""
    return description.startswith(_SEALED)


def usable_candidate(candidate: str) -> bool:
    """Say whether a candidate needs no multicast DNS to be resolved; see `usable_offer`."""
    return not _host(candidate).endswith(".local")


def usable_offer(offer: str) -> str:
    """Return `offer` without candidates that only multicast DNS can resolve; raises SdpInvalid.

    Those come from browsers that hide their addresses; they connect all the same, as peer-reflexive
    candidates (RFC 8445, section 7.3.1.3), and no multicast leaves the gateway.
    """
    if not OFFER_BYTES.allows(len(offer.encode("utf-8", "replace"))):
        raise SdpInvalid(f"it must have {OFFER_BYTES.rule}")
    lines = offer.replace("\r\n", "\n").split("\n")
    sections = [line for line in lines if line.startswith("m=")]
    if len(sections) != 1 or not sections[0].startswith("m=application "):
        raise SdpInvalid("it must have one section, for data channels")
    for attribute in ("ice-ufrag", "ice-pwd", "fingerprint"):
        if not any(line.startswith(f"a={attribute}:") for line in lines):
            raise SdpInvalid(f"it lacks `a={attribute}`")
    for line in lines:
        if line.startswith("a=sctp-port:") and not _is_port(line.partition(":")[2]):
            raise SdpInvalid("its `a=sctp-port` is not a port (RFC 8841, section 5)")
    candidates = [line for line in lines if line.startswith("a=candidate:")]
    if len(candidates) > MOST_CANDIDATES:
        raise SdpInvalid(f"it has more than {MOST_CANDIDATES} candidates")
    kept = [line for line in lines if not line.startswith("a=candidate:") or usable_candidate(line)]
    return "\r\n".join(kept)


def _is_port(text: str) -> bool:
    digits = text.strip()
    return digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) <= 65535


def _host(candidate: str) -> str:
    parts = candidate.split()
    return parts[4].lower() if len(parts) > 4 else ""
