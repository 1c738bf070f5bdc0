"""Settings: names, defaults, masks, the secret file and misspelt names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, ValidationError

from chassis.settings import (
    RoomSettings,
    SecretFileUnusable,
    misspelt,
    room_config,
    settings_of,
    shown_settings,
)


class ProbeSettings(RoomSettings):
    model_config = room_config("FAIRLEAD_PROBE_")

    bind: str = Field(default="127.0.0.1:7399", description="Where it listens.")
    ice_servers: tuple[str, ...] = Field(default=("stun:a", "stun:b"), description="Servers.")
    turn_password: SecretStr = Field(default=SecretStr("pw"), description="A password.")
    api_token: str = Field(default="tkn", description="A token.")
    keys_file: Path | None = Field(default=Path("/keys"), description="A file.")
    verbose: bool = Field(default=False, description="A switch.")
    place: str = Field(default_factory=lambda: "here", description="One for each machine.")
    host_id: str = Field(
        default="hst_x", validation_alias="FAIRLEAD_HOST_ID", description="A shared name."
    )


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FAIRLEAD_"):
            monkeypatch.delenv(name)


def test_own_and_shared_names_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_PROBE_BIND", "unix:/run/s")
    monkeypatch.setenv("FAIRLEAD_REDIS_URL", "unix:///run/redis")
    monkeypatch.setenv("FAIRLEAD_HOST_ID", "hst_1")
    settings = ProbeSettings()
    assert (settings.bind, settings.redis_url, settings.host_id) == (
        "unix:/run/s",
        "unix:///run/redis",
        "hst_1",
    )


def test_every_setting_has_a_default_and_an_empty_value_means_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRLEAD_LOG_LEVEL", "")
    settings = ProbeSettings()
    assert settings.log_level == "info"
    assert settings.redis_url == "redis://127.0.0.1:6379/0"
    assert settings.secret() is None


def test_settings_can_be_given_by_field_name() -> None:
    assert ProbeSettings(redis_url="unix:///r", bind="b").redis_url == "unix:///r"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        ProbeSettings().bind = "elsewhere"


def test_an_error_does_not_repeat_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_DRAIN_SECONDS", "s3cret")
    with pytest.raises(ValidationError) as caught:
        ProbeSettings()
    assert "s3cret" not in str(caught.value)


def test_secrets_are_masked_where_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_REDIS_URL", "redis://user:hunter2@redis:6379/0")
    assert shown_settings(ProbeSettings()) == (
        "FAIRLEAD_PROBE_BIND=127.0.0.1:7399\n"
        "FAIRLEAD_PROBE_ICE_SERVERS=stun:a,stun:b\n"
        "FAIRLEAD_PROBE_TURN_PASSWORD=********\n"
        "FAIRLEAD_PROBE_API_TOKEN=********\n"
        "FAIRLEAD_PROBE_KEYS_FILE=/keys\n"
        "FAIRLEAD_PROBE_VERBOSE=false\n"
        "FAIRLEAD_PROBE_PLACE=here\n"
        "FAIRLEAD_HOST_ID=hst_x\n"
        "FAIRLEAD_REDIS_URL=redis://user:********@redis:6379/0\n"
        "FAIRLEAD_REDIS_PASSWORD_FILE=\n"
        "FAIRLEAD_SECRET_FILE=\n"
        "FAIRLEAD_LOG_LEVEL=info\n"
        "FAIRLEAD_DRAIN_SECONDS=5.0\n"
    )


def test_every_shared_setting_is_described() -> None:
    assert all(row.description for row in settings_of(RoomSettings))
    defaults = {row.field: row.default for row in settings_of(ProbeSettings)}
    assert (defaults["bind"], defaults["place"]) == ("127.0.0.1:7399", "")


def test_the_secret_is_the_files_text_without_the_line_end(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("abc\n")
    assert ProbeSettings(secret_file=file).secret() == "abc"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_a_secret_file_that_is_missing_or_empty_is_an_error(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SecretFileUnusable) as caught:
        ProbeSettings(secret_file=file).secret()
    assert str(tmp_path) not in caught.value.message


def test_misspelt_names_are_found_with_the_nearest_match() -> None:
    names = [
        "FAIRLEAD_PROBE_BIMD",
        "FAIRLEAD_PROBE_QQQQQQQQQQQQ",
        "FAIRLEAD_PROBE_REDIS_URL",
        "FAIRLEAD_REDIS_URI",
        "FAIRLEAD_RELAY_HTTP_BIND",
        "FAIRLEAD_PROBE_BIND",
        "FAIRLEAD_HOST_ID",
        "PATH",
    ]
    assert list(misspelt(ProbeSettings, names)) == [
        ("FAIRLEAD_PROBE_BIMD", "FAIRLEAD_PROBE_BIND"),
        ("FAIRLEAD_PROBE_QQQQQQQQQQQQ", ""),
        ("FAIRLEAD_PROBE_REDIS_URL", "FAIRLEAD_REDIS_URL"),
        ("FAIRLEAD_REDIS_URI", "FAIRLEAD_REDIS_URL"),
    ]
