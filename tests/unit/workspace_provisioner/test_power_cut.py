"""What a power cut leaves: no workspace that is half there, no claim without a record."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fakes.checkouts import MemoryTrees
from tests.fakes.clock import FakeClock
from tests.fakes.disk import PowerCutDisk
from tests.fakes.provisioned import NOW, provisioned
from tests.fakes.registry import MemoryUnsaved, StepByStep, nothing
from workspace_provisioner.build_runs import BuildRuns
from workspace_provisioner.disk.claim_files import ClaimFiles
from workspace_provisioner.disk.host_locks import HostLocks
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.ledger_files import LedgerFiles
from workspace_provisioner.disk.record_logs import RecordLogs
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import StorageUnavailable
from workspace_provisioner.leases import Leases
from workspace_provisioner.names import Claim, ClaimKind, claims_of
from workspace_provisioner.workspace_errors import WorkspaceExists
from workspace_provisioner.workspaces import Freshness, Rung, State, Workspace

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.parametrize("names_stay", [False, True], ids=["names lost", "names stay"]),
]


def workspace(letter: str = "a", **changed: object) -> Workspace:
    made = provisioned(
        letter,
        branch="work",
        has_submodules=True,
        request="request",
        name=f"name-{letter}",
        claims_branch=False,
        rung=Rung.OVERLAY_DELTA,
        freshness=Freshness("main", NOW, fallback=True, reason="origin_timeout"),
        lfs_pointers=3,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


@dataclass
class Machine:
    ledger: LedgerFiles
    claims: ClaimFiles
    leases: Leases


class Host:
    """A host root that goes through power cuts."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self.layout.make()
        self.disk = PowerCutDisk(root)
        self.trees = MemoryTrees()

    @asynccontextmanager
    async def up(self, boot: str) -> AsyncIterator[Machine]:
        with ThreadPoolExecutor(max_workers=2) as executor:
            files = FileWork(executor=executor)
            locks = HostLocks(path=self.layout.root / ".locks")
            logs = RecordLogs(
                directory=self.layout.record_logs,
                disk=self.disk,
                owners=Owners(self.layout.owners, secrets.token_hex(8)),
                boot=boot,
            )
            ledger = LedgerFiles(
                directory=self.layout.records, logs=logs, disk=self.disk, files=files, boot=boot
            )
            await ledger.load()
            claims = ClaimFiles(
                layout=self.layout, disk=self.disk, files=files, ledger=ledger, locks=locks
            )
            leases = Leases(
                trees=self.trees,
                ledger=ledger,
                claims=claims,
                warm=StepByStep(ledger=ledger, trees=self.trees, claims=claims),
                unsaved=MemoryUnsaved(),
                builds=BuildRuns(locks=locks, most=4),
                locks=locks,
                clock=FakeClock(),
                on_discard=lambda: None,
            )
            await leases.reconcile()
            yield Machine(ledger, claims, leases)
            locks.close()
            logs.close()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


async def make(host: Host, machine: Machine, made: Workspace) -> None:
    await machine.claims.take(made.workspace_id, claims_of(made))
    host.trees.placed.add(made.workspace_id)
    await machine.ledger.put(made)


async def test_a_record_that_was_answered_is_there_with_all_it_said(
    host: Host, names_stay: bool
) -> None:
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
        await machine.ledger.flush(nothing)
    host.disk.cut(names_stay=names_stay)
    async with host.up("boot 2") as machine:
        assert machine.ledger.get(workspace().workspace_id) == workspace()
        assert list(machine.ledger.all()) == [workspace()]
        assert machine.ledger.provisioned("ada") == 1
        # Its name was not flushed, but the record says it.
        with pytest.raises(WorkspaceExists):
            await machine.claims.take("wsp_" + "b" * 26, claims_of(workspace()))


async def test_files_that_were_not_flushed_are_not_served(host: Host, names_stay: bool) -> None:
    kept, lost = workspace("a"), workspace("b")
    async with host.up("boot 1") as machine:
        await make(host, machine, kept)
        await machine.ledger.flush(nothing)
        await make(host, machine, lost)
    host.disk.cut(names_stay=names_stay)
    async with host.up("boot 2") as machine:
        assert list(machine.ledger.all()) == [kept]
        assert host.trees.placed == {kept.workspace_id}
        await make(host, machine, replace(lost, workspace_id="wsp_" + "d" * 26))
        # A renewed record says no less about the files than the first one.
        await machine.leases.renew("ada", kept.workspace_id, timedelta(hours=2))
    host.disk.cut(names_stay=names_stay)
    async with host.up("boot 3") as machine:
        assert [each.workspace_id for each in machine.ledger.all()] == [kept.workspace_id]


async def test_a_restart_without_a_cut_keeps_what_was_not_flushed(
    host: Host, names_stay: bool
) -> None:
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
    async with host.up("boot 1") as machine:
        assert list(machine.ledger.all()) == [workspace()]


