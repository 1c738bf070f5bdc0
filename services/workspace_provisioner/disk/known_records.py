"""Records as they were last seen on the disk."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence

from workspace_provisioner.disk.workspace_records import Record
from workspace_provisioner.workspaces import State, Workspace


class KnownRecords:
    """Spares reading what has not changed, and counts; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: dict[str, bytes] = {}
        self._records: dict[str, Record] = {}
        self._ids: list[str] = []
        self._provisioned: Counter[str] = Counter()

    def get(self, workspace_id: str) -> Record | None:
        """Return a record."""
        return self._records.get(workspace_id)

    def content(self, workspace_id: str) -> bytes | None:
        """Return the bytes that a record was read from, or written as."""
        return self._contents.get(workspace_id)

    def ids(self) -> frozenset[str]:
        """Return the ids of all workspaces."""
        with self._lock:
            return frozenset(self._ids)

    def all(self) -> Sequence[Workspace]:
        """Return all workspaces, in the order of their ids."""
        with self._lock:
            return [self._records[each].workspace for each in self._ids]

    def provisioned(self, tenant: str) -> int:
        """Count the provisioned workspaces of a tenant, or of all."""
        with self._lock:
            return self._provisioned[tenant] if tenant else self._provisioned.total()

    def remember(self, record: Record, content: bytes) -> None:
        """Take a record for the one on the disk."""
        workspace_id = record.workspace.workspace_id
        with self._lock:
            before = self._records.get(workspace_id)
            if before is None:
                insort(self._ids, workspace_id)
            else:
                self._count(before, -1)
            self._count(record, 1)
            self._records[workspace_id] = record
            self._contents[workspace_id] = content

    def forget(self, workspace_id: str) -> None:
        """Take a record for gone."""
        with self._lock:
            before = self._records.pop(workspace_id, None)
            if before is not None:
                del self._contents[workspace_id]
                del self._ids[bisect_left(self._ids, workspace_id)]
                self._count(before, -1)

    def _count(self, record: Record, difference: int) -> None:
        if record.workspace.state is State.PROVISIONED:
            self._provisioned[record.workspace.tenant] += difference
