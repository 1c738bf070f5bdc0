"""Joins packs, lets old snapshots go, deletes what nothing needs: alone with a store, and only by
this service.

What is no longer promised first becomes a retired pin, named after the first full second after
that. Its objects stay until no workspace is left that borrows since before; so a workspace never
loses what it borrows, whatever it has checked out meanwhile.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from chassis.clock import Clock
from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.command import Git, GitTimedOut, Place
from workspace_provisioner.ports import Disk
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.store.admission import GitAdmission
from workspace_provisioner.store.files import (
    KINDS,
    RETIRED,
    TAGS,
    Record,
    pack_sizes,
    read_pins,
    read_records,
    read_tags,
)
from workspace_provisioner.store.git_repair import GitRepair
from workspace_provisioner.store.states import StoreStates
from workspace_provisioner.store.writer import StoreWriter

log = logging.getLogger(__name__)

MOST_PACKS = 25
"""So many packs are joined: with 301 of them a checkout took 17.6 ms instead of 10.3 (measured)."""
KEPT_SNAPSHOTS = 256
MOST_SNAPSHOTS = 320
KEPT_FOR = timedelta(days=90)
"""Snapshots that are kept, the newest ones; they go in batches, and the newest one stays."""
UNUSED_FOR = timedelta(days=30)
"""A store without workspaces that was of no use for so long is deleted."""
GRACE = timedelta(hours=1)
"""Longer than any build takes, which may rely on what was promised when it began."""

_UNPRUNED = "unpruned"


class GitUpkeep:
    """The upkeep of every store below a layout's root; see store_ports.StoreCare."""

    def __init__(
        self,
        *,
        layout: Layout,
        git: Git,
        files: FileWork,
        disk: Disk,
        clock: Clock,
        states: StoreStates,
        repair: GitRepair,
        admission: GitAdmission,
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._disk = disk
        self._writer = StoreWriter(disk=disk)
        self._clock = clock
        self._states = states
        self._repair = repair
        self._admission = admission

    async def keys(self) -> Sequence[ProjectKey]:
        return await self._files.run(self._read_keys)

    def _read_keys(self) -> list[ProjectKey]:
        found = []
        for store in sorted(self._layout.root.glob("[!.]*/*.git")):
            try:
                key = read_key(store)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if self._layout.store(key) == store:
                found.append(key)
        return found

    async def tend(self, key: ProjectKey) -> None:
        state = await self._states.current(key)
        if state is None:
            return
        if state.is_doubtful:
            await self._repair.doubt(key)
        if state.alone:
            await self._admission.make_whole(key)
        store = self._states.store(key)
        async with self._states.alone(key):
            joined = await self._join_packs(store)
            retired = await self._files.run(self._retire, store)
        if joined or retired:
            await self._repair.on_epoch(key)

    async def _join_packs(self, store: Path) -> bool:
        small = to_join(await self._files.run(pack_sizes, store))
        if not small:
            return False
        given = "".join(f"{name}.pack\n" for name in small)
        return await self._repack(store, "--stdin-packs", given=given, replaced=small)

    async def _repack(
        self, store: Path, *arguments: str, given: str, replaced: Collection[str]
    ) -> bool:
        """Write one pack, and take those away that it stands for; the epoch moves on before."""
        draft = store / f"draft-{secrets.token_hex(8)}"
        await self._files.run(draft.mkdir, mode=0o700)
        try:
            packed = await self._git.run(
                "pack-objects", "-q", "--delta-base-offset", *arguments, str(draft / "pack"),
                place=Place(store, config={"core.fsync": "all"}, idle=True),
                given=given.encode(),
            )  # fmt: skip
            if packed.succeeded:
                await self._files.run(self._replace, store, draft, replaced)
            else:
                log.warning("packs not joined", extra={"complaint": packed.complaint[-500:]})
            return packed.succeeded
        except GitTimedOut:
            return False
        finally:
            await self._files.run(move_to_trash, draft, self._layout.trash)

    def _replace(self, store: Path, draft: Path, replaced: Collection[str]) -> None:
        made = {name.partition(".")[0] for name in os.listdir(draft)}
        self._writer.move_packs(draft, store)
        self._writer.bump_epoch(store)
        gone = set(replaced) - made
        kept = {n: s for n, s in pack_sizes(store).items() if s >= 0 and n not in gone}
        self._writer.packs(store, kept)
        packs = store / "objects/pack"
        for suffix in (".idx", ".rev", ".pack"):
            self._writer.drop([packs / f"{name}{suffix}" for name in gone])

    def _retire(self, store: Path) -> bool:
        """Take back what only old snapshots promise; returns whether anything was."""
        now = self._clock.now()
        records = read_records(store, {})
        old = old_records(records, now)
        broken = [path for path in (store / "snapshots").glob("snp_*.json") if path not in records]
        kept = [each.snapshot for path, each in records.items() if path not in old]
        promised = {oid for each in kept for oid in (*each.commits, each.changes_tree)}
        promised.update(read_tags(store).values())
        pins = read_pins(store)
        gone = {
            name: oid
            for name, oid in pins.items()
            if name.startswith(KINDS) and not name.startswith(TAGS) and oid not in promised
        }
        if not (old or broken or gone):
            return False
        retired = f"{RETIRED}{math.ceil(now.timestamp())}/"
        self._writer.pin(store, {f"{retired}{oid}": oid for oid in gone.values() if oid}, gone)
        self._writer.drop([*old, *broken])
        return True

    async def prune(self, key: ProjectKey, *, live_since: datetime | None) -> None:
        store = self._states.store(key)
        if await self._files.run(self._is_abandoned, store) and live_since is None:
            await self._collect(key, store)
            return
        if not await self._files.run(self._has_retired, store):
            return
        async with self._states.alone(key):
            await self._files.run(self._drop_retired, store, live_since)
            if not (store / _UNPRUNED).exists():
                return
            pins = await self._files.run(read_pins, store)
            state = await self._states.read(key)
            if state is None or state.alone or not pins:
                return  # git cannot walk what has no history
            roots = "".join(f"{oid}\n" for oid in sorted(set(pins.values())) if oid)
            packs = await self._files.run(pack_sizes, store)
            pruned = await self._repack(store, "--revs", given=roots, replaced=packs)
            # When it failed, objects of the retired pins are lacking; they go with the next ones.
            await self._files.run(self._writer.drop, [store / _UNPRUNED])
        if pruned:
            log.info("store pruned", extra={"tenant": key.tenant, "store": key.digest})
            await self._repair.on_epoch(key)

    def _has_retired(self, store: Path) -> bool:
        if (store / _UNPRUNED).exists():
            return True
        return any(name.startswith(RETIRED) for name in read_pins(store))

    def _drop_retired(self, store: Path, live_since: datetime | None) -> None:
        latest = self._clock.now() - GRACE
        if live_since is not None:
            latest = min(latest, live_since)
        gone = [
            name
            for name in read_pins(store)
            if name.startswith(RETIRED) and _retired_at(name) < latest.timestamp()
        ]
        if gone:
            self._disk.write_whole(store / _UNPRUNED, b"")
            self._writer.pin(store, {}, gone)

    def _is_abandoned(self, store: Path) -> bool:
        try:
            used = store.stat().st_mtime
        except FileNotFoundError:
            return False
        return used < (self._clock.now() - UNUSED_FOR).timestamp()

    async def _collect(self, key: ProjectKey, store: Path) -> None:
        async with self._states.alone(key):
            if await self._files.run(self._is_abandoned, store):
                await self._files.run(move_to_trash, store, self._layout.trash)
        log.info("store deleted", extra={"tenant": key.tenant, "store": key.digest})
        await self._repair.on_epoch(key)


def to_join(sizes: Mapping[str, int]) -> list[str]:
    """Return the smaller packs, so many that those left are few and each at least twice as large
    as all joined before it; none when there are not too many. See git-repack(1), `--geometric`.
    """
    packs = sorted((size, name) for name, size in sizes.items() if size >= 0)
    if len(packs) < MOST_PACKS:
        return []
    count, total = 0, 0
    for size, _ in packs:
        if count > len(packs) - MOST_PACKS // 2 and size >= 2 * total:
            break
        count, total = count + 1, total + size
    return [name for _, name in packs[:count]]


def old_records(records: Mapping[Path, Record], now: datetime) -> list[Path]:
    """Return the records that are too many or too old; never the newest one."""
    newest = sorted(records.values(), key=lambda each: each.snapshot.created_at, reverse=True)
    kept = newest if len(newest) <= MOST_SNAPSHOTS else newest[:KEPT_SNAPSHOTS]
    since = now - KEPT_FOR
    fresh = [each for each in kept[1:] if each.snapshot.created_at >= since]
    paths = {each.path for each in (*kept[:1], *fresh)}
    return [each.path for each in newest if each.path not in paths]


def read_key(store: Path) -> ProjectKey:
    """Return whose objects a store holds; raises OSError, ValueError, KeyError or TypeError."""
    found = json.loads((store / "key").read_bytes())
    return ProjectKey(found["tenant"], found["project"], ObjectFormat(found["object_format"]))


def _retired_at(name: str) -> int:
    seconds = name.removeprefix(RETIRED).partition("/")[0]
    return int(seconds) if seconds.isdigit() else 0
