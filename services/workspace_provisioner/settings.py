"""The settings of the workspace-provisioner."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from chassis.ids import derived_id
from chassis.own_addresses import is_own
from chassis.settings import RoomSettings, room_config
from workspace_provisioner.egress import EgressRules
from workspace_provisioner.errors import SecretRequired


def _host_id() -> str:
    return derived_id("hst", socket.gethostname(), key=b"host")


def _state() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(state) / "fairlead"


def _host_root() -> Path:
    return _state() / "host"


def _bind() -> str:
    return f"unix:{_state() / 'workspace.sock'}"


class Settings(RoomSettings):
    """What the environment says."""

    model_config = room_config("FAIRLEAD_WORKSPACE_")

    bind: str = Field(
        default_factory=_bind,
        description="Where it serves gRPC: unix:/path, or host:port with FAIRLEAD_SECRET_FILE; by"
        " default $XDG_STATE_HOME/fairlead/workspace.sock.",
    )
    advertise: str = Field(
        default="",
        description="Address that the other rooms dial; the bound one when empty.",
    )
    host_id: str = Field(
        default_factory=_host_id,
        validation_alias="FAIRLEAD_HOST_ID",
        pattern=r"^hst_[a-z2-7]{26}$",
        description="Id that a host's provisioner and worker share; by default from the host name.",
    )
    host_root: Path = Field(
        default_factory=_host_root,
        validation_alias="FAIRLEAD_HOST_ROOT",
        description="Directory of a host; by default $XDG_STATE_HOME/fairlead/host.",
    )
    capacity: int = Field(
        default=256, ge=1, le=100_000, description="Workspaces that the host holds at most."
    )
    tenant_share: float = Field(
        default=1.0, gt=0, le=1, description="Part of the capacity that one tenant may hold."
    )
    builds: int = Field(
        default=8,
        ge=1,
        le=256,
        description="Checkouts that run at the same time, and builds of one tenant; more wait.",
    )
    uploads: int = Field(
        default=16,
        ge=1,
        le=256,
        description="Uploads that run at the same time, half of them for one tenant; more wait.",
    )
    max_pack_bytes: int = Field(
        default=2 * 1024**3, ge=1, description="Largest pack of an upload, in bytes."
    )
    max_inflated_bytes: int = Field(
        default=8 * 1024**3,
        ge=1,
        description="Most bytes that a pack's objects, or one tree's files, may have in all.",
    )
    max_object_bytes: int = Field(
        default=512 * 1024**2, ge=1, description="Largest object of a pack, in bytes."
    )
    max_paths: int = Field(
        default=500_000, ge=1, description="Most files and directories of one tree."
    )
    idle_seconds: float = Field(
        default=30, gt=0, le=3600, description="How long an upload may send nothing."
    )
    git_seconds: float = Field(
        default=300, gt=0, le=3600, description="How long one git process may run."
    )
    reserve_bytes: int = Field(
        default=256 * 1024**2,
        ge=0,
        description="Free bytes on the disk below which the host takes nothing new.",
    )
    origin_seconds: float = Field(
        default=5,
        gt=0,
        le=300,
        description="How long a launch waits for an upstream; then it gets the client's commit.",
    )
    origin_allow: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Hosts and networks with private addresses that may be fetched from, by comma;"
        " this host's own addresses have to be listed as such.",
    )
    credentials: Path | None = Field(
        default=None,
        description="Directory with <tenant>/git-credentials, ssh_key and known_hosts.",
    )

    def rpc_secret(self) -> str | None:
        """Return the secret that callers must show; raises SecretRequired where one is needed."""
        secret = self.secret()
        if secret is None and not self.bind.startswith("unix:"):
            raise SecretRequired
        return secret

    @field_validator("origin_allow", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(each.strip() for each in value.split(",") if each.strip())

    @field_validator("origin_allow")
    @classmethod
    def _allowable(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        EgressRules(allowed=entries, is_own=is_own)
        return entries

    @field_validator("host_root")
    @classmethod
    def _usable_by_git(cls, path: Path) -> Path:
        """Git separates directories by colons and lines, so the path may hold neither."""
        if any(each in str(path) for each in ':\n"'):
            raise ValueError("must not hold a colon, a quotation mark or a line end")
        return path.absolute()
