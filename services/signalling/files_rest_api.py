"""Routes of files: a file's bytes as they are, trees as tar streams, and verbs as JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.convertors import register_url_convertor
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from chassis.errors import FairleadError
from signalling.caller import current_tenant
from signalling.edge_rest_api import drop_rest
from signalling.event_stream import EventStreams, Rendered
from signalling.file import FileStat, WatchFrame, WriteMode, WriteOrder
from signalling.file_errors import FileInterrupted, RangeUnsatisfiable
from signalling.file_ports import Files
from signalling.file_text import from_text, read_range, stat_json, watch_json
from signalling.problems import problem_documents, problem_response
from signalling.rest_parameters import AnyPath, IdempotencyKey, stream_documents
from signalling.rest_types import Body

CONTENT_TYPE = "application/octet-stream"
TAR_TYPE = "application/x-tar"
_PREFIX = "/v1/sandboxes/{sandbox_id}"
_FILE = f"{_PREFIX}/files/{{path:file}}"

FilePath = Annotated[str, Path(description="Path in the workspace, any byte percent-encoded.")]
PathText = Annotated[
    str,
    Field(
        description="Path in the workspace; % and bytes that are not UTF-8 are percent-encoded.",
        max_length=12_285,
    ),
]
_BINARY: dict[str, object] = {"schema": {"type": "string", "format": "binary"}}


class FileAnswer(BaseModel):
    """A file."""

    name: str = Field(description="Last name in lists, else the path that was asked for.")
    kind: str = Field(description="file, directory, link or other.")
    size_bytes: int
    permissions: int = Field(description="Permission bits.")
    modified_at: str = Field(description="RFC 3339, to the nanosecond.")
    target: str = Field(description="What a link names; empty for all others.")
    etag: str


class FilesAnswer(BaseModel):
    """A page of a directory."""

    files: list[FileAnswer]
    next_page_token: str


class TreeAnswer(BaseModel):
    """What a tar stream has brought."""

    entries: int
    content_bytes: int


class RemovedAnswer(BaseModel):
    """That something is gone."""

    removed: bool


class WatchLine(BaseModel):
    """One line of a watch: `started`, then changes and gaps, then exactly one `end`."""

    type: str = Field(
        description="started, created, modified, removed, moved, gap (list again) or end."
    )
    directories: int | None = None
    sequence: int | None = None
    path: str | None = None
    source: str | None = None
    directory: bool | None = None
    last_sequence: int | None = None
    reason: str | None = Field(default=None, description="released or removed.")


class StatBody(Body):
    """A file to describe."""

    path: PathText
    follow: bool = Field(default=True, description="Describe what a link names.")


class ListBody(Body):
    """A directory to list."""

    path: PathText = ""
    page_size: int = Field(default=0, json_schema_extra={"minimum": 0, "maximum": 1000})
    page_token: str = Field(default="", max_length=512)


class MoveBody(Body):
    """A file to rename."""

    source: PathText
    target: PathText
    overwrite: bool = False


class MakeBody(Body):
    """A directory to make."""

    path: PathText
    parents: bool = False


class WatchBody(Body):
    """A directory to watch."""

    path: PathText = ""
    recursive: bool = False


def files_router(files: Files, streams: EventStreams) -> APIRouter:
    """Return the routes of files."""
    router = APIRouter(tags=["files"])
    register_url_convertor("file", AnyPath())
    _add_content(router, files)
    _add_verbs(router, files)

    @router.post(
        f"{_PREFIX}/files:watch",
        response_class=Response,
        responses={
            **stream_documents("WatchLine", "Changes, the last line is the end."),
            **problem_documents(404, 409, 413, 429),
        },
    )
    async def watch_files(
        sandbox_id: str, body: WatchBody, request: Request, key: IdempotencyKey = None
    ) -> Response:
        """Stream what changes in a directory from now on, with `recursive` also below it."""
        path = from_text(body.path, field="path")
        found = await files.of(current_tenant(), sandbox_id)
        source = found.watch(path, recursive=body.recursive)
        return await streams.respond(source, _line, accept=request.headers.get("accept", ""))

    return router


def _add_content(router: APIRouter, files: Files) -> None:
    @router.get(
        _FILE,
        response_class=Response,
        responses={
            200: {
                "description": "The file, or with Accept: application/x-tar the tree.",
                "content": {CONTENT_TYPE: _BINARY, TAR_TYPE: _BINARY},
            },
            206: {"description": "The range.", "content": {CONTENT_TYPE: _BINARY}},
            **problem_documents(404, 409, 416, 429),
        },
    )
    async def read_file(
        sandbox_id: str,
        path: FilePath,
        request: Request,
        range_: Annotated[str | None, Header(alias="Range", description="One range.")] = None,
    ) -> Response:
        """Read a file or a range of it; with `Accept: application/x-tar` a file or a directory as
        a tar stream.
        """
        found = await files.of(current_tenant(), sandbox_id)
        if TAR_TYPE in request.headers.get("accept", ""):
            pieces = found.download(_path_of(request))
            await _begun(pieces)
            return _Content(pieces, media_type=TAR_TYPE)
        wanted = read_range(range_)
        frames = found.read(
            _path_of(request),
            offset=wanted.offset if wanted else 0,
            length=wanted.length if wanted else None,
        )
        stat = await _begun(frames)
        size = stat.size if isinstance(stat, FileStat) else 0
        etag = stat.etag if isinstance(stat, FileStat) else ""
        headers = {"ETag": f'"{etag}"', "Accept-Ranges": "bytes", "Cache-Control": "no-store"}
        start, end, status = 0, size, 200
        if wanted is not None:
            try:
                start, end = wanted.span(size)
            except RangeUnsatisfiable as error:
                await frames.aclose()
                return problem_response(error, {"Content-Range": f"bytes */{size}"})
            headers["Content-Range"], status = f"bytes {start}-{end - 1}/{size}", 206
        headers["Content-Length"] = str(end - start)
        return _Content(_bytes(frames), status=status, media_type=CONTENT_TYPE, headers=headers)

    @router.put(
        _FILE,
        response_model=FileAnswer | TreeAnswer,
        responses=problem_documents(404, 409, 412, 413, 429),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {CONTENT_TYPE: _BINARY, TAR_TYPE: _BINARY},
            }
        },
    )
    async def write_file(
        sandbox_id: str,
        path: FilePath,
        request: Request,
        offset: Annotated[
            int | None,
            Query(
                description="Write into the file from here on, rather than replace it.",
                json_schema_extra={"minimum": 0},
            ),
        ] = None,
        truncate: Annotated[bool, Query(description="With offset: cut it off after that.")] = False,
        permissions: Annotated[
            str | None, Query(description="Octal, such as 755.", pattern="^0?[0-7]{1,3}$")
        ] = None,
        parents: Annotated[bool, Query(description="Make directories above it.")] = False,
        if_match: Annotated[str | None, Header(description="Only if it has this ETag.")] = None,
        if_none_match: Annotated[
            str | None, Header(description="*: only if it is not there.", pattern=r"^\*$")
        ] = None,
        key: IdempotencyKey = None,
    ) -> dict[str, object]:
        """Replace or make a file, which is then seen whole or not at all; with `Content-Type:
        application/x-tar` unpack a tree below a directory.
        """
        mode = WriteMode.REPLACE if offset is None else WriteMode.RANGE
        order = WriteOrder(
            path=_path_of(request),
            mode=WriteMode.CREATE if if_none_match and offset is None else mode,
            offset=offset or 0,
            truncate=truncate,
            permissions=None if permissions is None else int(permissions, 8),
            parents=parents,
            if_match=(if_match or "").strip().removeprefix("W/").strip('"'),
        )
        body = _Upload(request)
        try:
            found = await files.of(current_tenant(), sandbox_id)
            if request.headers.get("content-type", "").startswith(TAR_TYPE):
                tree = await found.upload(order.path, parents=parents, content=body.pieces())
                return {"entries": tree.entries, "content_bytes": tree.content_bytes}
            return stat_json(await found.write(order, body.pieces()))
        except FairleadError:
            await body.drop_rest()
            raise

    @router.delete(_FILE, response_model=RemovedAnswer, responses=problem_documents(404, 409, 429))
    async def remove_file(
        sandbox_id: str,
        path: FilePath,
        request: Request,
        recursive: Annotated[bool, Query(description="A directory with what is in it.")] = False,
        key: IdempotencyKey = None,
    ) -> RemovedAnswer:
        """Remove a file, a link itself, or a directory."""
        found = await files.of(current_tenant(), sandbox_id)
        await found.remove(_path_of(request), recursive=recursive)
        return RemovedAnswer(removed=True)


def _add_verbs(router: APIRouter, files: Files) -> None:
    problems = problem_documents(404, 409, 413, 429)

    @router.post(f"{_PREFIX}/files:stat", response_model=FileAnswer, responses=problems)
    async def stat_file(
        sandbox_id: str, body: StatBody, key: IdempotencyKey = None
    ) -> dict[str, object]:
        """Describe a file."""
        path = from_text(body.path, field="path")
        found = await files.of(current_tenant(), sandbox_id)
        return stat_json(await found.stat(path, follow=body.follow))

    @router.post(f"{_PREFIX}/files:list", response_model=FilesAnswer, responses=problems)
    async def list_files(
        sandbox_id: str, body: ListBody, key: IdempotencyKey = None
    ) -> dict[str, object]:
        """List a directory by name, links not followed."""
        path = from_text(body.path, field="path")
        found = await files.of(current_tenant(), sandbox_id)
        page = await found.list(path, page_size=body.page_size, page_token=body.page_token)
        return {
            "files": [stat_json(stat) for stat in page.files],
            "next_page_token": page.next_page_token,
        }

    @router.post(f"{_PREFIX}/files:move", response_model=FileAnswer, responses=problems)
    async def move_file(
        sandbox_id: str, body: MoveBody, key: IdempotencyKey = None
    ) -> dict[str, object]:
        """Rename a file or a tree."""
        source = from_text(body.source, field="source")
        target = from_text(body.target, field="target")
        found = await files.of(current_tenant(), sandbox_id)
        return stat_json(await found.move(source, target, overwrite=body.overwrite))

    @router.post(f"{_PREFIX}/files:mkdir", response_model=FileAnswer, responses=problems)
    async def make_directory(
        sandbox_id: str, body: MakeBody, key: IdempotencyKey = None
    ) -> dict[str, object]:
        """Make a directory."""
        path = from_text(body.path, field="path")
        found = await files.of(current_tenant(), sandbox_id)
        return stat_json(await found.make_directory(path, parents=body.parents))


class _Content(StreamingResponse):
    """Bytes whose source is closed at the end, also when they were never read."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(pieces, status_code=status, media_type=media_type, headers=headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._pieces.aclose()


