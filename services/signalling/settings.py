"""The environment variables of signalling, each with a default that works on one machine."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from chassis.errors import FailedPrecondition
from chassis.settings import RoomSettings, room_config


class SecretRequired(FailedPrecondition):
    """The internal address is TCP and nothing protects it."""

    def __init__(self) -> None:
        super().__init__(
            "FAIRLEAD_SIGNALLING_INTERNAL_BIND is a TCP address, and there is no stack secret.",
            reason="secret_required",
            remedy="Set FAIRLEAD_SECRET_FILE, or serve gateways on a unix socket.",
        )


def _default_state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "fairlead" / "signalling"


def _default_internal_bind() -> str:
    return f"unix:{_default_state() / 'gateways.sock'}"


class Settings(RoomSettings):
    """What signalling reads from its environment."""

    model_config = room_config("FAIRLEAD_SIGNALLING_")

    http_bind: str = Field(
        default="127.0.0.1:7300",
        description="host:port of the REST API; port 0 takes a free one.",
    )
    grpc_bind: str = Field(
        default="127.0.0.1:7301",
        description="host:port of the gRPC API; port 0 takes a free one.",
    )
    internal_bind: str = Field(
        default_factory=_default_internal_bind,
        description="Where relay-gateways dial in: unix:/path, or host:port with a stack secret;"
        " by default gateways.sock in the state directory.",
    )
    replica: str = Field(
        default="",
        description="Name of this replica, the same after a restart; the host's name when empty.",
    )
    state: Path = Field(
        default_factory=_default_state,
        description="Directory with keys.json, the hashes of the API keys; by default"
        " $XDG_STATE_HOME/fairlead/signalling.",
    )
    bootstrap_key_file: Path | None = Field(
        default=None,
        description="Where the first API key is written when there is none; none is made if unset.",
    )
    span_store: str = Field(
        default="",
        description="URL of the local span store that traces are read from; none when empty.",
    )
    upload_timeout_seconds: float = Field(
        default=120.0,
        gt=0,
        le=86_400,
        description="How long a launch waits for the upload that it asked for.",
    )
    offer_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="How long a gateway may take to answer an offer.",
    )
    session_seconds: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="How long a session waits for its offer, and outlives its gateway's last word.",
    )
    connect_seconds: float = Field(
        default=24.0,
        gt=0,
        le=86_400,
        description="How long a session may take from its offer to its connection.",
    )
    relay_connect_seconds: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="The same for one that may go through a TURN server only.",
    )
    gateway_grace_seconds: float = Field(
        default=15.0,
        ge=0,
        le=3600,
        description="How long the sessions of a lost gateway wait for it to come back.",
    )
    gateway_heartbeat_seconds: int = Field(
        default=5,
        ge=1,
        le=60,
        description="How often a gateway says that it lives; three times of silence make it lost.",
    )

    def internal_secret(self) -> str | None:
        """Return the secret that gateways must show; raises SecretRequired where one is needed."""
        secret = self.secret()
        if secret is None and not self.internal_bind.startswith("unix:"):
            raise SecretRequired
        return secret
