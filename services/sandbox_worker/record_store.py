"""What the worker keeps on disk about its host: one small file per sandbox (a key that was
released, or whose worker died, stays used), and whose programs run without walls.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.errors import HostBusy, HostReserved, StorageUnavailable
from sandbox_worker.ports import SandboxRecord
from sandbox_worker.sandbox import Fence

log = logging.getLogger(__name__)

_SUFFIX = ".json"


class RecordStore:
    """Keeps records below `root`, each replaced by rename."""

    def __init__(self, *, root: Path, work: BriefWork) -> None:
        self._root = root
        self._work = work
        # Changes happen in the order of the calls: a tombstone is never overtaken by the
        # record of the create that it ends.
        self._turn = asyncio.Lock()

    async def put(self, record: SandboxRecord) -> None:
        try:
            async with self._turn:
                await self._work.run(lambda: self._put(record))
        except OSError as error:
            log.error("a sandbox record cannot be written", extra={"cause": error.strerror})
            raise StorageUnavailable from error

    async def remove(self, sandbox_id: str) -> None:
        try:
            async with self._turn:
                await self._work.run(lambda: self._path(sandbox_id).unlink(missing_ok=True))
        except OSError as error:
            log.error("a sandbox record cannot be removed", extra={"cause": error.strerror})
            raise StorageUnavailable from error

    async def all(self) -> Sequence[SandboxRecord]:
        return await self._work.run_apart(self._all)

    def _put(self, record: SandboxRecord) -> None:
        released_at = record.released_at.isoformat() if record.released_at else None
        content = {
            "tenant": record.tenant,
            "released_at": released_at,
            "fence": [record.fence.epoch, record.fence.counter],
        }
        path = self._path(record.sandbox_id)
        draft = path.with_suffix(".draft")
        try:
            draft.write_text(json.dumps(content))
        except FileNotFoundError:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_text(json.dumps(content))
        draft.rename(path)

    def _all(self) -> list[SandboxRecord]:
        records: list[SandboxRecord] = []
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._root.iterdir()):
            try:
                fields = json.loads(path.read_bytes())
                released_at = fields["released_at"]
                record = SandboxRecord(
                    sandbox_id=path.stem,
                    tenant=str(fields["tenant"]),
                    released_at=datetime.fromisoformat(released_at) if released_at else None,
                    fence=Fence(*(int(each) for each in fields.get("fence", ()))),
                )
            except (OSError, ValueError, KeyError, TypeError):
                record = None
            if record is None or path.suffix != _SUFFIX or not is_id("sbx", path.stem):
                with suppress(OSError):
                    path.unlink()
            else:
                records.append(record)
        return records

    def _path(self, sandbox_id: str) -> Path:
        return self._root / f"{sandbox_id}{_SUFFIX}"


class HostState:
    """What the worker keeps about its host: a lock against a second worker, an epoch, a key for
    ids.
    """

    def __init__(self, *, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        self._root = root
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise HostBusy from None

    def next_epoch(self) -> int:
        """Count the lives of this host's worker, from 1."""
        path = self._root / "epoch"
        epoch = int(path.read_text()) + 1 if path.exists() else 1
        self._replace(path, str(epoch).encode())
        return epoch

    def id_key(self) -> bytes:
        """Return 32 random bytes that stay the same on this disk; ids are derived with them."""
        path = self._root / "id_key"
        if not path.exists():
            self._replace(path, secrets.token_bytes(32))
        return path.read_bytes()

    def process_tenant(self) -> str | None:
        """Return whose programs run without walls here; None while nobody's do, and an empty name,
        which no tenant has, for what cannot be read.
        """
        try:
            return (self._root / "process_tenant").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return ""

    def keep_process_tenant(self, tenant: str) -> str:
        """Record a tenant for good unless there is one, and return who is recorded: two that come
        at once get the same answer. Raises OSError. Blocking.
        """
        path = self._root / "process_tenant"
        draft = self._root / f"process_tenant.{secrets.token_hex(8)}.draft"
        try:
            self._write(draft, tenant.encode())
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        directory = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return path.read_text(encoding="utf-8")

    def close(self) -> None:
        """Let another worker have the host."""
        os.close(self._lock)

    def _replace(self, path: Path, content: bytes) -> None:
        draft = path.with_suffix(".draft")
        self._write(draft, content)
        draft.rename(path)

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())


class SoleTenant:
    """The one tenant whose programs run without walls on this host: the first one served.

    It is on disk before anything runs, so that it is the same one after every restart.
    """

    def __init__(self, *, state: HostState, work: BriefWork) -> None:
        self._state = state
        self._work = work
        self._name = state.process_tenant()
        self._turn = asyncio.Lock()

    @property
    def name(self) -> str:
        """Who it is; empty while nobody is."""
        return self._name or ""

    async def claim(self, tenant: str) -> None:
        """Be that tenant, or have been; raises HostReserved and StorageUnavailable."""
        async with self._turn:
            if self._name is None:
                try:
                    self._name = await self._work.run_apart(
                        lambda: self._state.keep_process_tenant(tenant)
                    )
                except OSError as error:
                    log.error("the tenant of processes cannot be recorded")
                    raise StorageUnavailable from error
                log.warning("sandboxes without walls are one tenant's", extra={"tenant": self.name})
        if self._name != tenant:
            raise HostReserved
