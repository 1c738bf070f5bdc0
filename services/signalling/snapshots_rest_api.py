"""The upload of a snapshot: one line of JSON with the tips, then the raw pack, streamed as it
comes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Protocol

from fastapi import APIRouter, Query, Request
from pydantic import Field, ValidationError
from starlette.requests import ClientDisconnect

from chassis.errors import InvalidArgument
from fairlead_limits.table import UPLOAD_HEAD_BYTES
from signalling.caller import current_tenant
from signalling.problems import problem_documents
from signalling.rest_parameters import IdempotencyKey
from signalling.rest_types import Answer, Body
from signalling.snapshot import Tip
from signalling.workspace import Imported, Workspace
from signalling.workspace_bodies import WorkspaceAnswer

PACK_TYPE = "application/x-fairlead-pack"
UPLOAD_PATH = "/v1/snapshots"
_CHUNK_BYTES = 1024 * 1024


class Uploads(Protocol):
    """Uploads from the caller's side."""

    async def accept(
        self,
        tenant: str,
        token: str,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool = False,
    ) -> Imported:
        """Stream a pack to the host that missed it."""
        ...


class UploadInvalid(InvalidArgument):
    """An upload does not begin with its line of tips."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            reason="upload_invalid",
            remedy='Send {"tips": [{"ref": …, "commit": …}]} and a newline, then the pack.',
        )


class UploadInterrupted(InvalidArgument):
    """The client left before the upload was whole; nobody reads this but the log."""

    def __init__(self) -> None:
        super().__init__(
            "The upload ended too early.",
            reason="upload_interrupted",
            remedy="Upload again with the same token.",
        )


class TipBody(Body):
    """A ref and the commit that it names."""

    ref: str
    commit: str


class TipsBody(Body):
    """First line of an upload."""

    tips: list[TipBody]
    tips_only: bool = False


class TipAnswer(Answer):
    """A ref and the commit that it names."""

    ref: str
    commit: str


class SnapshotAnswer(Answer):
    """A durable, connected set of commits on one host."""

    snapshot_id: str
    project: str
    host_id: str
    digest: str
    tips: list[TipAnswer]
    created_at: datetime
    received_bytes: int = Field(description="Size of the pack that was received.")
    workspace: WorkspaceAnswer | None = Field(
        default=None, description="The workspace that was lacking these objects, once it is made."
    )


def snapshots_router(uploads: Uploads) -> APIRouter:
    """Return the route of uploads."""
    router = APIRouter(tags=["snapshots"])

    @router.post(
        UPLOAD_PATH,
        status_code=201,
        response_model=SnapshotAnswer,
        responses=problem_documents(404, 409, 413),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {PACK_TYPE: {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    )
    async def upload_snapshot(
        request: Request,
        upload: Annotated[str, Query(description="Token of the miss.", max_length=512)],
        key: IdempotencyKey = None,
    ) -> SnapshotAnswer:
        """Take a thin pack for the launch or workspace that gave the token; it answers when the
        snapshot is durable and the workspace is made. The first line is `{"tips": [...]}`; with
        `"tips_only": true` the history of the tips follows in one more upload.
        """
        async with aclosing(_body(request)) as body:
            first, rest = await _first_line(body)
            imported = await uploads.accept(
                current_tenant(),
                upload,
                tuple(Tip(ref=tip.ref, commit=tip.commit) for tip in first.tips),
                _chunks(rest, body),
                tips_only=first.tips_only,
            )
        answer = SnapshotAnswer.model_validate(imported.snapshot)
        if isinstance(imported.made, Workspace):
            answer.workspace = WorkspaceAnswer.model_validate(imported.made)
        return answer

    return router


async def _body(request: Request) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in request.stream():
            yield piece
    except ClientDisconnect as error:
        raise UploadInterrupted from error


async def _first_line(body: AsyncIterator[bytes]) -> tuple[TipsBody, bytes]:
    """Read the first line; returns it with what was read of the pack already."""
    read = bytearray()
    async for piece in body:
        read += piece
        line, newline, rest = bytes(read).partition(b"\n")
        if newline:
            return _parsed(line), rest
        if len(read) > UPLOAD_HEAD_BYTES:
            raise UploadInvalid("The first line of the upload is too long.")
    raise UploadInvalid("The upload ends before its first line does.")


def _parsed(line: bytes) -> TipsBody:
    try:
        return TipsBody.model_validate_json(line)
    except ValidationError as error:
        raise UploadInvalid("The first line of the upload is not a list of tips.") from error


async def _chunks(first: bytes, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for start in range(0, len(first), _CHUNK_BYTES):
        yield first[start : start + _CHUNK_BYTES]
    async for piece in body:
        for start in range(0, len(piece), _CHUNK_BYTES):
            yield piece[start : start + _CHUNK_BYTES]
