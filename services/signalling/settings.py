"""The environment variables of signalling, each with a default that works on one machine."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from chassis.errors import FailedPrecondition
from chassis.listeners import ListenerSettings
from chassis.mesh_ports import MeshPort, on_loopback
from chassis.settings import read_secret, room_config
from signalling.ice_servers import IceServers, stun_url_list, turn_url_list


class SecretRequired(FailedPrecondition):
    """The internal address is TCP and nothing protects it."""

    def __init__(self) -> None:
        super().__init__(
            "FAIRLEAD_SIGNALLING_INTERNAL_BIND is a TCP address, and there is no stack secret.",
            reason="secret_required",
            remedy="Set FAIRLEAD_SECRET_FILE, or serve gateways on a unix socket.",
        )


class TurnSecretRequired(FailedPrecondition):
    """TURN servers are named, and nothing to make their credentials with."""

    def __init__(self) -> None:
        super().__init__(
            "FAIRLEAD_SIGNALLING_TURN_URLS names servers, and there is no secret for them.",
            reason="turn_secret_required",
            remedy="Set FAIRLEAD_SIGNALLING_TURN_SECRET_FILE: the static-auth-secret of coturn.",
        )


def _default_state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "fairlead" / "signalling"


def _default_internal_bind() -> str:
    return f"unix:{_default_state() / 'gateways.sock'}"


class Settings(ListenerSettings):
    """What signalling reads from its environment."""

    model_config = room_config("FAIRLEAD_SIGNALLING_")

    http_bind: str = Field(
        default=on_loopback(MeshPort.SIGNALLING_HTTP),
        description="host:port of the REST API; port 0 takes a free one.",
    )
    grpc_bind: str = Field(
        default=on_loopback(MeshPort.SIGNALLING_GRPC),
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
    requests_per_second: float = Field(
        default=2000.0,
        gt=0,
        le=1e9,
        description="How many requests a second one API key may make in the long run, over REST and"
        " gRPC together; a refused body costs as much as a request for each 512 bytes.",
    )
    requests_burst: float = Field(
        default=20_000.0, ge=1, le=1e9, description="How many it may make at once."
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
        description="How long a session waits for its offer, the ticket of a tunnel is good, and a"
        " session outlives its gateway's last word.",
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

    stun_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="STUN servers that sessions are told of, by comma: stun:host:port.",
    )
    turn_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="TURN servers that sessions are told of, by comma:"
        " turn:host:port?transport=udp, or tcp, or turns:.",
    )
    turn_secret_file: Path | None = Field(
        default=None,
        description="File with the secret that the TURN servers check credentials with"
        " (coturn: use-auth-secret, static-auth-secret).",
    )
    turn_credential_seconds: int = Field(
        default=3600,
        ge=60,
        le=86_400,
        description="How long a TURN credential lets somebody begin; what was begun goes on.",
    )

    @field_validator("stun_urls", "turn_urls", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(each.strip() for each in value.split(",") if each.strip())

    @field_validator("stun_urls")
    @classmethod
    def _stun(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return stun_url_list(urls)

    @field_validator("turn_urls")
    @classmethod
    def _turn(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return turn_url_list(urls)

    def ice_servers(self) -> IceServers:
        """Return what sessions are handed out; raises TurnSecretRequired where a secret lacks and
        SecretFileUnusable.
        """
        secret = ""
        if self.turn_urls:
            if self.turn_secret_file is None:
                raise TurnSecretRequired
            secret = read_secret(self.turn_secret_file, "FAIRLEAD_SIGNALLING_TURN_SECRET_FILE")
        return IceServers(
            stun_urls=self.stun_urls,
            turn_urls=self.turn_urls,
            turn_secret=secret,
            lifetime=timedelta(seconds=self.turn_credential_seconds),
        )

    def internal_secret(self) -> str | None:
        """Return the secret that gateways must show; raises SecretRequired where one is needed."""
        secret = self.secret()
        if secret is None and not self.internal_bind.startswith("unix:"):
            raise SecretRequired
        return secret
