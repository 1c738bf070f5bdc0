"""Workspaces for the blocking client, call by call."""

from __future__ import annotations

import os
from collections.abc import Callable

from fairlead_sdk.loop_thread import LoopThread
from fairlead_sdk.uploads import UploadProgress
from fairlead_sdk.workspace_records import WorkspaceRecord
from fairlead_sdk.workspaces import AsyncWorkspaces


class Workspaces:
    """The caller's workspaces; see `AsyncWorkspaces` for what each call raises."""

    def __init__(self, *, loop: LoopThread, workspaces: AsyncWorkspaces) -> None:
        self._loop = loop
        self._workspaces = workspaces

    def create(
        self,
        path: str | os.PathLike[str] = ".",
        *,
        name: str = "",
        branch: str = "",
        from_: str = "",
        clean: bool = False,
        submodules: bool = False,
        lease: float | None = None,
        on_upload: UploadProgress | None = None,
    ) -> WorkspaceRecord:
        """Make a workspace of the repository around `path`; see `AsyncWorkspaces.create`."""
        return self._loop.run(
            self._workspaces.create(
                path,
                name=name,
                branch=branch,
                from_=from_,
                clean=clean,
                submodules=submodules,
                lease=lease,
                on_upload=on_upload,
            )
        )

    def get(self, workspace_id: str, *, count_changes: bool = False) -> WorkspaceRecord:
        """Read a workspace; with `count_changes` the files are counted that have changed in it."""
        return self._loop.run(self._workspaces.get(workspace_id, count_changes=count_changes))

    def list(
        self, *, limit: int = 100, on_unanswered: Callable[[str], None] | None = None
    ) -> tuple[WorkspaceRecord, ...]:
        """List workspaces, by id; `on_unanswered` hears of each host that did not answer."""
        return self._loop.run(self._workspaces.list(limit=limit, on_unanswered=on_unanswered))

    def fork(
        self, workspace_id: str, *, name: str = "", branch: str = "", lease: float | None = None
    ) -> WorkspaceRecord:
        """Copy a workspace, uncommitted changes included."""
        return self._loop.run(
            self._workspaces.fork(workspace_id, name=name, branch=branch, lease=lease)
        )

    def rename(self, workspace_id: str, name: str) -> WorkspaceRecord:
        """Give a workspace another name, or none."""
        return self._loop.run(self._workspaces.rename(workspace_id, name))

    def renew(self, workspace_id: str, *, lease: float | None = None) -> WorkspaceRecord:
        """Hold it for `lease` seconds from now, 30 minutes when absent."""
        return self._loop.run(self._workspaces.renew(workspace_id, lease=lease))

    def delete(self, workspace_id: str, *, force: bool = False) -> bool:
        """Give a workspace back; see `AsyncWorkspaces.delete`."""
        return self._loop.run(self._workspaces.delete(workspace_id, force=force))
