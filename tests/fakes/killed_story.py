"""A workspace-provisioner that dies by kill -9 at each step of some work, and is looked over after
each restart.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.mounted_layers import copy_out, is_layered
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_room
from tests.fakes.sudden_death import killed_at
from workspace_provisioner.names import claims_of
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import State, Workspace

MOST_STEPS = 200


class Story:
    """One workspace in a host root, which is opened again and again."""

    def __init__(self, tmp_path: Path, *, overlay: bool) -> None:
        self.host = tmp_path / "host"
        self.overlay = overlay
        self.client = client = GitClient(tmp_path / "laptop")
        for number in range(5):
            client.write(f"d{number}/f", b"content\n")
        client.commit()
        self.files = {client.head(): listing(client.path)}
        self.source: Source = client.source()
        self.copies = tmp_path / "copies"
        self.copies.mkdir()
        asyncio.run(self._upload(client))

    async def _upload(self, client: GitClient) -> None:
        async with open_room(self.host) as room:
            if self.overlay and not room.trees.can_overlay:
                pytest.skip("overlays cannot be mounted here")
            await room.upload(client)
            await self.create(room, "source", "source")

    async def create(
        self, room: ProvisionerRoom, key: str, name: str, branch: str = ""
    ) -> Workspace:
        made = await room.provisioner.materialize(
            idempotency_key=key,
            source=self.source,
            branch=branch or f"branch-{name}",
            lease=LEASE,
            name=name,
            claims_branch=True,
            overlay=self.overlay,
        )
        assert isinstance(made, Workspace)
        return made

    async def fork(self, room: ProvisionerRoom, key: str, name: str) -> Workspace:
        source = room.provisioner.workspace_id("ada", "source")
        return await room.provisioner.fork(
            "ada",
            source,
            idempotency_key=key,
            name=name,
            branch=f"branch-{name}",
            lease=LEASE,
            overlay=self.overlay,
        )

    def check(self, room: ProvisionerRoom) -> None:
        """What records, trees and claims say is the same, and every workspace is whole."""
        (owner,) = (path.name for path in room.layout.owners.iterdir())
        for directory in (room.layout.staging, room.layout.incoming):
            assert all(name.startswith(owner) for name in os.listdir(directory))
        live = [each for each in room.ledger.all() if each.state is State.PROVISIONED]
        ids = {each.workspace_id for each in live}
        assert set(os.listdir(room.layout.trees)) == ids
        assert set(os.listdir(room.layout.layers)) <= ids
        assert set(os.listdir(room.layout.baselines)) <= ids
        claimed = [path.read_text() for path in room.layout.names.rglob("*") if path.is_file()]
        wanted = [each.workspace_id for each in live for _ in claims_of(each)]
        assert sorted(claimed) == sorted(wanted)
        for each in live:
            self.check_files(room, each)

    def check_files(self, room: ProvisionerRoom, made: Workspace) -> None:
        path = room.layout.trees / made.workspace_id
        if is_layered(room.layout, made.workspace_id):
            number = len(list(self.copies.iterdir()))
            path = copy_out(room.layout, made.workspace_id, self.copies / str(number))
        assert listing(path) == self.files[made.commit]
        head = run_git(path, "symbolic-ref", "--short", "HEAD").decode().strip()
        assert head == made.branch
        assert run_git(path, "status", "--porcelain") == b""

    def die_at_each_step(
        self,
        work: Callable[[ProvisionerRoom, int, Callable[[], None]], Awaitable[None]],
        restart: Callable[[ProvisionerRoom, int], Awaitable[None]],
    ) -> int:
        """Kill `work` at its first step, then at its second, until it ends; after each time
        restart, check, and let `restart` go on. Returns the number of steps.
        """
        # A checkout has many small files, and nobody sees it before it is whole.
        for step in range(0, MOST_STEPS, 1 if self.overlay else 4):

            async def once(begin: Callable[[], None], step: int = step) -> None:
                async with open_room(self.host) as room:
                    await work(room, step, begin)
                    os._exit(0)  # before what is cleared up at the end

            died = killed_at(step, self.host, once)
            asyncio.run(self._restart(restart, step))
            if not died:
                return step
        raise AssertionError("it never ended")

    async def _restart(
        self, restart: Callable[[ProvisionerRoom, int], Awaitable[None]], step: int
    ) -> None:
        async with open_room(self.host) as room:
            self.check(room)
            await restart(room, step)
            self.check(room)
