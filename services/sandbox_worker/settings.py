"""The worker's settings; names start with FAIRLEAD_SANDBOX_."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pydantic import Field

from chassis.ids import derived_id
from chassis.settings import RoomSettings, room_config
from sandbox_worker.errors import SecretRequired


def default_host_root() -> Path:
    """Return the host's volume below the user's state directory (XDG base directories)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fairlead" / "host"


def default_host_id() -> str:
    """Return the id that this machine's name gives."""
    return derived_id("hst", socket.gethostname(), key=b"host")


class Settings(RoomSettings):
    """What the sandbox-worker reads from its environment."""

    model_config = room_config("FAIRLEAD_SANDBOX_")

    bind: str = Field(
        default="127.0.0.1:7330",
        description="Where gRPC is served: unix:/path or host:port.",
    )
    advertise: str = Field(
        default="", description="Where others dial it; the address that was bound when empty."
    )
    door_bind: str = Field(
        default="127.0.0.1:7331",
        description="Where the port door listens: unix:/path or host:port.",
    )
    door_advertise: str = Field(
        default="", description="Where others dial the door; the bound address when empty."
    )
    host_id: str = Field(
        default_factory=default_host_id,
        validation_alias="FAIRLEAD_HOST_ID",
        pattern=r"^hst_[a-z2-7]{26}$",
        description="Id of the host that this worker and its provisioner form; by default from"
        " the host name.",
    )
    host_root: Path = Field(
        default_factory=default_host_root,
        validation_alias="FAIRLEAD_HOST_ROOT",
        description="The host's volume: trees/ of the provisioner, sandboxes/ of the worker; by"
        " default $XDG_STATE_HOME/fairlead/host.",
    )
    path: str = Field(
        default="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        description="PATH inside sandboxes.",
    )
    most_sandboxes: int = Field(
        default=256, ge=1, le=100_000, description="Most sandboxes at a time."
    )
    most_executions: int = Field(
        default=256, ge=1, le=100_000, description="Most executions that run in one sandbox."
    )
    most_kept_executions: int = Field(
        default=1024,
        ge=1,
        le=1_000_000,
        description="Most ended executions that are kept per sandbox; the oldest goes first.",
    )
    journal_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024 * 1024,
        description="Most output that is kept per execution; the oldest goes first.",
    )
    retention_seconds: float = Field(
        default=3600, ge=0, description="How long an execution is kept after its end."
    )
    tombstone_seconds: float = Field(
        default=24 * 3600,
        ge=60,
        description="How long it is remembered that a sandbox was released.",
    )

    def rpc_secret(self) -> str | None:
        """Return the secret that callers must show; raises SecretRequired where one is needed."""
        secret = self.secret()
        if secret is None and not self.bind.startswith("unix:"):
            raise SecretRequired
        return secret
