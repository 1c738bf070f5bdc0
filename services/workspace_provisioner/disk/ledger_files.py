"""The records of workspaces: one JSON file each, and a line in a log that is on the disk before
anybody is answered.

The disk is the truth, as several processes may serve one host root; memory only saves the parsing.
What a power cut leaves is taken for whole when the file system was flushed after it was made.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workspace_provisioner.disk.known_records import KnownRecords
from workspace_provisioner.disk.record_logs import RecordLogs
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.disk.workspace_records import (
    Moment,
    OtherForm,
    Record,
    read_record,
    written,
)
from workspace_provisioner.errors import StorageUnavailable
from workspace_provisioner.ports import Disk
from workspace_provisioner.workspaces import State, Workspace

log = logging.getLogger(__name__)

_FLUSHED = ".flushed"
_OLD_DRAFT_SECONDS = 600.0
# The clock of a file system ticks every 4 ms on the slowest kernels.
_TICK_NANOSECONDS = 20_000_000
_MOST_BOOTS = 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMSGSIZE)


class LedgerFiles:
    """Keeps the records below `directory`; call `load` before anything else. `boot` names this
    boot of the machine.
    """

    def __init__(
        self, *, directory: Path, logs: RecordLogs, disk: Disk, files: FileWork, boot: str
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._disk = disk
        self._files = files
        self._boot = boot
        self._known = KnownRecords()
        self._inodes: dict[str, int] = {}
        self._scanned_at = 0
        self._unflushed = False

    async def load(self) -> None:
        """Read every record; drop one that was cut short, or whose files a power cut may have
        taken: its workspace is then taken away. One of another form stays, with its workspace.
        """
        await self._files.run(self._restore)
        await self._files.run(self._drop_lost)
        self._scan()

    def get(self, workspace_id: str) -> Workspace | None:
        if not self._learn(workspace_id):
            raise StorageUnavailable
        found = self._known.get(workspace_id)
        return found.workspace if found else None

    def provisioned(self, tenant: str = "") -> int:
        return self._known.provisioned(tenant)

    def all(self) -> Iterator[Workspace]:
        self._scan()
        return iter(self._known.all())

    async def put(self, workspace: Workspace) -> None:
        await self._files.run(self.put_now, workspace)

    def put_now(self, workspace: Workspace) -> None:
        """Do the same at once, in any thread."""
        workspace_id = workspace.workspace_id
        before = self._known.get(workspace_id)
        if before is not None and before.workspace.state is State.PROVISIONED:
            made = before.made
        else:
            made = Moment(self._boot, time.monotonic())
        record = Record(workspace, made, _revision_after(before))
        content = written(record)
        path = self._path(workspace_id)
        try:
            with self._logs.recorded(content):
                self._disk.write_whole(path, content, durably=False)
        except OSError as error:
            if error.errno not in _NO_ROOM or workspace.state is not State.RELEASED:
                raise
            self._replace(path, content)
        self._inodes.pop(workspace_id, None)
        self._known.remember(record, content)
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
        await self._files.run(self.remove_now, workspace_id)

    def remove_now(self, workspace_id: str) -> None:
        """Do the same at once, in any thread. After a power cut it may be there again, which
        `load` and the start of the host see to as for any other record.
        """
        if self._disk.remove(self._path(workspace_id)):
            self._disk.sync_directory(self._directory)
        self._forget(workspace_id)

    async def flush(self, first: Callable[[], Awaitable[None]]) -> None:
        if not self._unflushed:
            return
        self._unflushed = False
        until = time.monotonic()
        flushed = False
        try:
            await first()
            await self._files.run(self._flush, until)
            flushed = True
        finally:
            if not flushed:
                self._unflushed = True

    def _flush(self, until: float) -> None:
        aside = self._logs.put_aside()
        self._disk.sync_all(self._directory)
        with self._alone():
            flushed = self._flushed_until()
            # Another process may have begun later, and been done earlier.
            latest = max(until, flushed.pop(self._boot, -1.0))
            kept = [*flushed.items(), (self._boot, latest)][-_MOST_BOOTS:]
            self._disk.write_whole(self._directory / _FLUSHED, json.dumps(dict(kept)).encode())
        self._logs.drop(aside)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for the other processes that say what they flushed."""
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _path(self, workspace_id: str) -> Path:
        return self._directory / f"{workspace_id}.json"

    def _learn(self, workspace_id: str) -> bool:
        """Take what the disk holds; False when it is of another form."""
        content = self._disk.read(self._path(workspace_id))
        if content is None:
            self._forget(workspace_id)
        elif self._known.content(workspace_id) != content:
            try:
                self._known.remember(read_record(content), content)
            except ValueError as error:
                log.warning("record unreadable", extra={"workspace_id": workspace_id})
                self._forget(workspace_id)
                return not isinstance(error, OtherForm)
        return True

    def _forget(self, workspace_id: str) -> None:
        self._inodes.pop(workspace_id, None)
        self._known.forget(workspace_id)

    def _scan(self) -> None:
        """Bring memory up to what the disk holds, reading only files that were replaced."""
        changed_at = os.stat(self._directory).st_mtime_ns
        if changed_at == self._scanned_at:
            return
        settled = time.time_ns() - changed_at > _TICK_NANOSECONDS
        known = self._known.ids()  # before the look: what other threads add meanwhile is not gone
        with os.scandir(self._directory) as entries:
            found = {
                entry.name.removesuffix(".json"): entry.inode()
                for entry in entries
                if entry.name.endswith(".json")
            }
        for workspace_id in known - found.keys():
            self._forget(workspace_id)
        for workspace_id, inode in found.items():
            if self._inodes.get(workspace_id) != inode:
                self._learn(workspace_id)
                self._inodes[workspace_id] = inode
        self._scanned_at = changed_at if settled else 0

    def _restore(self) -> None:
        """Put back what a power cut took of the records, and begin to write."""
        lost: dict[str, tuple[Record, bytes]] = {}
        for content in self._logs.lost():
            try:
                record = read_record(content)
            except ValueError:
                log.warning("line of a record log unreadable")
                continue
            workspace_id = record.workspace.workspace_id
            before = lost.get(workspace_id)
            if before is None or before[0].revision < record.revision:
                lost[workspace_id] = record, content
        for workspace_id, (record, content) in lost.items():
            path = self._path(workspace_id)
            if _revision_of(self._disk.read(path)) < record.revision:
                self._disk.write_whole(path, content, durably=False)
        # The logs are dropped with the next flush.
        self._unflushed = bool(self._logs.left_behind())
        self._logs.open()

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
            found = read_record(content)
        except OtherForm:
            log.error("record of another form kept", extra={"record": path.name})
            return False
        except ValueError:
            return True
        made = found.made
        if made.boot == self._boot or found.workspace.state is not State.PROVISIONED:
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


def _revision_after(before: Record | None) -> int:
    """Return a number that is greater than those of all earlier records of the workspace, also
    when the clock was put back.
    """
    return max(time.time_ns(), before.revision + 1 if before else 0)


def _revision_of(content: bytes | None) -> int:
    try:
        return read_record(content or b"").revision
    except OtherForm:
        return sys.maxsize  # nobody knows better
    except ValueError:
        return -1
