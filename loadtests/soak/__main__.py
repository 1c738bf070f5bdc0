"""`make soak TIME=`: clients use a worker while everything is killed at random; at the end nothing
may be left.

Prints its seed, what was done and what is left; exits with 1 when something is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from benchmarks.sandboxes.rooms import Worker, opened_worker

from chassis.ids import derived_id, random_id
from loadtests.soak.census import Census, adopt_orphans, kept_programs, leave_mounts, take_census
from loadtests.soak.chaos import Broken, Stage, within
from loadtests.soak.memory import MemoryGrowth

CLIENTS = 3
WORKSPACES = 32
SETTINGS = {
    "FAIRLEAD_SANDBOX_RETENTION_SECONDS": "0",
    "FAIRLEAD_SANDBOX_TOMBSTONE_SECONDS": "60",
}


def make_workspaces(host_root: Path) -> Sequence[str]:
    """Lay workspaces out as a provisioner does: frozen layers shared, an upper one for each."""
    lower = host_root / "layers" / "shared"
    (lower / "folder").mkdir(parents=True)
    (lower / "folder" / "file").write_text("frozen\n")
    made = [random_id("wsp") for _ in range(WORKSPACES)]
    for name in made:
        place = host_root / "layers" / name
        for folder in (place / "upper", place / "work", host_root / "trees" / name):
            folder.mkdir(parents=True)
        (place / "mount.json").write_text(json.dumps({"lower": [str(lower)]}))
    return made


class Soak:
    """One run."""

    def __init__(self, *, stage: Stage, directory: Path) -> None:
        self._stage = stage
        self._root = directory

    async def run(self, seconds: float) -> None:
        """Hurt for three fifths of the time, be kind for the rest, and look; raises Broken."""
        worker = self._stage.worker
        none: frozenset[str] = frozenset()
        # What is kept ready for a tenant is not left behind: it is there before as well.
        await self._stage.use_once()
        before = await self._settled()
        for _ in range(CLIENTS):
            self._stage.add_client(hurt=True)
        until = time.monotonic() + seconds * 0.6
        while time.monotonic() < until:
            await asyncio.sleep(self._stage.numbers.uniform(0.05, 1.0))
            await self._stage.hurt()
        await self._stage.stop_clients()
        await self._is_as(before, "after the rough part")
        for _ in range(CLIENTS):
            self._stage.add_client(hurt=False)
        memory = MemoryGrowth()
        until = time.monotonic() + seconds * 0.4
        while time.monotonic() < until:
            await asyncio.sleep(0.25)
            memory.look(kept_programs(worker.pid))
        await self._stage.stop_clients()
        await self._is_as(before, "after the steady part")
        if grown := memory.grown():
            raise Broken("; ".join(grown))
        await worker.stop()
        await self._is_as(
            replace(before, processes=none, cgroups=none, keys=none), "after the worker's end"
        )
        self._check_secret()

    def _census(self) -> Census:
        worker = self._stage.worker
        running = worker.process is not None
        key = (worker.host_root / "sandboxes" / "id_key").read_bytes()
        return take_census(
            root=self._root,
            tree=f"fairlead-{derived_id('hst', 'cgroups', key=key)[4:]}",
            worker=worker.pid if running else None,
            expected=self._stage.expected,
            redis_url=worker.redis_url,
        )

    async def _settled(self) -> Census:
        """Return what there is once the worker has made what it keeps ready."""
        last = self._census()
        same = 0
        while same < 10:
            await asyncio.sleep(0.1)
            now = self._census()
            same = same + 1 if now == last else 0
            last = now
        return last

    async def _is_as(self, before: Census, when: str) -> None:
        async def left() -> Sequence[str]:
            return self._census().more_than(before)

        await within(when, left)

    def _check_secret(self) -> None:
        """Look for the worker's secret in its log and in every file that it keeps."""
        for path in self._root.rglob("*"):  # nothing runs any more
            if path.is_file() and self._stage.secret.encode() in path.read_bytes():
                raise Broken(f"{path} holds the secret of the worker's environment")


async def soak(*, seconds: float, seed: int, isolation: str, directory: Path) -> None:
    """Run in places below `directory`; raises Broken."""
    secret = secrets.token_hex(24)
    workspaces = make_workspaces(directory / "host")
    settings = SETTINGS | {"SOAK_SECRET": secret}
    if isolation == "process":
        settings |= {"FAIRLEAD_SANDBOX_EXPOSE_HOST_TO_ONE_TENANT": "1"}
    async with opened_worker(directory, settings) as worker:
        stage = Stage(
            worker=worker,
            redis=_others(worker),
            numbers=random.Random(seed),  # noqa: S311 - a run that can be repeated
            isolation=isolation,
            secret=secret,
            workspaces=workspaces,
            log=directory / "run" / "clients.log",
        )
        stage.log.touch()
        try:
            await Soak(stage=stage, directory=directory).run(seconds)
        finally:
            for client in stage.clients:
                client.kill()
            print(f"done: {stage.counts}; {stage.started} clients")


def _others(worker: Worker) -> Sequence[int]:
    return [each.pid for each in psutil.Process().children() if each.pid != worker.pid]


def main() -> int:
    """Parse the words, run, and tell."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.soak", description=__doc__)
    parser.add_argument("--time", default="60s", help="how long, such as 90s or 10m")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--isolation", default="", help="the strongest here by default")
    words = parser.parse_args()
    unit = {"s": 1, "m": 60, "h": 3600}[words.time[-1]]
    print(f"seed: {words.seed}", flush=True)
    adopt_orphans()
    leave_mounts()
    with tempfile.TemporaryDirectory(prefix="fls-") as name:
        try:
            asyncio.run(
                soak(
                    seconds=float(words.time[:-1]) * unit,
                    seed=words.seed,
                    isolation=words.isolation,
                    directory=Path(name),
                )
            )
        except Broken as broken:
            print(f"left: {broken}", file=sys.stderr)
            return 1
    print("nothing is left")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
