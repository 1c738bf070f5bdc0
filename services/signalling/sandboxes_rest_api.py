"""Routes of sandboxes: JSON in, keeper, JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from fastapi import APIRouter, Response

from signalling.caller import current_tenant
from signalling.launches_rest_api import RenewBody
from signalling.problems import problem_documents
from signalling.rest_parameters import (
    IdempotencyKey,
    IdempotencyKeysDiffer,
    PageSize,
    PageToken,
)
from signalling.sandbox import NetworkPolicy, NetworkView, Sandbox, SandboxOrder
from signalling.sandbox_bodies import (
    NetworkBody,
    NetworkViewAnswer,
    SandboxAnswer,
    SandboxBody,
    SandboxPage,
)
from signalling.workspace_bodies import ReleasedAnswer


class Sandboxes(Protocol):
    """Sandboxes from the caller's side."""

    async def create(self, tenant: str, order: SandboxOrder) -> Sandbox:
        """Make a sandbox."""
        ...

    async def get(self, tenant: str, sandbox_id: str) -> Sandbox:
        """Return a sandbox."""
        ...

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Sandbox], str, Sequence[str]]:
        """Return a page of sandboxes, the token of the next one, and the hosts without answer."""
        ...

    async def renew(self, tenant: str, sandbox_id: str, lease: timedelta | None) -> Sandbox:
        """Move the end of the lease."""
        ...

    async def set_network(self, tenant: str, sandbox_id: str, network: NetworkPolicy) -> Sandbox:
        """Let another network policy hold."""
        ...

    async def network(self, tenant: str, sandbox_id: str) -> NetworkView:
        """Return what it reaches, and what it lately tried to reach."""
        ...

    async def release(self, tenant: str, sandbox_id: str) -> bool:
        """Give it back."""
        ...


def sandboxes_router(sandboxes: Sandboxes) -> APIRouter:
    """Return the routes of sandboxes."""
    router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])

    @router.post(
        "",
        status_code=201,
        response_model=SandboxAnswer,
        responses={
            201: {"headers": {"Location": {"schema": {"type": "string"}}}},
            **problem_documents(404, 409, 413),
        },
    )
    async def create_sandbox(
        response: Response, body: SandboxBody | None = None, key: IdempotencyKey = None
    ) -> Sandbox:
        """Make a sandbox that needs no launch. What is demanded is had or refused; with a
        `workspace_id` it is bound, or nothing of it stays.
        """
        asked = body or SandboxBody()
        if None not in (key, asked.idempotency_key) and key != asked.idempotency_key:
            raise IdempotencyKeysDiffer
        chosen = key if key is not None else asked.idempotency_key
        made = await sandboxes.create(current_tenant(), asked.value(chosen or ""))
        response.headers["Location"] = f"/v1/sandboxes/{made.sandbox_id}"
        return made

    @router.get("", response_model=SandboxPage, responses=problem_documents())
    async def list_sandboxes(page_size: PageSize = 0, page_token: PageToken = "") -> SandboxPage:
        """List the caller's sandboxes, also those of launches, of every host that answers."""
        found, token, unanswered = await sandboxes.list(current_tenant(), page_size, page_token)
        return SandboxPage(
            sandboxes=[SandboxAnswer.model_validate(each) for each in found],
            next_page_token=token,
            unanswered_hosts=list(unanswered),
        )

    @router.get("/{sandbox_id}", response_model=SandboxAnswer, responses=problem_documents(404))
    async def get_sandbox(sandbox_id: str) -> Sandbox:
        """Return a sandbox with its walls, those that stand and those that are missing."""
        return await sandboxes.get(current_tenant(), sandbox_id)

    @router.post(
        "/{sandbox_id}/renew",
        response_model=SandboxAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def renew_sandbox(
        sandbox_id: str, body: RenewBody | None = None, key: IdempotencyKey = None
    ) -> Sandbox:
        """Move the end of the lease; 409 `sandbox_in_use` for a launch's."""
        lease = None if body is None or body.lease is None else timedelta(seconds=body.lease)
        return await sandboxes.renew(current_tenant(), sandbox_id, lease)

    @router.get(
        "/{sandbox_id}/network",
        response_model=NetworkViewAnswer,
        responses=problem_documents(404),
    )
    async def get_network(sandbox_id: str) -> NetworkView:
        """Return the network policy in force, and the last decisions about connections: what was
        allowed, and why something was refused.
        """
        return await sandboxes.network(current_tenant(), sandbox_id)

    @router.put(
        "/{sandbox_id}/network",
        response_model=SandboxAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def set_network(
        sandbox_id: str, body: NetworkBody, key: IdempotencyKey = None
    ) -> Sandbox:
        """Let another network policy hold from now on; connections that it does not allow are cut.
        409 `network_unavailable` for one that the sandbox cannot have.
        """
        return await sandboxes.set_network(current_tenant(), sandbox_id, body.value())

    @router.delete(
        "/{sandbox_id}",
        response_model=ReleasedAnswer,
        responses=problem_documents(404, 409),
    )
    async def release_sandbox(sandbox_id: str, key: IdempotencyKey = None) -> ReleasedAnswer:
        """Give a sandbox back; it answers when no process of it is left. 409 `sandbox_in_use` for
        a launch's.
        """
        return ReleasedAnswer(released=await sandboxes.release(current_tenant(), sandbox_id))

    return router
