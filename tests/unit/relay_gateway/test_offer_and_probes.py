"""What an offer must look like before aiortc sees it; the two probes; the settings."""

from __future__ import annotations

import json
import logging
from collections.abc import MutableMapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chassis.errors import FairleadError
from chassis.settings import settings_of
from fairlead_tunnel.aiortc_core import AiortcCore
from relay_gateway.http_api import GatewayApp
from relay_gateway.offers import usable_offer
from relay_gateway.settings import Settings

SECTION = "m=application 9 UDP/DTLS/SCTP webrtc-datachannel"
NEEDED = ("a=ice-ufrag:abcd", "a=ice-pwd:" + "p" * 22, "a=fingerprint:sha-256 AA")
CANDIDATE = "a=candidate:1 1 udp 2130706431 {host} 4242 typ host"


def offer(*lines: str) -> str:
    return "\r\n".join(("v=0", SECTION, *NEEDED, *lines, ""))


def test_candidates_that_need_multicast_dns_are_left_out() -> None:
    hidden = CANDIDATE.format(host="5b8a6a2f-0d5c.LOCAL")
    plain = CANDIDATE.format(host="192.0.2.7")
    assert usable_offer(offer(hidden, plain, "a=mid:0")) == offer(plain, "a=mid:0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v=0",
        offer("m=audio 9 UDP/TLS/RTP/SAVPF 0"),
        f"v=0\r\n{SECTION}\r\n",
        "v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\n",
        offer(*(CANDIDATE.format(host="192.0.2.7") for _ in range(101))),
        offer("a=x:" + "x" * 65536),
        offer("a=sctp-port:x"),
        offer("a=sctp-port:70000"),
    ],
)
def test_what_is_no_offer_for_data_channels(text: str) -> None:
    with pytest.raises(FairleadError) as caught:
        usable_offer(text)
    assert caught.value.reason == "sdp_invalid"


@given(st.text(max_size=300))
def test_any_text_is_usable_or_refused(text: str) -> None:
    reason = ""
    try:
        usable_offer(text)
    except FairleadError as error:
        reason = error.reason
    assert reason == ("" if "m=application " in text and reason == "" else "sdp_invalid")


async def ask(app: GatewayApp, method: str, path: str) -> tuple[int, dict[str, str]]:
    sent: list[MutableMapping[str, object]] = []

    async def receive() -> MutableMapping[str, object]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, object]) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path}, receive, send)
    status, body = sent[0]["status"], sent[1]["body"]
    assert isinstance(status, int)
    assert isinstance(body, bytes)
    return status, json.loads(body or "{}")


@pytest.mark.asyncio
async def test_the_probes() -> None:
    reasons = ["signalling_unavailable"]
    app = GatewayApp(why_not_ready=lambda: reasons[0])
    assert await ask(app, "GET", "/healthz") == (200, {"status": "alive"})
    assert await ask(app, "GET", "/readyz") == (
        503,
        {"status": "unready", "reason": "signalling_unavailable"},
    )
    reasons[0] = ""
    assert await ask(app, "GET", "/readyz") == (200, {"status": "ready"})
    assert await ask(app, "HEAD", "/readyz") == (200, {})
    assert (await ask(app, "POST", "/readyz"))[0] == 405
    assert (await ask(app, "GET", "/nowhere"))[0] == 404


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["aioice.ice", "aiortc.rtcpeerconnection"])
async def test_no_addresses_and_descriptions_are_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await AiortcCore().load()
    with caplog.at_level(logging.DEBUG):
        assert logging.getLogger(name).getEffectiveLevel() == logging.WARNING


def test_every_setting_has_a_default_and_a_description() -> None:
    rows = {row.name: row for row in settings_of(Settings)}
    assert rows["FAIRLEAD_RELAY_HTTP_BIND"].default == "127.0.0.1:7310"
    assert rows["FAIRLEAD_RELAY_SIGNALLING"].default == "127.0.0.1:7302"
    assert rows["FAIRLEAD_RELAY_SESSIONS"].default == "256"
    assert rows["FAIRLEAD_RELAY_CHANNELS_PER_SESSION"].default == "256"
    assert all(row.description for row in rows.values())
