"""The worker's settings; names start with FAIRLEAD_SANDBOX_."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from chassis.ids import derived_id
from chassis.mesh_ports import MeshPort, on_loopback, ports_of
from chassis.public_addresses import Network
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
        default=on_loopback(MeshPort.SANDBOX),
        description="Where gRPC is served: unix:/path or host:port.",
    )
    advertise: str = Field(
        default="", description="Where others dial it; the address that was bound when empty."
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
    profiles: Path | None = Field(
        default=None,
        description="TOML file of named profiles, one table each (see docs/operating.md); only"
        " `default` without it.",
    )
    most_sandboxes: int = Field(
        default=256, ge=1, le=100_000, description="Most sandboxes at a time."
    )
    pool_size: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="Walled sandboxes that are kept ready for each active tenant, and for the next"
        " one; about 2 MB each. 0 keeps none.",
    )
    uid_first: int = Field(
        default=0x7000_0000,
        ge=1000,
        le=2**31,
        description="First of the uids that walled sandboxes get, each one its own, where the"
        " worker is root; nobody else may have them. By default those of systemd's list that are"
        " nobody's.",
    )
    uid_count: int = Field(
        default=65_536,
        ge=2,
        le=2**30,
        description="How many uids there are from the first on; the last one is that of sandboxes"
        " of isolation `process`.",
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
        description="Most output that is kept per execution; then the oldest goes, or it waits.",
    )
    journals_sandbox_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1024 * 1024,
        description="Most output that is kept of all executions of one sandbox, and at most its"
        " `disk_bytes`; then the oldest goes, of ended executions first.",
    )
    journals_tenant_bytes: int = Field(
        default=1024 * 1024 * 1024,
        ge=1024 * 1024,
        description="Most output that is kept of all sandboxes of one tenant.",
    )
    journals_host_bytes: int = Field(
        default=4 * 1024 * 1024 * 1024,
        ge=1024 * 1024,
        description="Most output that is kept of all tenants; the tenant that holds most loses"
        " its oldest.",
    )
    journals_reserve_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=0,
        description="Free space on the disk below which kept output goes, too; at most a"
        " twentieth of the disk.",
    )
    retention_seconds: float = Field(
        default=3600, ge=0, description="How long an execution is kept after its end."
    )
    expose_host_to_one_tenant: bool = Field(
        default=False,
        description="Whether sandboxes of isolation `process` are offered beside walled ones: what"
        " runs there sees this host's files, processes and network. One tenant gets them, the first"
        " who asks.",
    )
    walled_host_network: bool = Field(
        default=False,
        description="Whether a walled sandbox may ask for the network `host`: it then reaches"
        " whatever the host does, its loopback interface and the mesh included.",
    )
    egress_allow: Annotated[tuple[Network, ...], NoDecode] = Field(
        default=(),
        description="Networks with private addresses that sandboxes may dial through their proxy,"
        " by comma, where their allow list names them; the mesh's own ports stay shut there. This"
        " host's own addresses have to be listed one by one.",
    )
    mesh_addresses: str = Field(
        default="",
        description="Where else than on its default ports the mesh listens, host:port or URLs by"
        " comma: these ports stay shut for sandboxes.",
    )
    egress_connections: int = Field(
        default=128,
        ge=1,
        le=10_000,
        description="Most connections of one sandbox through its proxy at a time; more wait.",
    )
    tombstone_seconds: float = Field(
        default=24 * 3600,
        ge=60,
        description="How long it is remembered that a sandbox was released.",
    )

    @property
    def walled_uids(self) -> int:
        """How many of the uids are walled sandboxes'."""
        return self.uid_count - 1

    @property
    def process_uid(self) -> int:
        """The last one, as which a worker that is root runs sandboxes without walls."""
        return self.uid_first + self.uid_count - 1

    @field_validator("egress_allow", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(ip_network(each.strip()) for each in value.split(",") if each.strip())

    @field_validator("mesh_addresses")
    @classmethod
    def _with_ports(cls, value: str) -> str:
        ports_of(*value.split(","))
        return value

    def rpc_secret(self) -> str | None:
        """Return the secret that callers must show; raises SecretRequired where one is needed."""
        secret = self.secret()
        if secret is None and not self.bind.startswith("unix:"):
            raise SecretRequired
        return secret
