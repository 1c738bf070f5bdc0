"""Builds take turns: one tenant's origins hold up nobody else, and what is warm waits for none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from tests.fakes.provisioner_cases import LEASE, Room, source
from tests.fakes.registry import StepByStep
from tests.fakes.virtual_time import run, settle
from workspace_provisioner.origins import checked_upstream, with_origins
from workspace_provisioner.ports import CheckoutPlan
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import Freshness, State, Workspace

BUILDS = 4
TENANTS = ("ada", "bob", "eve")


class SilentOrigins:
    """Origins that answer when the gate is opened; `asked` counts those who wait."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = 0

    async def resolve(self, source: Source) -> tuple[Source, Freshness | None]:
        self.asked += 1
        await self.gate.wait()
        return source, None


def from_trunk(tenant: str) -> Source:
    upstream = checked_upstream("https://silent.example/project.git", "main", None)
    return with_origins(source(tenant=tenant), upstream=upstream, submodules=False, origin="")


async def opened_room(*, upstreams: SilentOrigins | None = None) -> Room:
    room = Room(capacity=100, tenant_capacity=100, upstreams=upstreams or SilentOrigins())
    for tenant in TENANTS:
        await room.upload(source(tenant=tenant))
    return room


async def soon(making: Awaitable[object]) -> None:
    """Wait for what must not wait for the gate."""
    async with asyncio.timeout(3600):
        assert isinstance(await making, Workspace)


def test_launches_that_wait_for_an_origin_hold_up_no_other_tenant() -> None:
    async def work() -> None:
        origins = SilentOrigins()
        room = await opened_room(upstreams=origins)
        waiting = [
            asyncio.ensure_future(room.ask(from_trunk("eve"), f"k{number}"))
            for number in range(3 * BUILDS)
        ]
        await settle()
        assert origins.asked == BUILDS
        await soon(room.ask(source(tenant="ada")))
        origins.gate.set()
        for each in waiting:
            await soon(each)
        assert origins.asked == 3 * BUILDS

    run(work())


def test_what_is_warm_waits_for_no_build_of_its_own_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def prepared(warm: StepByStep, requested: Workspace, plan: CheckoutPlan) -> Workspace:
        return replace(requested, state=State.PROVISIONED)

    monkeypatch.setattr(StepByStep, "take", prepared)

    async def work() -> None:
        origins = SilentOrigins()
        room = await opened_room(upstreams=origins)
        waiting = [
            asyncio.ensure_future(room.ask(from_trunk("eve"), f"k{number}"))
            for number in range(3 * BUILDS)
        ]
        await settle()
        asked = room.provisioner.materialize(
            idempotency_key="warm",
            source=source(tenant="eve"),
            branch="",
            lease=LEASE,
            overlay=True,
        )
        await soon(asked)
        for each in waiting:
            each.cancel()
        await room.provisioner.close()

    run(work())


def test_a_host_writes_so_many_trees_at_once_whoever_wants_them() -> None:
    async def work() -> None:
        room = await opened_room()
        room.trees.gate.clear()
        making = [
            asyncio.ensure_future(room.ask(source(tenant=tenant), f"k{number}"))
            for tenant in TENANTS
            for number in range(BUILDS)
        ]
        await settle()
        assert len(room.trees.builds) == BUILDS
        room.trees.gate.set()
        for each in making:
            await soon(each)

    run(work())
