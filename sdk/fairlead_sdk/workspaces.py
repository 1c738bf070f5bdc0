"""Workspaces through the front door: make one of a repository, copy, rename, hold and give back."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor, make_idempotency_key
from fairlead_sdk.errors import HostLacksObjects
from fairlead_sdk.json_form import JsonObject, JsonValue
from fairlead_sdk.known_tags import learn_sent
from fairlead_sdk.repository import Repository, read_repository
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.source import known_tips, source_document
from fairlead_sdk.uploads import UploadProgress, answer_miss
from fairlead_sdk.workspace_records import WorkspaceRecord

_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRequest:
    """What a workspace is to be; a `branch` that is named is claimed, `lease` is in seconds.

    With `from_` = "trunk" the upstream's tip is wanted in place of the local commit.
    """

    name: str = ""
    branch: str = ""
    from_: str = ""
    submodules: bool = False
    lease: float | None = None

    def document(self, repository: Repository, *, url: str) -> JsonObject:
        """Give the JSON form for a repository and the front door at `url`; it may run git."""
        source = source_document(repository, url=url)
        if self.from_ or self.submodules:
            from fairlead_sdk.origin import origin_fields

            source |= origin_fields(repository.top, from_=self.from_, submodules=self.submodules)
        document: JsonObject = {"source": source}
        if self.name:
            document["name"] = self.name
        if self.branch:
            document |= {"branch": self.branch, "claim_branch": True}
        if self.lease is not None:
            document["lease"] = self.lease
        return document


class AsyncWorkspaces:
    """The caller's workspaces."""

    def __init__(self, *, door: FrontDoor) -> None:
        self._door = door

    async def create(
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
        """Make a workspace of the repository around `path`, uncommitted changes included unless
        `clean` or `from_`; what the host lacks is sent.

        Raises `RepositoryError`, `WorkspaceExists` when the name is taken, `BranchInUse` when
        another workspace claimed the branch, `NameInvalid`, `QuotaExceeded` and what else the front
        door refuses.
        """
        request = WorkspaceRequest(
            name=name, branch=branch, from_=from_, submodules=submodules, lease=lease
        )
        scratch = Scratch()
        try:
            repository = await asyncio.to_thread(
                read_repository,
                path,
                clean=clean or bool(from_),
                submodules=submodules,
                scratch=scratch,
            )
            return await self.materialize(repository, request, on_upload=on_upload)
        finally:
            await asyncio.to_thread(scratch.close)

    async def materialize(
        self,
        repository: Repository,
        request: WorkspaceRequest,
        *,
        key: str = "",
        on_miss: Callable[[str], None] | None = None,
        on_upload: UploadProgress | None = None,
    ) -> WorkspaceRecord:
        """Make a workspace of a repository that was read; `key` is the idempotency key, made up
        when empty. `on_miss` hears the reason of a miss before it is answered.
        """
        key = key or make_idempotency_key()
        body = await asyncio.to_thread(request.document, repository, url=self._door.url)
        try:
            answer = await self._door.post("/v1/workspaces", body, key=key)
        except HostLacksObjects as miss:
            if not miss.upload_token:
                raise
            if on_miss is not None:
                on_miss(miss.reason)
            answer = await answer_miss(
                self._door,
                repository,
                token=miss.upload_token,
                tips=miss.tips,
                on_upload=on_upload,
            )
        else:
            if not request.from_:
                await asyncio.to_thread(self._learn, repository, body, answer)
            return WorkspaceRecord.read(answer)
        made = form.child(answer, "workspace")
        if made is None:
            made = await self._door.post("/v1/workspaces", body, key=key)
        return WorkspaceRecord.read(made)

    def _learn(self, repository: Repository, body: JsonObject, made: JsonObject) -> None:
        known_tips(repository, url=self._door.url).learn([repository.commit])
        if not form.flag(made, "tags_left_out"):
            learn_sent(repository, form.child(body, "source") or {}, url=self._door.url)

    async def get(self, workspace_id: str, *, count_changes: bool = False) -> WorkspaceRecord:
        """Read a workspace; with `count_changes` the files are counted that have changed in it."""
        params = {"count_changes": "true"} if count_changes else None
        return WorkspaceRecord.read(await self._door.get(_path(workspace_id), params))

    async def list(
        self, *, limit: int = 100, on_unanswered: Callable[[str], None] | None = None
    ) -> tuple[WorkspaceRecord, ...]:
        """List workspaces, by id; `on_unanswered` hears the id of each host that did not answer,
        whose workspaces are not in the list.
        """
        found: builtins.list[WorkspaceRecord] = []
        silent: dict[str, None] = {}
        token = ""
        while True:
            params = {"page_size": str(min(_PAGE, limit - len(found)))}
            if token:
                params["page_token"] = token
            page = await self._door.get("/v1/workspaces", params)
            found += (WorkspaceRecord.read(each) for each in form.children(page, "workspaces"))
            silent.update(dict.fromkeys(form.texts(page, "unanswered_hosts")))
            token = form.text(page, "next_page_token")
            if not token or len(found) >= limit:
                break
        if on_unanswered is not None:
            for host_id in silent:
                on_unanswered(host_id)
        return tuple(found[:limit])

    async def fork(
        self, workspace_id: str, *, name: str = "", branch: str = "", lease: float | None = None
    ) -> WorkspaceRecord:
        """Copy a workspace, uncommitted changes included; on a branch of its own when one is named.

        Raises `WorkspaceNotFound`, `WorkspaceExists`, `BranchInUse`, `NameInvalid`.
        """
        body: dict[str, JsonValue] = {}
        if name:
            body["name"] = name
        if branch:
            body["branch"] = branch
        if lease is not None:
            body["lease"] = lease
        return WorkspaceRecord.read(await self._door.post(f"{_path(workspace_id)}/fork", body))

    async def rename(self, workspace_id: str, name: str) -> WorkspaceRecord:
        """Give a workspace another name, or none; its id, files and branch stay."""
        return WorkspaceRecord.read(
            await self._door.post(f"{_path(workspace_id)}/rename", {"name": name})
        )

    async def renew(self, workspace_id: str, *, lease: float | None = None) -> WorkspaceRecord:
        """Hold it for `lease` seconds from now, 30 minutes when absent."""
        body: dict[str, JsonValue] = {} if lease is None else {"lease": lease}
        return WorkspaceRecord.read(await self._door.post(f"{_path(workspace_id)}/renew", body))

    async def delete(self, workspace_id: str, *, force: bool = False) -> bool:
        """Give a workspace back; says whether this call did, and not an earlier one.

        Raises `WorkspaceDirty` or `WorkspaceUnpushed` where work would be lost, unless `force`.
        """
        params = {"force": "true"} if force else None
        answer = await self._door.delete(_path(workspace_id), params)
        return form.flag(answer, "released")


def _path(workspace_id: str) -> str:
    return f"/v1/workspaces/{quote(workspace_id, safe='')}"
