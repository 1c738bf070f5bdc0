"""SDP offers of data-channel sessions (RFC 8866, RFC 8841): what must hold before one is handed to
a gateway. What begins with `fl1.` is sealed by the peers and only routed.
"""

from __future__ import annotations

import re

from chassis.errors import InvalidArgument
from fairlead_limits.table import OFFER_BYTES

_SEALED_PREFIX = "fl1."
_SEALED = re.compile(r"fl1\.[A-Za-z0-9_.=-]+")


class SdpInvalid(InvalidArgument):
    """A description cannot be an offer for a data channel."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            reason="sdp_invalid",
            remedy="Send complete SDP with its candidates and one section for data channels.",
        )


def is_sealed(text: str) -> bool:
    """Say whether the peers have sealed it: `fl1.` and base64url in parts, unread here."""
    return _SEALED.fullmatch(text) is not None


def check_offer(offer: str) -> None:
    """Raise SdpInvalid unless `offer` is SDP with exactly one section, for a data channel, with ICE
    and DTLS, or sealed.
    """
    if not OFFER_BYTES.allows(len(offer.encode("utf-8", "replace"))):
        raise SdpInvalid(OFFER_BYTES.sentence)
    if offer.startswith(_SEALED_PREFIX):
        if not is_sealed(offer):
            raise SdpInvalid("The sealed offer is not `fl1.` and base64url.")
        return
    lines = offer.replace("\r\n", "\n").rstrip("\n").split("\n")
    if lines[0] != "v=0":
        raise SdpInvalid("The offer is not SDP: its first line is not `v=0`.")
    for number, line in enumerate(lines, start=1):
        if len(line) < 2 or line[1] != "=" or not line[0].islower() or not line.isprintable():
            raise SdpInvalid(f"Line {number} of the offer is not a line of SDP.")
    media = [line for line in lines if line.startswith("m=")]
    if len(media) != 1:
        raise SdpInvalid(f"The offer has {len(media)} media sections where one is expected.")
    parts = media[0].removeprefix("m=").split()
    if len(parts) != 4 or parts[0] != "application" or parts[3] != "webrtc-datachannel":
        raise SdpInvalid("The offer's section is not `m=application … webrtc-datachannel`.")
    for attribute in ("ice-ufrag", "ice-pwd", "fingerprint"):
        if not any(line.startswith(f"a={attribute}:") for line in lines):
            raise SdpInvalid(f"The offer lacks `a={attribute}`.")
