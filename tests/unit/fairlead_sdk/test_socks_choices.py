"""What `fairlead socks` reads and shows: credentials, sizes and rates."""

from __future__ import annotations

import pytest

from fairlead_sdk.cli.hops import read_hops
from fairlead_sdk.cli.socks import CredentialsUnusable, credentials_of
from fairlead_sdk.cli.traffic import shown_flow
from fairlead_sdk.errors import InvalidArgument
from fairlead_tunnel.hops import Hop
from fairlead_tunnel.socks5 import Credentials


@pytest.mark.parametrize(
    ("text", "credentials"),
    [
        ("ada:enigma", Credentials(b"ada", b"enigma")),
        ("ada:en:igma\n", Credentials(b"ada", b"en:igma")),
        ("", None),
    ],
)
def test_credentials_come_from_the_environment(text: str, credentials: Credentials | None) -> None:
    assert credentials_of("", {"FAIRLEAD_SOCKS_CREDENTIALS": text}) == credentials
    assert credentials_of("", {}) is None


@pytest.mark.parametrize("text", ["ada", "ada:", ":enigma", ":", "x" * 256 + ":y"])
def test_a_name_or_a_password_alone_is_refused(text: str) -> None:
    with pytest.raises(CredentialsUnusable) as refused:
        credentials_of("", {"FAIRLEAD_SOCKS_CREDENTIALS": text})
    assert text not in refused.value.message.split()


@pytest.mark.parametrize(
    ("total", "rate", "shown"),
    [(0, 0.0, "0 B (0 B/s)"), (1536, 1023.4, "1.5 KiB (1023 B/s)"), (2**30, 2**21, None)],
)
def test_flows(total: int, rate: float, shown: str | None) -> None:
    assert shown_flow(total, rate) == (shown or "1.0 GiB (2.0 MiB/s)")


def test_addresses_that_lead_to_the_gateway_are_read_with_their_accounts() -> None:
    texts = ["us=https://hop.example/t", "tcp://gate.example:7311"]
    assert read_hops(texts) == [
        Hop("https://hop.example/t", "us"),
        Hop("tcp://gate.example:7311"),
    ]
    with pytest.raises(InvalidArgument) as refused:
        read_hops([*texts, "hop.example"])
    assert refused.value.reason == "via_invalid"
    assert "'hop.example'" in refused.value.message
