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
from signalling.caller import current_tenant
from signalling.problems import problem_documents
from signalling.rest_bodies import Answer, Body
from signalling.rest_parameters import IdempotencyKey
from signalling.snapshot import Snapshot, Tip

PACK_TYPE = "application/x-fairlead-pack"
UPLOAD_PATH = "/v1/snapshots"
_CHUNK_BYTES = 1024 * 1024
_FIRST_LINE_BYTES = 1024 * 1024


class Uploads(Protocol):
    """Uploads from the caller's side."""

    async def accept(
        self, tenant: str, token: str, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
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
    ) -> Snapshot:
        """Take a thin pack for the launch that gave the token; it answers when the snapshot is
        durable.
        """
        async with aclosing(_body(request)) as body:
            tips, rest = await _first_line(body)
            return await uploads.accept(current_tenant(), upload, tips, _chunks(rest, body))

    return router


async def _body(request: Request) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in request.stream():
            yield piece
    except ClientDisconnect as error:
        raise UploadInterrupted from error


async def _first_line(body: AsyncIterator[bytes]) -> tuple[tuple[Tip, ...], bytes]:
    """Read the tips; returns them with what was read of the pack already."""
    read = bytearray()
    async for piece in body:
        read += piece
        line, newline, rest = bytes(read).partition(b"\n")
        if newline:
            return _tips(line), rest
        if len(read) > _FIRST_LINE_BYTES:
            raise UploadInvalid("The first line of the upload is too long.")
    raise UploadInvalid("The upload ends before its first line does.")


def _tips(line: bytes) -> tuple[Tip, ...]:
    try:
        found = TipsBody.model_validate_json(line)
    except ValidationError as error:
        raise UploadInvalid("The first line of the upload is not a list of tips.") from error
    return tuple(Tip(ref=tip.ref, commit=tip.commit) for tip in found.tips)


async def _chunks(first: bytes, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for start in range(0, len(first), _CHUNK_BYTES):
        yield first[start : start + _CHUNK_BYTES]
    async for piece in body:
        for start in range(0, len(piece), _CHUNK_BYTES):
            yield piece[start : start + _CHUNK_BYTES]
