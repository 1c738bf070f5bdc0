"""What takes long has threads of its own: warm takes wait for none of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.git_client import GitClient
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, chunked, open_layered_room
from tests.fakes.store_room import StoreRoom, open_store_room
from workspace_provisioner.errors import PackInvalid
from workspace_provisioner.git import content
from workspace_provisioner.sources import Commits, Source
from workspace_provisioner.trees.workspace_copies import WorkspaceCopies
from workspace_provisioner.workspaces import Rung

pytestmark = pytest.mark.asyncio

MANY = 8
WARM_THREADS = "file-tree"


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("file", b"content\n")
    found.commit()
    return found


@pytest.fixture
def gate() -> threading.Event:
    """Blocks the threads of the slow work until it is set."""
    return threading.Event()


class Blocked:
    """Work that begins and then waits for the gate."""

    def __init__(self, gate: threading.Event) -> None:
        self.begun = asyncio.Event()
        self.thread = ""
        self._gate = gate
        self._loop = asyncio.get_running_loop()

    def __call__(self, *_: object, **__: object) -> None:
        self.thread = threading.current_thread().name.rpartition("_")[0]
        self._loop.call_soon_threadsafe(self.begun.set)
        self._gate.wait()


async def take_warm(room: ProvisionerRoom, client: GitClient, gate: threading.Event) -> None:
    """Take what is prepared, which the work that is blocked must not hold up."""
    try:
        async with asyncio.timeout(60):
            made, _ = await room.make("warm", client.source(), "branch", overlay=True)
    finally:
        gate.set()
    assert made.rung is Rung.OVERLAY


async def test_a_warm_take_waits_for_no_fork(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    async with open_layered_room(tmp_path / "host") as room:
        await room.upload(client)
        await room.preparations.finished()
        source, _ = await room.make("source", client.source())
        blocked = Blocked(gate)
        monkeypatch.setattr(WorkspaceCopies, "_copy", blocked)
        forks = [
            asyncio.ensure_future(
                room.provisioner.fork(
                    source.tenant,
                    source.workspace_id,
                    idempotency_key=f"fork {number}",
                    name="",
                    branch="",
                    lease=LEASE,
                    overlay=False,
                )
            )
            for number in range(MANY)
        ]
        await blocked.begun.wait()
        await take_warm(room, client, gate)
        assert blocked.thread not in ("", WARM_THREADS)
        await asyncio.gather(*forks, return_exceptions=True)


async def test_a_warm_take_waits_for_no_upload_that_is_taken_apart(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    async with open_layered_room(tmp_path / "host") as room:
        await room.upload(client)
        await room.preparations.finished()
        await room.make("source", client.source())
        client.write("file", b"another\n")
        client.commit()
        pack = client.pack([client.head()], [])
        blocked = Blocked(gate)
        monkeypatch.setattr(content, "check_pack", blocked)
        uploads = [
            asyncio.ensure_future(
                room.importer.receive(client.source(tenant=f"tenant{number}"), (), chunked(pack))
            )
            for number in range(MANY)
        ]
        await blocked.begun.wait()
        client.git("checkout", "-q", "HEAD~1")
        await take_warm(room, client, gate)
        assert blocked.thread not in ("", WARM_THREADS)
        await asyncio.gather(*uploads)


@asynccontextmanager
async def uploads_that_stand_still(room: StoreRoom, source: Source) -> AsyncIterator[None]:
    """Let as many as a tenant may have at once stand still, while more wait."""
    still = asyncio.Event()
    begun = 0

    async def standing() -> AsyncIterator[bytes]:
        nonlocal begun
        begun += 1
        yield b"PACK"
        await still.wait()

    stuck = [
        asyncio.create_task(room.importer.receive(source, (), standing())) for _ in range(MANY)
    ]
    await asyncio.sleep(0)  # now each has a place, or waits for one
    try:
        async with asyncio.timeout(60):
            yield
        assert 0 < begun < MANY
    finally:
        still.set()
        ends = await asyncio.gather(*stuck, return_exceptions=True)
    assert {type(end) for end in ends} == {PackInvalid}
    assert begun == MANY


async def test_uploads_of_one_tenant_that_stand_still_leave_room_for_others(
    tmp_path: Path, client: GitClient
) -> None:
    source = client.source()
    async with open_store_room(tmp_path / "stores") as room:
        others = replace(source, key=replace(source.key, tenant="slow"))
        async with uploads_that_stand_still(room, others):
            assert (await room.upload(client)).commit == source.commit


async def test_commits_that_come_with_a_launch_wait_for_no_upload_of_its_tenant(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_store_room(tmp_path / "stores") as room:
        await room.upload(client)
        before = client.head()
        client.write("file", b"another\n")
        client.commit()
        commits = Commits((before,), client.pack([client.head()], [before]))
        source = client.source()
        others = replace(source, key=replace(source.key, project="f" * 40))
        async with uploads_that_stand_still(room, others):
            assert await room.gate.check(replace(source, commits=commits)) is None
