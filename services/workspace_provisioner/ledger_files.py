"""The records of workspaces: one JSON file each, all of them in memory.

They survive the process, but are not forced to the disk, which took longer than all else beside
git: a power cut ends the sandboxes too, and what it leaves without a readable record is taken away.
"""

from __future__ import annotations

import json
import logging
from bisect import insort
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from workspace_provisioner.file_layout import write_whole
from workspace_provisioner.file_work import FileWork
from workspace_provisioner.workspaces import State, Workspace

log = logging.getLogger(__name__)


class WorkspaceRecord(TypedDict):
    """A workspace's record on disk."""

    workspace_id: str
    tenant: str
    state: str
    project: str
    object_format: str
    commit: str
    branch: str
    changes_tree: str
    has_submodules: bool
    created_at: str
    expires_at: str
    released_at: str | None


def as_record(workspace: Workspace) -> WorkspaceRecord:
    """Return a workspace as its record."""
    released_at = workspace.released_at
    return WorkspaceRecord(
        workspace_id=workspace.workspace_id,
        tenant=workspace.tenant,
        state=workspace.state,
        project=workspace.project,
        object_format=workspace.object_format,
        commit=workspace.commit,
        branch=workspace.branch,
        changes_tree=workspace.changes_tree,
        has_submodules=workspace.has_submodules,
        created_at=workspace.created_at.isoformat(),
        expires_at=workspace.expires_at.isoformat(),
        released_at=released_at.isoformat() if released_at else None,
    )


def from_record(record: WorkspaceRecord) -> Workspace:
    """Return the workspace of a record; raises KeyError, TypeError or ValueError for another
    form.
    """
    released_at = record["released_at"]
    return Workspace(
        workspace_id=record["workspace_id"],
        tenant=record["tenant"],
        state=State(record["state"]),
        project=record["project"],
        object_format=record["object_format"],
        commit=record["commit"],
        branch=record["branch"],
        changes_tree=record["changes_tree"],
        has_submodules=record["has_submodules"],
        created_at=datetime.fromisoformat(record["created_at"]),
        expires_at=datetime.fromisoformat(record["expires_at"]),
        released_at=datetime.fromisoformat(released_at) if released_at else None,
    )


class LedgerFiles:
    """Keeps the records below `directory`; call `load` before anything else."""

    def __init__(self, *, directory: Path, files: FileWork) -> None:
        self._directory = directory
        self._files = files
        self._records: dict[str, Workspace] = {}
        self._ids: list[str] = []
        self._provisioned: set[str] = set()

    async def load(self) -> None:
        """Read every record; one that cannot be read is dropped, as its workspace is then taken
        away.
        """
        for each in await self._files.run(_read, self._directory):
            self._remember(each)

    def get(self, workspace_id: str) -> Workspace | None:
        return self._records.get(workspace_id)

    def provisioned(self) -> int:
        return len(self._provisioned)

    def all(self) -> Iterator[Workspace]:
        return (self._records[each] for each in self._ids)

    async def put(self, workspace: Workspace) -> None:
        before = self._records.get(workspace.workspace_id)
        self._remember(workspace)
        content = json.dumps(as_record(workspace)).encode()
        try:
            await self._files.run(write_whole, self._path(workspace.workspace_id), content)
        except OSError:
            self._forget(workspace.workspace_id)
            if before is not None:
                self._remember(before)
            raise

    async def remove(self, workspace_id: str) -> None:
        await self._files.run(self._path(workspace_id).unlink, missing_ok=True)
        self._forget(workspace_id)

    def _path(self, workspace_id: str) -> Path:
        return self._directory / f"{workspace_id}.json"

    def _remember(self, workspace: Workspace) -> None:
        if workspace.workspace_id not in self._records:
            insort(self._ids, workspace.workspace_id)
        self._records[workspace.workspace_id] = workspace
        if workspace.state is State.PROVISIONED:
            self._provisioned.add(workspace.workspace_id)
        else:
            self._provisioned.discard(workspace.workspace_id)

    def _forget(self, workspace_id: str) -> None:
        if self._records.pop(workspace_id, None) is not None:
            self._ids.remove(workspace_id)
            self._provisioned.discard(workspace_id)


def _read(directory: Path) -> list[Workspace]:
    found = []
    for path in directory.iterdir():
        if path.suffix != ".json":
            path.unlink()
            continue
        try:
            found.append(from_record(json.loads(path.read_bytes())))
        except (ValueError, KeyError, TypeError):
            log.warning("record unreadable", extra={"record": path.name})
            path.unlink()
    return found
