"""What the sandbox routes take and answer: the same fields as the protos, in JSON."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field, WithJsonSchema

from fairlead_limits import table
from signalling.rest_types import Answer, Body, LeaseSeconds
from signalling.sandbox import Limits, NetworkMode, NetworkPolicy, SandboxOrder, SandboxState


def _limit(name: str) -> WithJsonSchema:
    kind = "number" if name == "wall_time" else "integer"
    return WithJsonSchema({"type": kind, **table.SANDBOX_LIMITS[name].schema})


class LimitsBody(Body):
    """Limits that are tighter than the profile's; 0 is the profile's."""

    memory_bytes: Annotated[int, _limit("memory_bytes")] = 0
    processes: Annotated[int, _limit("processes")] = 0
    open_files: Annotated[int, _limit("open_files")] = 0
    file_bytes: Annotated[int, _limit("file_bytes")] = 0
    cpu_milli: Annotated[int, _limit("cpu_milli")] = Field(
        default=0, description="Thousandths of a processor."
    )
    disk_bytes: Annotated[int, _limit("disk_bytes")] = 0
    wall_time: Annotated[
        float, Field(ge=-1e9, le=1e9, allow_inf_nan=False), _limit("wall_time")
    ] = Field(default=0, description="Seconds that each execution may run.")
    output_bytes: Annotated[int, _limit("output_bytes")] = 0

    def value(self) -> Limits:
        """Return the domain's value."""
        return Limits(**self.model_dump())


class NetworkBody(Body):
    """What of the network it reaches."""

    mode: NetworkMode = Field(strict=False)
    allow: list[str] = Field(
        default=[],
        description="With `egress`: `name`, `*.name`, `*`, an address or a network, each with"
        " `:port` or for 80 and 443.",
    )

    def value(self) -> NetworkPolicy:
        """Return the domain's value."""
        return NetworkPolicy(self.mode, tuple(self.allow))


class SandboxBody(Body):
    """What sandbox to make; what is empty or null is the profile's."""

    isolation: str = Field(default="", description="Isolation to have; refused where it is not.")
    profile: str = Field(default="", description="Profile to make it with; `default` when empty.")
    limits: LimitsBody | None = None
    network: NetworkBody | None = None
    lease: LeaseSeconds | None = Field(default=None, description="Seconds; the profile's if null.")
    workspace_id: str = Field(default="", description="Workspace to bind; none when empty.")
    host_id: str = Field(default="", description="Host to be on; any when empty.")
    idempotency_key: str | None = Field(default=None, description="As the header of that name.")

    def value(self, key: str) -> SandboxOrder:
        """Return the domain's value."""
        return SandboxOrder(
            key=key,
            isolation=self.isolation,
            profile=self.profile,
            limits=(self.limits or LimitsBody()).value(),
            network=None if self.network is None else self.network.value(),
            lease=None if self.lease is None else timedelta(seconds=self.lease),
            workspace_id=self.workspace_id,
            host_id=self.host_id,
        )


class LimitsAnswer(Answer):
    """Limits that are held; 0 is none."""

    memory_bytes: int
    processes: int
    open_files: int
    file_bytes: int
    cpu_milli: int
    disk_bytes: int
    wall_time: float
    output_bytes: int


class NetworkAnswer(Answer):
    """What of the network it reaches."""

    mode: NetworkMode
    allow: list[str]


class DecisionAnswer(Answer):
    """What a sandbox's proxy decided about one connection."""

    at: datetime
    host: str = Field(description="Empty when the request could not be read.")
    port: int
    address: str = Field(description="Address that was dialled or judged; else empty.")
    reason: str = Field(description="`allowed`, or why not; `revoked` for one that was cut.")


class NetworkViewAnswer(Answer):
    """What a sandbox reaches, and what it lately tried to reach, oldest first."""

    policy: NetworkAnswer
    decisions: list[DecisionAnswer]


class WallAnswer(Answer):
    """One thing that holds a sandbox in."""

    name: str
    stands: bool
    reason: str = Field(description="Why it is missing; empty when it stands.")


class FenceAnswer(Answer):
    """Orders the holders of a sandbox."""

    epoch: int
    counter: int


class SandboxAnswer(Answer):
    """An isolated place to execute in, with its walls and a lease."""

    sandbox_id: str
    state: SandboxState
    isolation: str
    profile: str
    limits: LimitsAnswer
    network: NetworkAnswer | None
    walls: list[WallAnswer]
    host_id: str
    workspace_id: str = Field(description="Empty when it is bound to none.")
    launch_id: str = Field(description="Launch that it belongs to; empty for one of its own.")
    fence: FenceAnswer
    created_at: datetime
    expires_at: datetime


class SandboxPage(Answer):
    """A page of sandboxes, by id."""

    sandboxes: list[SandboxAnswer]
    next_page_token: str = Field(description="Empty on the last page.")
    unanswered_hosts: list[str] = Field(
        default=[], description="Hosts that did not answer: what they hold is not in the page."
    )
