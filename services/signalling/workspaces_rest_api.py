"""Routes of workspaces: JSON in, keeper, JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Protocol

from fastapi import APIRouter, Query, Response

from signalling.caller import current_tenant
from signalling.launches_rest_api import RenewBody
from signalling.problems import problem_documents
from signalling.rest_parameters import (
    IdempotencyKey,
    IdempotencyKeysDiffer,
    PageSize,
    PageToken,
)
from signalling.workspace import ForkOrder, OpenMiss, Workspace, WorkspaceOrder
from signalling.workspace_bodies import (
    ForkBody,
    MaterializeBody,
    ReleasedAnswer,
    RenameBody,
    WorkspaceAnswer,
    WorkspacePage,
)
from signalling.workspace_errors import WorkspaceMissed

_MADE: dict[int | str, dict[str, object]] = {
    201: {"headers": {"Location": {"schema": {"type": "string"}}}}
}


class Workspaces(Protocol):
    """Workspaces from the caller's side."""

    async def materialize(self, tenant: str, order: WorkspaceOrder) -> Workspace | OpenMiss:
        """Check a source out, or say what is lacking."""
        ...

    async def get(
        self, tenant: str, workspace_id: str, *, count_changes: bool = False
    ) -> Workspace:
        """Return a workspace."""
        ...

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Workspace], str, Sequence[str]]:
        """Return a page of workspaces, the token of the next one, and the hosts without answer."""
        ...

    async def fork(self, tenant: str, workspace_id: str, order: ForkOrder) -> Workspace:
        """Make a copy."""
        ...

    async def rename(self, tenant: str, workspace_id: str, name: str) -> Workspace:
        """Give it another name."""
        ...

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta | None) -> Workspace:
        """Move the end of the lease."""
        ...

    async def release(self, tenant: str, workspace_id: str, *, force: bool) -> bool:
        """Give it back."""
        ...


def workspaces_router(workspaces: Workspaces) -> APIRouter:
    """Return the routes of workspaces."""
    router = APIRouter(prefix="/v1/workspaces", tags=["workspaces"])

    def made(workspace: Workspace, response: Response) -> Workspace:
        response.headers["Location"] = f"/v1/workspaces/{workspace.workspace_id}"
        return workspace

    @router.post(
        "",
        status_code=201,
        response_model=WorkspaceAnswer,
        responses={**_MADE, **problem_documents(404, 409, 413)},
    )
    async def materialize_workspace(
        body: MaterializeBody, response: Response, key: IdempotencyKey = None
    ) -> Workspace:
        """Check a source out. 409 with `wanted`, `tips` and an `upload_token` when the host lacks
        objects: send them to `/v1/snapshots?upload=TOKEN`, which answers with the workspace.
        """
        if None not in (key, body.idempotency_key) and key != body.idempotency_key:
            raise IdempotencyKeysDiffer
        chosen = key if key is not None else body.idempotency_key
        outcome = await workspaces.materialize(current_tenant(), body.value(chosen or ""))
        if isinstance(outcome, OpenMiss):
            raise WorkspaceMissed(outcome)
        return made(outcome, response)

    @router.get("", response_model=WorkspacePage, responses=problem_documents())
    async def list_workspaces(page_size: PageSize = 0, page_token: PageToken = "") -> WorkspacePage:
        """List the caller's workspaces, by id, of every host that answers."""
        found, token, unanswered = await workspaces.list(current_tenant(), page_size, page_token)
        return WorkspacePage(
            workspaces=[WorkspaceAnswer.model_validate(each) for each in found],
            next_page_token=token,
            unanswered_hosts=list(unanswered),
        )

    @router.get("/{workspace_id}", response_model=WorkspaceAnswer, responses=problem_documents(404))
    async def get_workspace(
        workspace_id: str,
        count_changes: Annotated[bool, Query(description="Count the changed files.")] = False,
    ) -> Workspace:
        """Return a workspace, also for a day after its release."""
        return await workspaces.get(current_tenant(), workspace_id, count_changes=count_changes)

    @router.post(
        "/{workspace_id}/fork",
        status_code=201,
        response_model=WorkspaceAnswer,
        responses={**_MADE, **problem_documents(404, 409, 413)},
    )
    async def fork_workspace(
        workspace_id: str,
        response: Response,
        body: ForkBody | None = None,
        key: IdempotencyKey = None,
    ) -> Workspace:
        """Copy a workspace: commit, branches and uncommitted changes."""
        order = (body or ForkBody()).value(key or "")
        return made(await workspaces.fork(current_tenant(), workspace_id, order), response)

    @router.post(
        "/{workspace_id}/rename",
        response_model=WorkspaceAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def rename_workspace(
        workspace_id: str, body: RenameBody, key: IdempotencyKey = None
    ) -> Workspace:
        """Give a workspace another name; its id, files and branch stay."""
        return await workspaces.rename(current_tenant(), workspace_id, body.name)

    @router.post(
        "/{workspace_id}/renew",
        response_model=WorkspaceAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def renew_workspace(
        workspace_id: str, body: RenewBody | None = None, key: IdempotencyKey = None
    ) -> Workspace:
        """Move the end of the lease."""
        lease = None if body is None or body.lease is None else timedelta(seconds=body.lease)
        return await workspaces.renew(current_tenant(), workspace_id, lease)

    @router.delete(
        "/{workspace_id}",
        response_model=ReleasedAnswer,
        responses=problem_documents(404, 409),
    )
    async def release_workspace(
        workspace_id: str,
        force: Annotated[bool, Query(description="Also when work is lost.")] = False,
        key: IdempotencyKey = None,
    ) -> ReleasedAnswer:
        """Give a workspace back. Without `force`, 409 `workspace_dirty` or `workspace_unpushed`
        where work would be lost; giving it back again changes nothing.
        """
        released = await workspaces.release(current_tenant(), workspace_id, force=force)
        return ReleasedAnswer(released=released)

    return router
