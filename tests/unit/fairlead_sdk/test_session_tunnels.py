"""What a client is given for a tunnel, as the SDK reads it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fairlead_sdk.errors import Internal
from fairlead_sdk.forwarding import open_session
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.session_errors import CoreUnable
from fairlead_sdk.session_records import OpenedSession, SessionTunnel
from tests.fakes.session_mesh import SessionMesh

TUNNEL: JsonObject = {
    "tunnel_id": "00" * 16,
    "ticket": "-_8",
    "secret": "A" * 43,
    "gateway_key": "B" * 42 + "A",
    "urls": ["tcp://host:7311"],
    "expires_at": "2026-01-01T00:01:00Z",
}
OPENED: JsonObject = {
    "session_id": "ses_a",
    "mode": "tunnel",
    "state": "opened",
    "ice_servers": [],
    "tunnel": TUNNEL,
}


def test_the_tunnel_of_an_answer_is_read() -> None:
    opened = OpenedSession.read(OPENED)
    assert opened.tunnel == SessionTunnel(
        tunnel_id="00" * 16,
        ticket=b"\xfb\xff",
        secret=bytes(32),
        gateway_key=bytes.fromhex("041041" * 10 + "0410"),
        urls=("tcp://host:7311",),
        expires_at=datetime(2026, 1, 1, 0, 1, tzinfo=UTC),
    )
    assert opened.session.mode == "tunnel"
    assert OpenedSession.read({**OPENED, "tunnel": None}).tunnel is None


def test_what_is_printed_shows_neither_ticket_nor_secret() -> None:
    opened = OpenedSession.read(OPENED)
    assert "tunnel" not in opened.session.document
    for secret in ("ticket", "secret", "\\xfb", "-_8"):
        assert secret not in repr(opened)


@pytest.mark.parametrize("text", ["A", "é"])
def test_a_tunnel_that_cannot_be_read(text: str) -> None:
    with pytest.raises(Internal) as caught:
        OpenedSession.read({**OPENED, "tunnel": {**TUNNEL, "secret": text}})
    assert caught.value.reason == "answer_invalid"


@pytest.mark.asyncio
async def test_a_tunnel_is_not_negotiated() -> None:
    mesh = SessionMesh()
    with pytest.raises(CoreUnable):
        async with open_session(mesh, "lch_a", mode="tunnel", core=mesh.core):
            raise AssertionError("it is held")
    assert mesh.calls == []
