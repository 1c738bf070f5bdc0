"""Launches through the front door: start and follow one, with the upload that a miss asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor, make_idempotency_key
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.events import (
    LaunchEvent,
    LaunchSnapshot,
    SnapshotMissed,
    StepChanged,
    read_event,
)
from fairlead_sdk.json_form import JsonObject, JsonValue
from fairlead_sdk.known_tags import learn_sent
from fairlead_sdk.records import LaunchRecord, Trace
from fairlead_sdk.repository import Repository
from fairlead_sdk.source import known_tips, source_document
from fairlead_sdk.streams import resumed
from fairlead_sdk.tracing import begin_span, client_span
from fairlead_sdk.uploads import (
    TOKEN_USED,
    Histories,
    MissAnswer,
    UploadProgress,
    history_of,
)

if TYPE_CHECKING:
    from fairlead_sdk.sandbox_records import SandboxRequest

_TERMINAL_TYPES = frozenset({"exited", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run: arguments, environment on top of the sandbox's own, directory in the workspace.

    `stdin` says that standard input will be written; `timeout` is in seconds; `terminal` is the
    size, rows and columns, of the terminal to run on; `grace` is the time in seconds between
    SIGTERM and SIGKILL after the timeout. With `on_full` = "block" the command waits while the
    output that is kept is full and not read; with "drop_oldest" the oldest goes.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    stdin: bool = False
    timeout: float | None = None
    terminal: tuple[int, int] | None = None
    on_full: str = "drop_oldest"
    grace: float | None = None

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
        if self.terminal is not None:
            document["terminal"] = {"rows": self.terminal[0], "columns": self.terminal[1]}
        if self.on_full != "drop_oldest":
            document["on_full"] = self.on_full
        if self.grace is not None:
            document["grace"] = self.grace
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """How to launch a repository; `lease` is in seconds, `isolation` empty for the host's best.

    With `from_` = "trunk" the tip of the origin's default branch is launched in place of the local
    commit; with `submodules` they are checked out too. `sandbox` is what it is to have besides the
    isolation. With `workspace_id` the launch works in that workspace, and takes no repository.
    """

    branch: str = ""
    command: Command | None = None
    keep: bool = False
    lease: float | None = None
    isolation: str = ""
    offer: str = ""
    from_: str = ""
    submodules: bool = False
    sandbox: SandboxRequest | None = None
    workspace_id: str = ""

    def document(self, source: JsonObject | None) -> JsonObject:
        """Give the JSON form for a source, or for the workspace."""
        document: JsonObject = {} if self.sandbox is None else self.sandbox.document()
        if source is not None:
            document["source"] = source
        texts = {
            "branch": self.branch,
            "isolation": self.isolation,
            "offer": self.offer,
            "workspace_id": self.workspace_id,
        }
        document.update({name: text for name, text in texts.items() if text})
        if self.command is not None:
            document["command"] = self.command.document()
        if self.keep:
            document["keep"] = True
        if self.lease is not None:
            document["lease"] = self.lease
        return document


class AsyncLaunches:
    """The caller's launches."""

    def __init__(self, *, door: FrontDoor, histories: Histories | None = None) -> None:
        self._door = door
        self.histories = histories or Histories()

    async def describe(self, repository: Repository | None, request: LaunchRequest) -> JsonObject:
        """Give the body that launches a repository, with what is new since the last launch; or the
        request's workspace.
        """
        if repository is None:
            return request.document(None)
        source = await asyncio.to_thread(_source, repository, request, self._door.url)
        return request.document(source)

    async def start(
        self,
        repository: Repository | None,
        body: JsonObject,
        *,
        key: str = "",
        after: tuple[str, str] = ("", ""),
        on_upload: UploadProgress | None = None,
    ) -> AsyncGenerator[LaunchEvent, None]:
        """Launch what `describe` gave, and give every event exactly once, until the terminal one.

        A `miss` is given too and then answered with the upload, of which `on_upload` hears. When
        the host has nothing yet, history goes on after the files; see `Histories`. Closing the
        generator stops nothing on the mesh. `key` is the idempotency key, made up when empty;
        `withdraw` takes the same one. `after` is the id of a launch that is there already, and the
        cursor of its last event that was seen.
        """
        key = key or make_idempotency_key()
        launch_id, seen = after
        uploaded: set[str] = set()
        span = begin_span("launch.request")

        @asynccontextmanager
        async def submitted() -> AsyncIterator[AsyncIterator[JsonObject]]:
            async with AsyncExitStack() as stack:
                with span.current():
                    documents = await stack.enter_async_context(
                        self._door.stream("POST", "/v1/launches", body=body, key=key)
                    )
                yield documents

        def open_stream(cursor: str) -> AbstractAsyncContextManager[AsyncIterator[JsonObject]]:
            return self._watch(launch_id, cursor) if launch_id else submitted()

        error: BaseException | None = None
        try:
            async with aclosing(self._events(open_stream, seen)) as events:
                async for event in events:
                    match event.happening:
                        case LaunchSnapshot(launch):
                            launch_id = launch.launch_id
                            span.note("fairlead.launch.id", launch_id)
                            yield event
                        case _ if repository is None:
                            yield event
                        case SnapshotMissed() as miss if miss.upload_token not in uploaded:
                            uploaded.add(miss.upload_token)
                            yield event
                            with span.current(), client_span("snapshot.upload"):
                                await self._answer(repository, launch_id, miss, on_upload)
                        case StepChanged(step="workspace", state="done") as made:
                            yield event
                            await asyncio.to_thread(self._learn, repository, body, made)
                            await self._go_on_with_history(repository)
                        case _:
                            yield event
        except FairleadError as failed:
            error = failed
            raise
        finally:
            span.end(error)

    def events(self, launch_id: str, *, cursor: str = "") -> AsyncGenerator[LaunchEvent, None]:
        """Give a launch's events after `cursor`, all that are kept when empty; first a snapshot."""
        return self._events(lambda after: self._watch(launch_id, after), cursor)

    async def _answer(
        self,
        repository: Repository,
        launch_id: str,
        miss: SnapshotMissed,
        on_upload: UploadProgress | None,
    ) -> None:
        answer = MissAnswer(
            door=self._door,
            repository=repository,
            token=miss.upload_token,
            host_tips=miss.tips,
            on_upload=on_upload,
        )
        try:
            await answer.first()
        except FairleadError as error:
            if error.reason != TOKEN_USED or not await self._is_over(launch_id):
                raise
            return  # Another step failed meanwhile: the launch's last event says why.
        if answer.has_rest:
            self.histories.begin(answer)

    async def _is_over(self, launch_id: str) -> bool:
        return (await self.get(launch_id)).state in _TERMINAL_TYPES

    async def _go_on_with_history(self, repository: Repository) -> None:
        if not self.histories.is_busy:
            answer = await asyncio.to_thread(history_of, self._door, repository)
            if answer is not None:
                self.histories.begin(answer)

    def _learn(self, repository: Repository, body: JsonObject, made: StepChanged) -> None:
        source = form.child(body, "source") or {}
        if "upstream" not in source:  # else it is another commit
            known_tips(repository, url=self._door.url).learn([repository.commit])
            if not made.tags_left_out:
                learn_sent(repository, source, url=self._door.url)

    async def get(self, launch_id: str) -> LaunchRecord:
        """Read a launch."""
        return LaunchRecord.read(await self._door.get(_path(launch_id)))

    async def list(
        self, *, limit: int = 100, where: Callable[[LaunchRecord], bool] | None = None
    ) -> tuple[LaunchRecord, ...]:
        """List the newest launches, newest first: at most `limit` of those that `where` accepts."""
        found: list[LaunchRecord] = []
        token = ""
        while True:
            size = 100 if where else min(100, limit - len(found))
            params = {"page_size": str(size)}
            if token:
                params["page_token"] = token
            page = await self._door.get("/v1/launches", params)
            records = (LaunchRecord.read(item) for item in form.children(page, "launches"))
            found += [record for record in records if where is None or where(record)]
            token = form.text(page, "next_page_token")
            if not token or len(found) >= limit:
                return tuple(found[:limit])

    async def cancel(self, launch_id: str) -> LaunchRecord:
        """End a launch and release what it holds; returns when everything is released."""
        return LaunchRecord.read(await self._door.post(f"{_path(launch_id)}/cancel"))

    async def withdraw(self, body: JsonObject, *, key: str) -> None:
        """Cancel the launch that `key` made of `body`, when its id never arrived here."""
        launch = await self._door.post("/v1/launches", body, key=key)
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


def _source(repository: Repository, request: LaunchRequest, url: str) -> JsonObject:
    source = source_document(repository, url=url)
    if not (request.from_ or request.submodules):
        return source
    from fairlead_sdk.origin import origin_fields

    fields = origin_fields(repository.top, from_=request.from_, submodules=request.submodules)
    return {**source, **fields}
