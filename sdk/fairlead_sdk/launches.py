"""Launches through the front door: start and follow one, with the upload that a miss asks for."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from urllib.parse import quote

from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor, make_idempotency_key
from fairlead_sdk.events import LaunchEvent, LaunchSnapshot, SnapshotMissed, read_event
from fairlead_sdk.json_form import JsonObject, JsonValue
from fairlead_sdk.packs import stream_pack
from fairlead_sdk.records import LaunchRecord, Trace
from fairlead_sdk.repository import Repository
from fairlead_sdk.streams import resumed

UploadProgress = Callable[[int], None]
_TERMINAL_TYPES = frozenset({"exited", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run: arguments, environment on top of the sandbox's own, directory in the workspace.

    `stdin` says that standard input will be written; `timeout` is in seconds.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    stdin: bool = False
    timeout: float | None = None

    def document(self) -> JsonObject:
        """Give the JSON form."""
        document: JsonObject = {"arguments": list(self.arguments)}
        if self.environment:
            document["environment"] = dict(self.environment)
        if self.directory:
            document["directory"] = self.directory
        if self.stdin:
            document["stdin"] = True
        if self.timeout is not None:
            document["timeout"] = self.timeout
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """How to launch a repository; `lease` is in seconds, `isolation` empty for the host's best."""

    branch: str = ""
    command: Command | None = None
    keep: bool = False
    lease: float | None = None
    isolation: str = ""
    offer: str = ""

    def document(self, repository: Repository) -> JsonObject:
        """Give the JSON form for a repository."""
        document: JsonObject = {"source": _source(repository)}
        texts = {"branch": self.branch, "isolation": self.isolation, "offer": self.offer}
        document.update({name: text for name, text in texts.items() if text})
        if self.command is not None:
            document["command"] = self.command.document()
        if self.keep:
            document["keep"] = True
        if self.lease is not None:
            document["lease"] = self.lease
        return document


def _source(repository: Repository) -> JsonObject:
    source: JsonObject = {
        "project": repository.project,
        "object_format": repository.object_format,
        "commit": repository.commit,
        "branch": repository.branch,
        "digest": repository.digest,
    }
    if repository.changes is not None:
        pack = base64.b64encode(repository.changes.pack).decode("ascii")
        source["changes"] = {"tree": repository.changes.tree, "pack": pack}
    return source


