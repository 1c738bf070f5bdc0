"""The object stores: one bare repository for each tenant and project, with its durable tips as
refs.

`refs/fairlead/tips/<commit>` and a record in `snapshots/` are a promise together: both are there
only after all that the commit reaches is durable. They are read again when a file of theirs
changes; until then answers come from memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from chassis.clock import Clock
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.checkout import packed_tags
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.ports import Quarantine
from workspace_provisioner.sources import ProjectKey, Tip
from workspace_provisioner.stamps import PackedTags, StoreStamp
from workspace_provisioner.store.admission import GitAdmission
from workspace_provisioner.store.files import TIPS, may_hold, read_records, read_tags
from workspace_provisioner.store.git_repair import GitRepair
from workspace_provisioner.store.grown_trees import GrownTrees
from workspace_provisioner.store.quarantine import GitQuarantine, Intake
from workspace_provisioner.store.state import StoreState, stamp_store, verify_stamp
from workspace_provisioner.store.states import StoreStates
from workspace_provisioner.workspaces import MissReason, Snapshot

_MISS_TIPS = 64
_MARK_USE_SECONDS = timedelta(hours=1).total_seconds()


class GitStores:
    """The stores below a layout's root."""

    def __init__(
        self,
        *,
        layout: Layout,
        git: Git,
        files: FileWork,
        content: GitContent,
        grown: GrownTrees,
        intake: Intake,
        clock: Clock,
        owners: Owners,
        states: StoreStates,
        repair: GitRepair,
        admission: GitAdmission,
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._content = content
        self._grown = grown
        self._intake = intake
        self._clock = clock
        self._owners = owners
        self._states = states
        self._repair = repair
        self._admission = admission
        self._newest: dict[ProjectKey, tuple[StoreState, tuple[str, ...]]] = {}
        self._packed: dict[ProjectKey, tuple[Mapping[str, str], PackedTags]] = {}
        self._used: dict[ProjectKey, float] = {}

    async def holds(self, key: ProjectKey) -> bool:
        state = await self._states.current(key)
        return state is not None and not state.is_empty

    async def knows(self, key: ProjectKey, commit: str) -> bool:
        return await self.lack(key, commit) is None

    async def knows_tree(self, key: ProjectKey, tree: str) -> bool:
        state = await self._states.current(key)
        return state is not None and tree in state.trees

    async def lack(self, key: ProjectKey, commit: str, *, again: bool = False) -> MissReason | None:
        return (await self._look(key, commit, again=again))[0]

    async def _look(
        self, key: ProjectKey, commit: str, *, again: bool = False
    ) -> tuple[MissReason | None, StoreState | None]:
        """Say why a commit cannot be served, and what the store promised then."""
        state = await (self._states.read(key) if again else self._states.current(key))
        if state is not None and state.is_doubtful:
            if await self._repair.doubt(key):
                return MissReason.MISSING_OBJECTS, state
            state = await self._states.current(key)
        if state is None:
            return MissReason.NO_BASE, None
        if not state.has(commit) and not await self._find(key, state, commit):
            return state.lacking(commit), state
        if not await self._mark_used(key):
            return MissReason.NO_BASE, None
        return None, state

    async def _find(self, key: ProjectKey, state: StoreState, commit: str) -> str:
        """Return the newest durable tip that reaches the commit, or nothing, and remember it."""
        if commit in state.tips or not state.tips:
            return commit if commit in state.tips else ""
        if commit in state.known:
            return state.known[commit]
        if not await self._files.run(may_hold, self._states.store(key), commit):
            return ""
        found = await self._git.run(
            "for-each-ref", "--sort=-committerdate", "--format=%(objectname)",
            f"--contains={commit}", TIPS,
            place=Place(self._layout.store(key)),
        )  # fmt: skip
        if not found.succeeded or not await self._is_commit(key, commit):
            return ""
        for tip in found.output.decode("ascii").split():
            if tip in state.tips:
                state.remember(commit, tip)
                return tip
        return ""

    async def _is_commit(self, key: ProjectKey, oid: str) -> bool:
        """Tell a commit from a tag, which git takes for its commit."""
        found = await self._git.run("cat-file", "-t", oid, place=Place(self._states.store(key)))
        return found.output.strip() == b"commit"

    async def mark_used(self, key: ProjectKey) -> None:
        """Let the store's own time say, to the hour, when it was last of use."""
        await self._mark_used(key)

    async def _mark_used(self, key: ProjectKey) -> bool:
        """Do the same; returns whether the store is there: upkeep may just have deleted it."""
        now = self._clock.now().timestamp()
        if now - self._used.get(key, 0.0) >= _MARK_USE_SECONDS:
            try:
                await self._files.run(os.utime, self._layout.store(key), (now, now))
            except FileNotFoundError:
                return False
            self._used[key] = now
        return True

    async def tips(self, key: ProjectKey) -> tuple[str, ...]:
        state = await self._states.current(key)
        if state is None or not state.tips:
            return ()
        before = self._newest.get(key)
        if before is not None and before[0] is state:
            return before[1]
        found = await self._git.run(
            "for-each-ref", "--sort=-committerdate", "--format=%(objectname)", TIPS,
            place=Place(self._layout.store(key)),
        )  # fmt: skip
        tips = found.output.decode("ascii").split() if found.succeeded else []
        newest = tuple([tip for tip in tips if tip in state.tips][:_MISS_TIPS])
        self._newest[key] = (state, newest)
        return newest

    async def stamp(self, key: ProjectKey, commit: str) -> StoreStamp | None:
        lacking, state = await self._look(key, commit)
        if lacking is not None or state is None:
            return None
        pin = await self._find(key, state, commit) or (commit if commit in state.shallow else "")
        if not pin:
            return None
        return await self._files.run(stamp_store, self._layout.store(key), state, commit, pin)

    def verify(self, key: ProjectKey, stamp: StoreStamp) -> MissReason | None:
        state = self._states.current_now(key)
        if state is None:
            return MissReason.MISSING_OBJECTS
        return verify_stamp(self._states.store(key), state, stamp)

    async def is_shallow(self, key: ProjectKey, commit: str) -> bool:
        state = await self._states.current(key)
        return state is not None and commit in state.shallow and not state.is_rooted(commit)

    async def tags(self, key: ProjectKey) -> tuple[Tip, ...]:
        tags = await self._files.run(read_tags, self._states.store(key))
        return tuple(Tip(ref, oid) for ref, oid in sorted(tags.items()))

    def packed_tags(self, key: ProjectKey) -> PackedTags:
        state = self._states.seen(key)
        if state is None or not state.tags:
            return PackedTags()
        known = self._packed.get(key)
        if known is not None and known[0] is state.tags:
            return known[1]
        text = packed_tags([Tip(ref, oid) for ref, oid in state.tags.items()])
        packed = PackedTags(text, hashlib.sha256(text.encode()).hexdigest()[:16])
        self._packed[key] = (state.tags, packed)
        return packed

    async def doubt(self, key: ProjectKey) -> bool:
        return await self._repair.doubt(key)

    @asynccontextmanager
    async def quarantine(
        self, key: ProjectKey, *, alone: Sequence[str] = ()
    ) -> AsyncIterator[Quarantine]:
        quarantine = GitQuarantine(
            layout=self._layout,
            git=self._git,
            files=self._files,
            content=self._content,
            grown=self._grown,
            intake=self._intake,
            key=key,
            name=self._owners.own_name(),
            shallow=tuple(alone),
            admit=partial(self._admission.admit, key, tips_only=bool(alone)),
        )
        try:
            await quarantine.open()
            yield quarantine
        finally:
            await quarantine.close()

    async def snapshots(self) -> Sequence[Snapshot]:
        return await self._files.run(self._read_snapshots)

    def _read_snapshots(self) -> list[Snapshot]:
        return [
            record.snapshot
            for store in sorted(self._layout.root.glob("[!.]*/*.git"))
            for record in read_records(store, {}).values()
        ]
