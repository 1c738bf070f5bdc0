"""The records of workspaces: one JSON file each, on the disk before anybody is answered.

The disk is the truth, as several processes may serve one host root; memory only saves the parsing.
What a power cut leaves is taken for whole when the file system was flushed after it was made.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from bisect import insort
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.disk.workspace_records import Moment, read_record, written
from workspace_provisioner.ports import Disk
from workspace_provisioner.workspaces import State, Workspace

log = logging.getLogger(__name__)

_FLUSHED = ".flushed"
_OLD_DRAFT_SECONDS = 600.0
# The clock of a file system ticks every 4 ms on the slowest kernels.
_TICK_NANOSECONDS = 20_000_000
_MOST_BOOTS = 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class LedgerFiles:
    """Keeps the records below `directory`; call `load` before anything else. `boot` names this
    boot of the machine.
    """

    def __init__(self, *, directory: Path, disk: Disk, files: FileWork, boot: str) -> None:
        self._directory = directory
        self._disk = disk
        self._files = files
        self._boot = boot
        self._contents: dict[str, bytes] = {}
        self._records: dict[str, Workspace] = {}
        self._made: dict[str, Moment] = {}
        self._ids: list[str] = []
        self._provisioned: Counter[str] = Counter()
        self._inodes: dict[str, int] = {}
        self._scanned_at = 0
        self._unflushed = False

    async def load(self) -> None:
        """Read every record; drop one that cannot be read, or whose files a power cut may have
        taken: its workspace is then taken away.
        """
        await self._files.run(self._drop_lost)
        self._scan()

    def get(self, workspace_id: str) -> Workspace | None:
        content = self._disk.read(self._path(workspace_id))
        if content is None:
            self._forget(workspace_id)
            return None
        if self._contents.get(workspace_id) != content:
            self._take(workspace_id, content)
        return self._records.get(workspace_id)

    def provisioned(self, tenant: str = "") -> int:
        return self._provisioned[tenant] if tenant else self._provisioned.total()

    def all(self) -> Iterator[Workspace]:
        self._scan()
        return iter([self._records[each] for each in self._ids])

    async def put(self, workspace: Workspace) -> None:
        workspace_id = workspace.workspace_id
        before = self._records.get(workspace_id)
        if before is not None and before.state is State.PROVISIONED:
            made = self._made[workspace_id]
        else:
            made = Moment(self._boot, time.monotonic())
        content = written(workspace, made)
        try:
            await self._files.run(self._disk.write_whole, self._path(workspace_id), content)
        except OSError as error:
            if error.errno not in _NO_ROOM or workspace.state is not State.RELEASED:
                raise
            await self._files.run(self._replace, self._path(workspace_id), content)
        self._inodes.pop(workspace_id, None)
        self._remember(workspace, made, content)
        if workspace.state is State.PROVISIONED:
            self._unflushed = True

    def _replace(self, path: Path, content: bytes) -> None:
        """Write where the old record made room: what is given back must not need a disk with room.
        Killed in between, there is no record, and the workspace is given back all the same.
        """
        self._disk.remove(path)
        self._disk.sync_directory(path.parent)
        self._disk.write_whole(path, content)

    async def remove(self, workspace_id: str) -> None:
        await self._files.run(self._remove, workspace_id)
        self._forget(workspace_id)

    async def flush(self) -> None:
        """Make the files of every recorded workspace durable."""
        if not self._unflushed:
            return
        self._unflushed = False
        try:
            await self._files.run(self._flush)
        except OSError:
            self._unflushed = True
            raise

    def _flush(self) -> None:
        until = time.monotonic()
        self._disk.sync_all(self._directory)
        flushed = self._flushed_until()
        flushed.pop(self._boot, None)
        kept = [*flushed.items(), (self._boot, until)][-_MOST_BOOTS:]
        self._disk.write_whole(self._directory / _FLUSHED, json.dumps(dict(kept)).encode())

    def _remove(self, workspace_id: str) -> None:
        if self._disk.remove(self._path(workspace_id)):
            self._disk.sync_directory(self._directory)

    def _path(self, workspace_id: str) -> Path:
        return self._directory / f"{workspace_id}.json"

    def _take(self, workspace_id: str, content: bytes) -> None:
        try:
            workspace, made = read_record(content)
        except ValueError:
            log.warning("record unreadable", extra={"workspace_id": workspace_id})
            self._forget(workspace_id)
            return
        self._remember(workspace, made, content)

    def _remember(self, workspace: Workspace, made: Moment, content: bytes) -> None:
        workspace_id = workspace.workspace_id
        before = self._records.get(workspace_id)
        if before is None:
            insort(self._ids, workspace_id)
        elif before.state is State.PROVISIONED:
            self._provisioned[before.tenant] -= 1
        if workspace.state is State.PROVISIONED:
            self._provisioned[workspace.tenant] += 1
        self._records[workspace_id] = workspace
        self._contents[workspace_id] = content
        self._made[workspace_id] = made

    def _forget(self, workspace_id: str) -> None:
        self._inodes.pop(workspace_id, None)
        self._contents.pop(workspace_id, None)
        before = self._records.pop(workspace_id, None)
        if before is not None:
            del self._made[workspace_id]
            self._ids.remove(workspace_id)
            if before.state is State.PROVISIONED:
                self._provisioned[before.tenant] -= 1

    def _scan(self) -> None:
        """Bring memory up to what the disk holds, reading only files that were replaced."""
        changed_at = os.stat(self._directory).st_mtime_ns
        if changed_at == self._scanned_at:
            return
        settled = time.time_ns() - changed_at > _TICK_NANOSECONDS
        with os.scandir(self._directory) as entries:
            found = {
                entry.name.removesuffix(".json"): entry.inode()
                for entry in entries
                if entry.name.endswith(".json")
            }
        for workspace_id in self._records.keys() - found.keys():
            self._forget(workspace_id)
        for workspace_id, inode in found.items():
            if self._inodes.get(workspace_id) != inode:
                self.get(workspace_id)
                self._inodes[workspace_id] = inode
        self._scanned_at = changed_at if settled else 0

    def _drop_lost(self) -> None:
        flushed_until = self._flushed_until()
        dropped = False
        for name in self._disk.names(self._directory):
            path = self._directory / name
            if name.endswith(".tmp"):
                self._drop_draft(path)
            elif name.endswith(".json") and self._is_lost(path, flushed_until):
                log.warning("record dropped", extra={"record": name})
                dropped = self._disk.remove(path) or dropped
        if dropped:
            self._disk.sync_directory(self._directory)

    def _is_lost(self, path: Path, flushed_until: dict[str, float]) -> bool:
        content = self._disk.read(path)
        if content is None:
            return False
        try:
            workspace, made = read_record(content)
        except ValueError:
            return True
        if made.boot == self._boot or workspace.state is not State.PROVISIONED:
            return False
        return made.seconds > flushed_until.get(made.boot, -1.0)

    def _flushed_until(self) -> dict[str, float]:
        content = self._disk.read(self._directory / _FLUSHED)
        try:
            found: dict[str, float] = json.loads(content or b"{}")
            return {boot: float(until) for boot, until in found.items()}
        except (AttributeError, TypeError, ValueError):
            return {}

    def _drop_draft(self, path: Path) -> None:
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            return
        if age > _OLD_DRAFT_SECONDS:
            self._disk.remove(path)