class AsyncLaunches:
    """The caller's launches."""

    def __init__(self, *, door: FrontDoor) -> None:
        self._door = door

    async def start(
        self,
        repository: Repository,
        request: LaunchRequest,
        *,
        key: str = "",
        on_upload: UploadProgress | None = None,
    ) -> AsyncGenerator[LaunchEvent, None]:
        """Launch and give every event exactly once, until the terminal one.

        A `miss` is given too and then answered with the upload; `on_upload` hears how many bytes
        have been sent. Closing the generator stops nothing on the mesh. `key` is the idempotency
        key, made up when empty; `withdraw` takes the same one.
        """
        key = key or make_idempotency_key()
        body = request.document(repository)
        launch_id = ""
        uploaded: set[str] = set()

        def open_stream(cursor: str) -> AbstractAsyncContextManager[AsyncIterator[JsonObject]]:
            if not launch_id:
                return self._door.stream("POST", "/v1/launches", body=body, key=key)
            return self._watch(launch_id, cursor)

        async with aclosing(self._events(open_stream, "")) as events:
            async for event in events:
                match event.happening:
                    case LaunchSnapshot(launch):
                        launch_id = launch.launch_id
                        yield event
                    case SnapshotMissed() as miss if miss.upload_token not in uploaded:
                        uploaded.add(miss.upload_token)
                        yield event
                        await self.upload(repository, miss, on_upload=on_upload)
                    case _:
                        yield event

    def events(self, launch_id: str, *, cursor: str = "") -> AsyncGenerator[LaunchEvent, None]:
        """Give a launch's events after `cursor`, all that are kept when empty; first a snapshot."""
        return self._events(lambda after: self._watch(launch_id, after), cursor)

    async def upload(
        self,
        repository: Repository,
        miss: SnapshotMissed,
        *,
        on_upload: UploadProgress | None = None,
    ) -> None:
        """Send what the host lacks; returns when it is durable there."""
        await self._door.upload(
            miss.upload_token, lambda: _upload_body(repository, miss.tips, on_upload)
        )

    async def get(self, launch_id: str) -> LaunchRecord:
        """Read a launch."""
        return LaunchRecord.read(await self._door.get(_path(launch_id)))

    async def list(self, *, limit: int = 100) -> tuple[LaunchRecord, ...]:
        """List the newest launches, newest first."""
        found: list[LaunchRecord] = []
        token = ""
        while True:
            params = {"page_size": str(min(100, limit - len(found)))}
            if token:
                params["page_token"] = token
            page = await self._door.get("/v1/launches", params)
            found += [LaunchRecord.read(item) for item in form.children(page, "launches")]
            token = form.text(page, "next_page_token")
            if not token or len(found) >= limit:
                return tuple(found[:limit])

    async def cancel(self, launch_id: str) -> LaunchRecord:
        """End a launch and release what it holds; returns when everything is released."""
        return LaunchRecord.read(await self._door.post(f"{_path(launch_id)}/cancel"))

    async def withdraw(self, repository: Repository, request: LaunchRequest, *, key: str) -> None:
        """Cancel the launch that `key` made, when its id never arrived here."""
        launch = await self._door.post("/v1/launches", request.document(repository), key=key)
        await self.cancel(form.text(launch, "launch_id"))

    async def renew(self, launch_id: str, *, lease: float | None = None) -> LaunchRecord:
        """Hold what a launch has for `lease` seconds from now, 30 minutes when absent."""
        body: dict[str, JsonValue] = {} if lease is None else {"lease": lease}
        return LaunchRecord.read(await self._door.post(f"{_path(launch_id)}/renew", body))

    async def trace(self, launch_id: str) -> Trace:
        """Read the spans of a launch's trace that the span store holds by now."""
        return Trace.read(await self._door.get(f"{_path(launch_id)}/trace"))

    def _watch(
        self, launch_id: str, cursor: str
    ) -> AbstractAsyncContextManager[AsyncIterator[JsonObject]]:
        params = {"cursor": cursor} if cursor else None
        return self._door.stream("GET", f"{_path(launch_id)}/events", params=params)

    async def _events(
        self,
        open_stream: Callable[[str], AbstractAsyncContextManager[AsyncIterator[JsonObject]]],
        cursor: str,
    ) -> AsyncGenerator[LaunchEvent, None]:
        stream = resumed(
            open_stream,
            position=lambda document: form.text(document, "cursor"),
            is_last=lambda document: form.text(document, "type") in _TERMINAL_TYPES,
            sleep=self._door.sleep,
            after=cursor,
        )
        async with aclosing(stream) as documents:
            async for document in documents:
                event = read_event(document)
                if event is not None:
                    yield event


def _path(launch_id: str) -> str:
    return f"/v1/launches/{quote(launch_id, safe='')}"


async def _upload_body(
    repository: Repository, tips: Sequence[str], on_upload: UploadProgress | None
) -> AsyncIterator[bytes]:
    named = [{"ref": tip.ref, "commit": tip.commit} for tip in repository.tips]
    yield json.dumps({"tips": named}, separators=(",", ":")).encode() + b"\n"
    sent = 0
    pack = stream_pack(repository, host_tips=tips)
    try:
        while chunk := await asyncio.to_thread(_next, pack):
            yield chunk
            sent += len(chunk)
            if on_upload is not None:
                on_upload(sent)
    finally:
        await asyncio.to_thread(pack.close)


def _next(pack: Iterator[bytes]) -> bytes:
    return next(pack, b"")
