"""A provisioner in a process of its own, which syncs, creates, forks, renames and releases.

Run as `python -m tests.fakes.provisioner_process HOST_ROOT LAPTOP SEED OPERATIONS`; it begins when
its standard input says so, and prints how often each operation succeeded, and
how often it failed for which reason.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path

from chassis.errors import FairleadError
from tests.fakes.git_client import GitClient
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_room
from workspace_provisioner.sources import Tip
from workspace_provisioner.workspaces import State, Workspace

NAMES = ("red", "green", "blue")
EXPECTED = frozenset(
    (
        "workspace_exists",
        "branch_in_use",
        "workspace_not_found",
        "workspace_released",
        "fork_failed",
        "base_locked",
    )
)


class Operator:
    """Does operations in a room that another process works in as well."""

    def __init__(self, room: ProvisionerRoom, laptop: GitClient, seed: int) -> None:
        self._room = room
        self._laptop = laptop
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - chooses what a test does
        self._number = 0
        self.done: Counter[str] = Counter()

    async def sync(self) -> None:
        """Upload a new commit, with all before it."""
        self._laptop.write(f"own-{self._seed}", f"{self._number}\n".encode())
        self._laptop.commit(f"{self._seed} {self._number}")
        head = self._laptop.head()
        await self._room.upload(self._laptop, tips=(Tip("refs/heads/main", head),))

    async def create(self) -> None:
        """Make a workspace, mostly under a name of its own, else under one that all want."""
        own = f"own-{self._seed}-{self._random.randrange(10**6)}"
        name = own if self._random.random() < 0.8 else self._random.choice(NAMES)
        made = await self._room.provisioner.materialize(
            idempotency_key=self._key(),
            source=self._laptop.source(),
            branch=f"branch-{name}",
            lease=LEASE,
            name=name,
            claims_branch=True,
            overlay=self._random.random() < 0.5,
        )
        assert isinstance(made, Workspace), made

    async def fork(self) -> None:
        """Copy whatever there is."""
        name = self._random.choice(NAMES)
        await self._room.provisioner.fork(
            "ada",
            self._any(),
            idempotency_key=self._key(),
            name=name,
            branch=f"branch-{name}",
            lease=LEASE,
            overlay=self._random.random() < 0.5,
        )

    async def rename(self) -> None:
        """Rename whatever there is."""
        await self._room.provisioner.rename("ada", self._any(), self._random.choice(NAMES))

    async def release(self) -> None:
        """Give back whatever there is."""
        await self._room.provisioner.release("ada", workspace_id=self._any())

    async def run(self, operations: int) -> None:
        """Do operations, three at a time."""
        slots = asyncio.Semaphore(3)

        async def one(name: str) -> None:
            async with slots:
                try:
                    await getattr(self, name)()
                except FairleadError as error:
                    if error.reason not in EXPECTED:
                        raise
                    self.done[f"{name}: {error.reason}"] += 1
                else:
                    self.done[name] += 1

        await one("sync")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(operations - 1):
                weighted = ("create", "create", "create", "fork", "rename", "release", "release")
                tasks.create_task(one(self._random.choice(weighted)))
            tasks.create_task(one("sync"))

    def _key(self) -> str:
        self._number += 1
        return f"{self._seed} {self._number}"

    def _any(self) -> str:
        live = [e.workspace_id for e in self._room.ledger.all() if e.state is State.PROVISIONED]
        return self._random.choice(live) if live else "wsp_" + "a" * 26


async def main(host_root: Path, laptop: Path, seed: int, operations: int) -> None:
    """See the module."""
    client = GitClient(laptop)
    client.write("file", b"shared\n")
    client.commit()
    async with open_room(host_root) as room:
        await asyncio.to_thread(sys.stdin.readline)
        operator = Operator(room, client, seed)
        await operator.run(operations)
        await room.provisioner.drain()
        sys.stdout.write(json.dumps(operator.done) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
