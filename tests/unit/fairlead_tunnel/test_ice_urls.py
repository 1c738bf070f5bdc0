"""URLs of STUN and TURN servers: the examples of RFC 7064 and RFC 7065, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_tunnel.ice_urls import IceTransport, IceUrl, IceUrlInvalid, ice_url


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("stun:example.org", "stun:example.org:3478"),
        ("stuns:example.org", "stuns:example.org:5349"),
        ("stun:example.org:8000", "stun:example.org:8000"),
        ("STUN:Example.ORG", "stun:example.org:3478"),
        ("turn:example.org", "turn:example.org:3478?transport=udp"),
        ("turns:example.org", "turns:example.org:5349?transport=tcp"),
        ("turn:example.org:8000", "turn:example.org:8000?transport=udp"),
        ("turn:example.org?transport=tcp", "turn:example.org:3478?transport=tcp"),
        ("turns:example.org?transport=UDP", "turns:example.org:5349?transport=udp"),
        ("turn:192.0.2.7:3478?transport=tcp", "turn:192.0.2.7:3478?transport=tcp"),
        ("turn:[2001:DB8:0::7]:3479", "turn:[2001:db8::7]:3479?transport=udp"),
        ("stun:[::1]", "stun:[::1]:3478"),
        ("stun:my_relay.internal.", "stun:my_relay.internal.:3478"),
    ],
)
def test_a_url_is_read_in_full(text: str, full: str) -> None:
    assert str(ice_url(text)) == full
    assert ice_url(full) == ice_url(text)


def test_its_parts() -> None:
    assert ice_url("turns:[::1]:443") == IceUrl(True, True, "::1", 443, IceTransport.TCP)
    assert ice_url("stun:a") == IceUrl(False, False, "a", 3478, IceTransport.UDP)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "stun:",
        "stun://example.org",
        "http://example.org",
        "stun:user@example.org",
        "stun:example.org/path",
        "stun:example.org:0",
        "stun:example.org:65536",
        "stun:example.org:",
        "stun:example.org?transport=udp",
        "turn:example.org?transport=sctp",
        "turn:example.org?transport=",
        "turn:example.org?other=udp",
        "turn:example.org#part",
        "turn:300.1.2.3",
        "turn:1.2.3",
        "turn:[::1",
        "turn:[::g]",
        "turn:::1",
        "turn:-a.org",
        "turn:a..org",
        "turn:exämple.org",
        "turn:a.org\n",
        "turn: a.org",
        "turn:" + "a" * 64 + ".org",
        "turn:" + "a." * 200 + "org",
    ],
)
def test_what_is_no_such_url(text: str) -> None:
    with pytest.raises(IceUrlInvalid):
        ice_url(text)


@settings(deadline=None)
@given(st.text(max_size=40).map(lambda rest: f"turn:{rest}"))
def test_what_is_taken_is_read_again_as_the_same(text: str) -> None:
    try:
        url = ice_url(text)
    except IceUrlInvalid:
        return
    assert ice_url(str(url)) == url