async def _begun(frames: AsyncGenerator[FileStat | bytes, None]) -> FileStat | bytes:
    """Wait for the first frame, so that what can be refused is refused with a status."""
    try:
        return await anext(frames)
    except BaseException:
        await frames.aclose()
        raise


async def _bytes(frames: AsyncGenerator[FileStat | bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for frame in frames:
            if isinstance(frame, bytes):
                yield frame
    finally:
        await frames.aclose()


class _Upload:
    """The body of a request, piece by piece."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._ended = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Give the body as it comes; raises FileInterrupted when the client leaves too early."""
        try:
            async for piece in self._request.stream():
                yield piece
        except ClientDisconnect as error:
            self._ended = True
            raise FileInterrupted from error
        self._ended = True

    async def drop_rest(self) -> None:
        """Read on, so that the client can read why the rest is not wanted."""
        if not self._ended:
            await drop_rest(self._request.receive)


def _path_of(request: Request) -> bytes:
    """Return the path after `/files/` as bytes: what the framework decodes must be UTF-8."""
    raw: bytes = request.scope["raw_path"]
    return unquote_to_bytes(raw.partition(b"/files/")[2])


def _line(frame: WatchFrame) -> Rendered:
    members = watch_json(frame)
    return Rendered(
        cursor=str(members.get("sequence", "")), type=str(members["type"]), members=members
    )
