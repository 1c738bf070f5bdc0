"""Settings that every room shares, and how a room declares, shows and checks its own.

A room subclasses `RoomSettings` with `model_config = room_config("FAIRLEAD_<ROOM>_")`; every field
has a description.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from chassis.errors import FailedPrecondition

MASK = "********"
_MASKED_WORDS = frozenset({"secret", "token", "password", "key"})


class SecretFileUnusable(FailedPrecondition):
    """A secret's file is missing, unreadable or empty."""

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"The file named by {variable} cannot be read or is empty.",
            reason="secret_file_unusable",
            remedy="Write at least 32 random characters into it and let this user read it.",
        )


def read_secret(path: Path, variable: str) -> str:
    """Return what a secret's file says; raises SecretFileUnusable in the name of `variable`."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretFileUnusable(variable) from error
    if not text:
        raise SecretFileUnusable(variable)
    return text


def room_config(prefix: str) -> SettingsConfigDict:
    """Return a room's configuration; its variables start with `prefix` (`FAIRLEAD_RELAY_`)."""
    return SettingsConfigDict(
        env_prefix=prefix,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
        validate_default=True,
        hide_input_in_errors=True,
    )


class RoomSettings(BaseSettings):
    """The settings that all rooms have, read from the environment under unprefixed names."""

    model_config = room_config("FAIRLEAD_")

    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0",
        validation_alias="FAIRLEAD_REDIS_URL",
        description="Redis or Valkey, 6.2 or later: redis://host:port/db, rediss://… or unix:///path.",
    )
    redis_password_file: Path | None = Field(
        default=None,
        validation_alias="FAIRLEAD_REDIS_PASSWORD_FILE",
        description="File with the password of Redis, where the URL has none.",
    )
    secret_file: Path | None = Field(
        default=None,
        validation_alias="FAIRLEAD_SECRET_FILE",
        description="File with the secret that the rooms of one stack share; needed over TCP.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        validation_alias="FAIRLEAD_LOG_LEVEL",
        description="Least level of the log lines on standard error.",
    )
    drain_seconds: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        validation_alias="FAIRLEAD_DRAIN_SECONDS",
        description="How long open calls may still run after the first SIGTERM.",
    )

    def redis_password(self) -> str | None:
        """Read the password of Redis, or return None when no file is set; raises
        SecretFileUnusable.
        """
        if self.redis_password_file is None:
            return None
        return read_secret(self.redis_password_file, "FAIRLEAD_REDIS_PASSWORD_FILE")

    def secret(self) -> str | None:
        """Read the stack secret, or return None when no file is set; raises SecretFileUnusable."""
        if self.secret_file is None:
            return None
        return read_secret(self.secret_file, "FAIRLEAD_SECRET_FILE")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as the documentation and `--show-settings` present it."""

    name: str
    field: str
    default: str
    description: str


def settings_of(settings_class: type[RoomSettings]) -> list[Setting]:
    """List a room's settings under the names of their environment variables, its own first."""
    rows = [
        Setting(
            name=_variable(settings_class, name, field),
            field=name,
            default=_default(name, field),
            description=field.description or "",
        )
        for name, field in settings_class.model_fields.items()
    ]
    shared = RoomSettings.model_fields
    return sorted(rows, key=lambda row: row.field in shared)


def shown_settings(settings: RoomSettings) -> str:
    """Render the effective values as `NAME=value` lines, with secrets masked."""
    return "".join(
        f"{row.name}={_text(row.field, getattr(settings, row.field))}\n"
        for row in settings_of(type(settings))
    )


def misspelt(settings_class: type[RoomSettings], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (unknown name, nearest known name or "") for what looks like this room's settings.

    Names with the room's prefix must be known; of the other `FAIRLEAD_` names, which may be another
    room's, only those that are nearly one of ours are reported.
    """
    rows = settings_of(settings_class)
    known = {row.name for row in rows}
    prefix = settings_class.model_config.get("env_prefix") or "FAIRLEAD_"
    by_tail = {row.field.upper(): row.name for row in rows}
    for name in sorted(names):
        if name in known or not name.startswith("FAIRLEAD_"):
            continue
        if prefix != "FAIRLEAD_" and name.startswith(prefix):
            near = difflib.get_close_matches(name.removeprefix(prefix), by_tail, n=1)
            yield name, by_tail[near[0]] if near else ""
        elif near := difflib.get_close_matches(name, known, n=1, cutoff=0.9):
            yield name, near[0]


def _default(name: str, field: FieldInfo) -> str:
    """Return the default as text; empty where each machine has its own."""
    if field.is_required() or field.default_factory is not None:
        return ""
    return _text(name, field.get_default())


def _variable(settings_class: type[RoomSettings], name: str, field: FieldInfo) -> str:
    match field.validation_alias:
        case str(alias):
            return alias
        case AliasChoices(choices=[str(first), *_]):
            return first
        case _:
            return f"{settings_class.model_config.get('env_prefix', '')}{name}".upper()


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    is_path = isinstance(value, Path)
    if isinstance(value, SecretStr) or (not is_path and _MASKED_WORDS & set(name.split("_"))):
        return MASK if str(value) else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(str(part) for part in value)
    return _without_password(str(value))


def _without_password(text: str) -> str:
    if "://" not in text:
        return text
    parts = urlsplit(text)
    if parts.password is None:
        return text
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username or ''}:{MASK}@{place}").geturl()
