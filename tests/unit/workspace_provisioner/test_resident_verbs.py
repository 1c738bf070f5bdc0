"""A command holds its workspace on an SSH host: the lease is renewed again and again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from chassis.errors import FairleadError, Unavailable
from tests.fakes.provisioner_cases import Room, source
from tests.fakes.virtual_time import VirtualClock, run
from workspace_provisioner.errors import WorkspaceNotFound
from workspace_provisioner.resident.calls import Call
from workspace_provisioner.resident.verbs import Verbs
from workspace_provisioner.resident.wire_forms import TENANT
from workspace_provisioner.sources import DEFAULT_LEASE
from workspace_provisioner.workspaces import State, Workspace


class Silent:
    """A client to whom nothing is sent."""

    async def send(self, frame: bytes) -> None:
        raise AssertionError("the verb answers by what it returns")


class Leased:
    """One workspace, whose lease cannot be renewed for a while."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.errors: list[FairleadError] = []
        self.asked = 0

    async def get(self, tenant: str, workspace_id: str) -> Workspace:
        return self.workspace

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta) -> Workspace:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        self.workspace = replace(self.workspace, expires_at=VirtualClock().now() + lease)
        return self.workspace


async def held_for(
    seconds: float, monkeypatch: pytest.MonkeyPatch, *errors: FairleadError
) -> tuple[Leased, float]:
    """Run a command for a while; gives the least seconds that the lease had left meanwhile."""
    room = Room()
    await room.upload(source(tenant=TENANT))
    made = await room.make(tenant=TENANT)
    clock = VirtualClock()
    leased = Leased(replace(made, state=State.PROVISIONED, expires_at=clock.now() + DEFAULT_LEASE))
    leased.errors = list(errors)
    left: list[float] = []

    async def command(*_: object, **__: object) -> dict[str, object]:
        for _second in range(int(seconds)):
            await asyncio.sleep(1.0)
            left.append((leased.workspace.expires_at - clock.now()).total_seconds())
        return {"reason": "exited", "code": 0}

    monkeypatch.setattr("workspace_provisioner.resident.verbs.run_command", command)
    verbs = Verbs(
        workspaces=leased,  # type: ignore[arg-type]
        snapshots=room.importer,
        trees=Path("/srv/trees"),
        host_id="hst_x",
        clock=clock,
    )
    fields: dict[str, object] = {"workspace_id": made.workspace_id, "arguments": ["make"]}
    await verbs.run(Call(number=1, fields=fields, payload=b"", sink=Silent()))
    return leased, min(left)


def test_a_renewal_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    full = [Unavailable("full", reason="storage_unavailable") for _ in range(3)]
    leased, least = run(held_for(2 * 3600, monkeypatch, *full))
    assert leased.errors == []
    assert least > DEFAULT_LEASE.total_seconds() / 4


def test_a_workspace_that_is_gone_is_not_renewed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    leased, _ = run(held_for(2 * 3600, monkeypatch, WorkspaceNotFound("wsp_x")))
    assert leased.asked == 1
