"""The gateway's settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from chassis.allow_list import parse_allow_list
from chassis.errors import FairleadError
from chassis.listeners import ListenerSettings
from chassis.mesh_ports import MeshPort, on_loopback
from chassis.settings import SecretFileUnusable, read_secret, room_config
from fairlead_tunnel.pumps import PumpChoice

_SECRET = re.compile(r"[0-9a-fA-F]{64}")


class Settings(ListenerSettings):
    """Read from FAIRLEAD_RELAY_…, and the names that all rooms share."""

    model_config = room_config("FAIRLEAD_RELAY_")

    http_bind: str = Field(
        default=on_loopback(MeshPort.RELAY_HTTP),
        description="Where /healthz, /readyz and carriers of tunnels over HTTP are served,"
        " host:port; port 0 takes a free one.",
    )
    tcp_bind: str = Field(
        default=on_loopback(MeshPort.RELAY_TCP),
        description="Where clients of tunnels dial it over TCP, host:port, port 0 for any.",
    )
    public_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        max_length=16,
        description="Where clients of tunnels reach it, by comma, best first: tcp://host:port"
        " and http://host:port; the bound addresses when empty.",
    )
    signalling: str = Field(
        default=on_loopback(MeshPort.SIGNALLING_INTERNAL),
        description="Signalling's internal address to dial, host:port or unix:/path.",
    )
    workers_bind: str = Field(
        default=on_loopback(MeshPort.RELAY_WORKERS),
        description="Where workers dial it with the connections of channels: unix:/path or"
        " host:port.",
    )
    workers_advertise: str = Field(
        default="",
        description="The address that workers are told to dial; the bound one when empty.",
    )
    sessions: int = Field(default=256, ge=1, le=65536, description="Most sessions that it takes.")
    channels_per_session: int = Field(
        default=256,
        ge=1,
        le=16384,
        description="Most channels that one session may have open; others wait for one to end.",
    )
    tunnel_pump: PumpChoice = Field(
        default=PumpChoice.AUTO,
        validation_alias="FAIRLEAD_TUNNEL_PUMP",
        description="What runs tunnels, as in the command line: auto, the native pump where it is"
        " installed, or python, the event loop.",
    )
    seal_secret_file: Path | None = Field(
        default=None,
        description="File with the secret that clients seal offers with, 64 hexadecimal digits;"
        " without it sealed offers are refused.",
    )

    targets: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Hosts beside the sandbox that sessions may reach through it, by comma: name,"
        " *.name, address or network, each with :port when not 80 and 443; none when empty.",
    )

    @field_validator("targets", "public_urls", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(each.strip() for each in value.split(",") if each.strip())

    @field_validator("targets")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            parse_allow_list(value)
        except FairleadError as error:
            raise ValueError(error.message) from None
        return value

    def seal_secret(self) -> bytes:
        """Read the secret of seals, or return nothing when no file is set.

        Raises SecretFileUnusable.
        """
        variable = "FAIRLEAD_RELAY_SEAL_SECRET_FILE"
        if self.seal_secret_file is None:
            return b""
        text = read_secret(self.seal_secret_file, variable)
        if not _SECRET.fullmatch(text):
            raise SecretFileUnusable(variable)
        return bytes.fromhex(text)
