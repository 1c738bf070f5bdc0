"""Offers that are refused before a gateway sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalling.description import SdpInvalid, check_offer
from tests.fakes.sessions import OFFER

MEDIA = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel"


def test_a_complete_offer_passes() -> None:
    check_offer(OFFER)
    check_offer(OFFER.replace("\r\n", "\n"))


@pytest.mark.parametrize(
    "offer",
    [
        "",
        "hello",
        "v=1\r\n" + OFFER,
        OFFER.replace(MEDIA, "m=audio 9 UDP/TLS/RTP/SAVPF 111"),
        OFFER.replace(MEDIA, "m=application 9 TCP other"),
        OFFER.replace(MEDIA + "\r\n", ""),
        OFFER + MEDIA + "\r\n",
        OFFER.replace("a=ice-ufrag:abcd\r\n", ""),
        OFFER.replace("a=ice-pwd", "a=ice-other"),
        OFFER.replace("a=fingerprint", "a=other"),
        OFFER + "not a line\r\n",
        OFFER + "a=nul\0\r\n",
        OFFER + "a=\ud800\r\n",
        OFFER + "a=x:" + "y" * 65_536 + "\r\n",
    ],
)
def test_what_cannot_be_an_offer(offer: str) -> None:
    with pytest.raises(SdpInvalid) as caught:
        check_offer(offer)
    assert caught.value.reason == "sdp_invalid"
    assert caught.value.remedy


@given(st.text())
def test_any_text_is_taken_or_refused(text: str) -> None:
    with pytest.raises(SdpInvalid):
        check_offer(text)
