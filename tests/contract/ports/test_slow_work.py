"""What takes long has threads of its own: warm takes wait for none of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.git_client import GitClient
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, chunked, open_layered_room
from workspace_provisioner.git import content
from workspace_provisioner.trees.workspace_copies import WorkspaceCopies
from workspace_provisioner.workspaces import Rung

pytestmark = pytest.mark.asyncio

MANY = 8


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("file", b"content\n")
    found.commit()
    return found


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Blocks the threads of the slow work until the test ends."""
    opened = threading.Event()
    yield opened
    opened.set()


class Blocked:
    """Work that begins and then waits for the gate."""

    def __init__(self, gate: threading.Event) -> None:
        self.begun = asyncio.Event()
        self._gate = gate
        self._loop = asyncio.get_running_loop()

    def __call__(self, *_: object, **__: object) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        self._gate.wait()


async def take_warm(room: ProvisionerRoom, client: GitClient) -> None:
    """Take what is prepared, which the work that is blocked must not hold up."""
    async with asyncio.timeout(60):
        made, _ = await room.make("warm", client.source(), "branch", overlay=True)
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
        await take_warm(room, client)
        gate.set()
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
        await take_warm(room, client)
        gate.set()
        await asyncio.gather(*uploads)
