"""Routes that tell of the mesh: hosts, gateways, and whether this room serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal, Protocol

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from chassis.errors import FairleadError, Unavailable
from signalling.caller import current_tenant
from signalling.gateway import Gateway
from signalling.host import Host
from signalling.problems import problem_documents
from signalling.rest_types import Answer
from signalling.sandbox_bodies import LimitsAnswer, WallAnswer

Check = Callable[[], Awaitable[None]]
"""Raises FairleadError when what it checks is away."""


class NotReady(Unavailable):
    """Something that this room needs is away, or it is about to stop."""

    def __init__(self, failing: Sequence[str]) -> None:
        super().__init__(
            f"Not ready: {', '.join(failing)}.",
            reason="not_ready",
            remedy="Look at what is failing; it is checked again with every request.",
            fields={"failing": ",".join(failing)},
        )


class Hosts(Protocol):
    """The hosts that are registered now."""

    def all(self) -> Sequence[Host]:
        """Return them, by id."""
        ...


class Gateways(Protocol):
    """The gateways that are registered now."""

    async def gateways(self) -> Sequence[Gateway]:
        """Return them, by id."""
        ...


class HostAnswer(Answer):
    """A provisioner and a worker that share a file system."""

    host_id: str
    isolation: list[str] = Field(
        description="Isolations that the caller can have there, best first."
    )
    sandboxes: int
    capacity: int = Field(description="Most sandboxes; 0 when it names no bound.")
    draining: bool
    profiles: list[str] = Field(default=[], description="Profiles of sandboxes that it knows.")
    walls: dict[str, list[WallAnswer]] = Field(
        default={}, description="Per isolation, the walls that its sandboxes have there."
    )
    limits: dict[str, LimitsAnswer] = Field(
        default={},
        description="Per profile, the limits that its sandboxes have there, which are also the most"
        " that may be asked for; 0 is none.",
    )


class HostList(BaseModel):
    """The hosts, by id."""

    hosts: list[HostAnswer]


class GatewayAnswer(Answer):
    """One connected relay-gateway."""

    gateway_id: str
    connected_at: datetime
    sessions: int
    channels: int
    capacity: int = Field(description="Most sessions; 0 when it names no bound.")
    draining: bool
    can_trickle: bool = Field(description="Whether it does mode trickle, and restarts.")
    can_tunnel: bool = Field(description="Whether it does mode tunnel.")


class GatewayList(BaseModel):
    """The gateways, by id."""

    gateways: list[GatewayAnswer]


class Health(BaseModel):
    """The process lives."""

    status: Literal["ok"]


def mesh_router(hosts: Hosts, gateways: Gateways) -> APIRouter:
    """Return the lists of hosts and gateways."""
    router = APIRouter(prefix="/v1", tags=["mesh"])

    @router.get("/hosts", response_model=HostList, responses=problem_documents())
    async def list_hosts() -> HostList:
        """List the hosts that are registered."""
        tenant = current_tenant()
        return HostList(
            hosts=[
                HostAnswer.model_validate(replace(host, isolation=host.offered_to(tenant)))
                for host in hosts.all()
            ]
        )

    @router.get("/gateways", response_model=GatewayList, responses=problem_documents())
    async def list_gateways() -> GatewayList:
        """List the gateways that are connected."""
        found = await gateways.gateways()
        return GatewayList(gateways=[GatewayAnswer.model_validate(item) for item in found])

    return router


def health_router(checks: Mapping[str, Check]) -> APIRouter:
    """Return the probes, which need no key."""
    router = APIRouter(tags=["health"])
    documents: dict[int | str, dict[str, object]] = {503: problem_documents()[503]}

    @router.get("/healthz", response_model=Health)
    async def healthz() -> Health:
        """Answer as long as the process lives."""
        return Health(status="ok")

    @router.get("/readyz", response_model=Health, responses=documents)
    async def readyz(response: Response) -> Health:
        """Answer 200 when all that requests need is there; else 503 that names what is not."""
        failing = []
        for name, check in checks.items():
            try:
                await check()
            except FairleadError:
                failing.append(name)
        if failing:
            raise NotReady(failing)
        response.headers["Cache-Control"] = "no-store"
        return Health(status="ok")

    return router
