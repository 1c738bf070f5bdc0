"""Which STUN and TURN servers a session is told of, with which credentials and until when."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from chassis.settings import SecretFileUnusable, shown_settings
from signalling.ice_servers import (
    IcePolicy,
    IcePolicyUnknown,
    IceServer,
    IceServers,
    RelayUnavailable,
    ice_policy,
    turn_credential,
)
from signalling.settings import Settings, TurnSecretRequired

NOW = datetime(2026, 11, 22, 8, 0, 0, 250_000, tzinfo=UTC)
EXPIRY = datetime(2026, 11, 22, 9, 0, 1, tzinfo=UTC)
STUN = "stun:stun.example:3478"
TURN = ("turn:relay.example:3478?transport=udp", "turn:relay.example:3478?transport=tcp")
SESSION = "ses_aaaaaaaaaaaaaaaaaaaaaaaaaa"


def servers(*, stun: tuple[str, ...] = (STUN,), turn: tuple[str, ...] = TURN) -> IceServers:
    return IceServers(
        stun_urls=stun, turn_urls=turn, turn_secret="north", lifetime=timedelta(hours=1)
    )


def test_all_is_stun_and_turn_with_a_credential_of_the_session() -> None:
    stun, turn = servers().for_session(SESSION, IcePolicy.ALL, now=NOW)
    assert stun == IceServer((STUN,))
    assert turn.urls == TURN
    assert turn.username == f"{int(EXPIRY.timestamp())}:{SESSION}"
    assert turn.expires_at == EXPIRY
    digest = hmac.new(b"north", turn.username.encode(), hashlib.sha1).digest()
    assert turn.credential == base64.b64encode(digest).decode()


def test_the_credential_is_the_one_of_the_rest_scheme() -> None:
    # From `printf %s 1433895918:506c6c | openssl dgst -sha1 -hmac north -binary | base64`.
    assert turn_credential("north", "1433895918:506c6c") == "+llZge/pmirgK/yjm2Af/jsdEBc="


def test_each_policy_has_its_servers() -> None:
    by_policy = {
        policy: [server.urls for server in servers().for_session(SESSION, policy, now=NOW)]
        for policy in IcePolicy
    }
    assert by_policy == {
        IcePolicy.ALL: [(STUN,), TURN],
        IcePolicy.RELAY: [TURN],
        IcePolicy.DIRECT: [(STUN,)],
    }


def test_without_relays_only_who_insists_on_one_is_refused() -> None:
    bare = servers(stun=(), turn=())
    assert bare.for_session(SESSION, IcePolicy.ALL, now=NOW) == ()
    assert bare.for_session(SESSION, IcePolicy.DIRECT, now=NOW) == ()
    with pytest.raises(RelayUnavailable):
        bare.for_session(SESSION, IcePolicy.RELAY, now=NOW)


def test_who_asks_again_gets_a_later_end() -> None:
    (first,) = servers().for_session(SESSION, IcePolicy.RELAY, now=NOW)
    (later,) = servers().for_session(SESSION, IcePolicy.RELAY, now=NOW + timedelta(minutes=30))
    assert first.expires_at is not None
    assert later.expires_at == first.expires_at + timedelta(minutes=30)
    assert first.credential != later.credential


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", IcePolicy.ALL),
        ("all", IcePolicy.ALL),
        ("relay", IcePolicy.RELAY),
        ("direct", IcePolicy.DIRECT),
    ],
)
def test_policies_by_name(text: str, policy: IcePolicy) -> None:
    assert ice_policy(text) is policy


@pytest.mark.parametrize("text", ["RELAY", "none", "x" * 1000])
def test_an_unknown_policy(text: str) -> None:
    with pytest.raises(IcePolicyUnknown) as caught:
        ice_policy(text)
    assert len(caught.value.fields["ice_policy"]) <= 64


def secret_file(directory: Path, text: str = "north\n") -> Path:
    path = directory / "turn"
    path.write_text(text)
    return path


def test_settings_make_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_SIGNALLING_STUN_URLS", "stun:stun.example, ")
    monkeypatch.setenv(
        "FAIRLEAD_SIGNALLING_TURN_URLS",
        "turn:relay.example, turn:relay.example?transport=tcp,turn:relay.example:3478",
    )
    monkeypatch.setenv("FAIRLEAD_SIGNALLING_TURN_SECRET_FILE", str(secret_file(tmp_path)))
    settings = Settings()
    assert settings.stun_urls == (STUN,)
    assert settings.turn_urls == TURN
    given = settings.ice_servers().for_session(SESSION, IcePolicy.ALL, now=NOW)
    assert given == servers().for_session(SESSION, IcePolicy.ALL, now=NOW)
    assert "north" not in shown_settings(settings)


def test_without_settings_there_are_no_servers() -> None:
    assert Settings().ice_servers().for_session(SESSION, IcePolicy.ALL, now=NOW) == ()


def test_relays_need_a_secret(tmp_path: Path) -> None:
    with pytest.raises(TurnSecretRequired):
        Settings(turn_urls=TURN).ice_servers()
    empty = Settings(turn_urls=TURN, turn_secret_file=secret_file(tmp_path, ""))
    with pytest.raises(SecretFileUnusable) as caught:
        empty.ice_servers()
    assert "FAIRLEAD_SIGNALLING_TURN_SECRET_FILE" in str(caught.value)


@pytest.mark.parametrize("urls", [(TURN[0],), ("stun:",), ("stun:a", "http://b")])
def test_a_wrong_stun_url_is_a_wrong_setting(urls: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        Settings(stun_urls=urls)


@pytest.mark.parametrize("urls", [(STUN,), ("turn:",)])
def test_a_wrong_turn_url_is_a_wrong_setting(urls: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        Settings(turn_urls=urls)