async def test_a_claim_without_a_record_is_released(host: Host, names_stay: bool) -> None:
    async with host.up("boot 1") as machine:
        await machine.claims.take(workspace().workspace_id, claims_of(workspace()))
        host.disk.sync_all(host.layout.root)
    host.disk.cut(names_stay=names_stay)
    assert len(list(host.layout.names.rglob("*/names/*"))) == 1
    async with host.up("boot 2") as machine:
        assert not list(host.layout.names.rglob("*/names/*"))
        await machine.claims.take("wsp_" + "b" * 26, claims_of(workspace()))


async def test_a_record_without_files_is_dropped(host: Host, names_stay: bool) -> None:
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
        await machine.ledger.flush(nothing)
    host.disk.cut(names_stay=names_stay)
    host.trees.placed.clear()
    async with host.up("boot 2") as machine:
        assert machine.ledger.get(workspace().workspace_id) is None
        await machine.claims.take("wsp_" + "b" * 26, claims_of(workspace()))


async def test_a_release_that_was_answered_stays(host: Host, names_stay: bool) -> None:
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
        await machine.ledger.flush(nothing)
        assert await machine.leases.release(
            "ada", workspace().workspace_id, by_key=False, checked=False
        )
    host.disk.cut(names_stay=names_stay)
    host.trees.placed.add(workspace().workspace_id)  # the move to the trash was not flushed
    async with host.up("boot 2") as machine:
        found = machine.ledger.get(workspace().workspace_id)
        assert found is not None
        assert found.state is State.RELEASED
        assert not host.trees.placed
        await machine.claims.take("wsp_" + "b" * 26, claims_of(workspace()))


async def test_after_a_rename_there_is_one_name(host: Host, names_stay: bool) -> None:
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
        await machine.ledger.flush(nothing)
        await machine.leases.rename("ada", workspace().workspace_id, "other")
    host.disk.cut(names_stay=names_stay)
    async with host.up("boot 2") as machine:
        found = machine.ledger.get(workspace().workspace_id)
        assert found is not None
        assert found.name == "other"
        old, new = (Claim(found.key, ClaimKind.NAME, name) for name in (workspace().name, "other"))
        await machine.claims.take("wsp_" + "b" * 26, [old])
        with pytest.raises(WorkspaceExists):
            await machine.claims.take("wsp_" + "b" * 26, [new])


async def test_half_a_record_is_no_workspace(host: Host, names_stay: bool) -> None:
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
    path = host.layout.records / f"{workspace().workspace_id}.json"
    for broken in (b"", path.read_bytes()[:100], b"\xff", bytes(100)):
        path.write_bytes(broken)
        host.trees.placed.add(workspace().workspace_id)
        async with host.up("boot 1") as machine:
            assert machine.ledger.get(workspace().workspace_id) is None
            assert not list(machine.ledger.all())
            assert not host.trees.placed


async def test_a_record_of_another_form_is_not_served_and_keeps_what_it_has(
    host: Host, names_stay: bool
) -> None:
    """Another version wrote it: its workspace may hold somebody's work."""
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
        await machine.ledger.flush(nothing)
    host.disk.cut(names_stay=names_stay)
    path = host.layout.records / f"{workspace().workspace_id}.json"
    content = path.read_bytes()
    known = json.loads(content)
    others: list[object] = [[], {"workspace_id": 3}, {**known, "state": "x"}]
    for other in (*others, {**known, "created_at": "x"}):
        path.write_text(json.dumps(other))
        async with host.up("boot 2") as machine:
            with pytest.raises(StorageUnavailable):
                machine.ledger.get(workspace().workspace_id)
            with pytest.raises(StorageUnavailable):
                await machine.leases.release(
                    "ada", workspace().workspace_id, by_key=True, checked=False
                )
            assert not list(machine.ledger.all())
            await machine.leases.take_away_strays()
            assert host.trees.placed == {workspace().workspace_id}
            assert path.exists()
    path.write_bytes(content)
    async with host.up("boot 2") as machine:
        assert list(machine.ledger.all()) == [workspace()]


async def test_a_record_of_another_form_keeps_its_claims(host: Host, names_stay: bool) -> None:
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
        host.disk.sync_all(host.layout.root)
    host.disk.cut(names_stay=names_stay)
    (host.layout.records / f"{workspace().workspace_id}.json").write_text("{}")
    async with host.up("boot 1") as machine:
        with pytest.raises(WorkspaceExists):
            await machine.claims.take("wsp_" + "b" * 26, claims_of(workspace()))


async def test_a_record_without_a_revision_is_an_old_one(host: Host, names_stay: bool) -> None:
    async with host.up("boot 1") as machine:
        await make(host, machine, workspace())
        await machine.ledger.flush(nothing)
    host.disk.cut(names_stay=names_stay)
    path = host.layout.records / f"{workspace().workspace_id}.json"
    record = json.loads(path.read_bytes())
    del record["revision"]
    path.write_text(json.dumps(record))
    async with host.up("boot 2") as machine:
        assert list(machine.ledger.all()) == [workspace()]
        assert host.trees.placed == {workspace().workspace_id}
