"""A client of a running stack that sees every byte: REST and gRPC side by side, no retries and no
cleverness of its own.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import grpc
import httpx2

from fairlead.launch.v1 import launch_pb2, launch_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2_grpc
from fairlead.session.v1 import session_pb2_grpc
from fairlead.snapshot.v1 import snapshot_pb2_grpc
from fairlead.workspace.v1 import workspace_pb2_grpc
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.launches import Command, LaunchRequest
from fairlead_sdk.packs import stream_pack
from fairlead_sdk.repository import Repository, read_repository
from fairlead_sdk.source import source_document
from tests.e2e.running_stack import RunningStack
from tests.eventually import SECONDS

NDJSON, SSE, GRPC = "application/x-ndjson", "text/event-stream", "grpc"
PACK = "application/x-fairlead-pack"
TERMINAL = frozenset({"exited", "failed", "cancelled"})
ANSWER_SECONDS = SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event, whichever way it came; `detail` is the member that is named like its type."""

    cursor: str
    type: str
    detail: JsonObject
    stream: str = ""
    sequence: int = 0
    content: bytes = b""

    def text(self, *path: str) -> str:
        """Return a text inside `detail`; empty when there is none."""
        found: object = self.detail
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, str) else ""


class Problem(Exception):
    """An answer that is a problem document."""

    def __init__(self, status: int, document: JsonObject) -> None:
        super().__init__(f"{status}: {document}")
        self.status = status
        self.document = document

    @property
    def reason(self) -> str:
        """The machine-readable reason."""
        return str(self.document.get("reason"))


class MeshClient:
    """Use it as a context manager."""

    def __init__(self, *, stack: RunningStack, api_key: str | None = None) -> None:
        key = stack.api_key if api_key is None else api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx2.Client(base_url=stack.url, headers=headers, timeout=ANSWER_SECONDS)
        self.channel = grpc.insecure_channel(stack.grpc)
        self.metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self.launches = launch_pb2_grpc.LaunchServiceStub(self.channel)
        self.sessions = session_pb2_grpc.SessionServiceStub(self.channel)
        self.snapshots = snapshot_pb2_grpc.SnapshotServiceStub(self.channel)
        self.sandboxes = sandbox_pb2_grpc.SandboxServiceStub(self.channel)
        self.workspaces = workspace_pb2_grpc.WorkspaceServiceStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.http.close()
        self.channel.close()

    def get(self, path: str) -> JsonObject:
        """Read a resource; raises Problem."""
        return _document(self.http.get(path))

    def post(self, path: str, body: object = None, *, key: str = "") -> JsonObject:
        """Change something; raises Problem."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        if body is None:
            return _document(self.http.post(path, headers=headers))
        return _document(self.http.post(path, headers=headers, json=body))

    def launch(self, repository: Repository, request: LaunchRequest, *, project: str = "") -> str:
        """Start a launch and return its id; nothing is uploaded. A `project` that no host knows
        makes it a cold one.
        """
        body = dict(request.document(source_document(repository, url=str(self.http.base_url))))
        source = body["source"]
        assert isinstance(source, dict)
        if project:
            body["source"] = {**source, "project": project}
        return str(self.post("/v1/launches", body)["launch_id"])

    def record(self, launch_id: str) -> JsonObject:
        """Read a launch."""
        return self.get(f"/v1/launches/{launch_id}")

    def cancel(self, launch_id: str) -> JsonObject:
        """Cancel a launch."""
        return self.post(f"/v1/launches/{launch_id}/cancel")

    def upload(self, repository: Repository, token: str, *, pack: bytes | None = None) -> None:
        """Send everything that a launch of the repository can want, or `pack`."""
        content = b"".join(stream_pack(repository, tips=repository.tips)) if pack is None else pack
        tips = [{"ref": tip.ref, "commit": tip.commit} for tip in repository.tips]
        _document(
            self.http.post(
                "/v1/snapshots",
                params={"upload": token},
                headers={"Content-Type": PACK, "Idempotency-Key": uuid.uuid4().hex},
                content=json.dumps({"tips": tips}).encode() + b"\n" + content,
            )
        )

    def events(self, launch_id: str, *, cursor: str = "", by: str = NDJSON) -> Iterator[Event]:
        """Follow a launch after `cursor`; leave the iterator to close the stream."""
        if by == GRPC:
            return self._grpc_events(launch_id, cursor)
        return self._http_events(launch_id, cursor, by)

    def follow(
        self,
        launch_id: str,
        *,
        on: Callable[[Event], None] = lambda event: None,
        until: str = "",
    ) -> list[Event]:
        """Return the events to the terminal one, or to the first of type `until`."""
        seen = []
        for event in self.events(launch_id):
            on(event)
            seen.append(event)
            if event.type == until:
                break
        return seen

    def see_through(self, repository: Repository, launch_id: str) -> list[Event]:
        """Follow a launch to its end and send what it lacks."""

        def answer(event: Event) -> None:
            if event.type == "miss":
                self.upload(repository, event.text("upload_token"))

        return self.follow(launch_id, on=answer)

    def _http_events(self, launch_id: str, cursor: str, accept: str) -> Iterator[Event]:
        path, params = f"/v1/launches/{launch_id}/events", {"cursor": cursor} if cursor else {}
        headers = {"Accept": accept}
        with self.http.stream("GET", path, params=params, headers=headers) as answer:
            if answer.status_code >= 400:
                answer.read()
                _document(answer)
            prefix = "data: " if accept == SSE else ""
            for line in _lines(answer):
                if line and line.startswith(prefix):
                    yield _event(json.loads(line.removeprefix(prefix)))

    def _grpc_events(self, launch_id: str, cursor: str) -> Iterator[Event]:
        request = launch_pb2.WatchLaunchRequest(launch_id=launch_id, cursor=cursor)
        call = self.launches.WatchLaunch(request, metadata=self.metadata, timeout=60)
        try:
            for response in call:
                yield _grpc_event(response.event)
        finally:
            call.cancel()


def command(*arguments: str, directory: str = "", **environment: str) -> LaunchRequest:
    """Return the request to run a command in a repository."""
    return LaunchRequest(
        command=Command(arguments=arguments, directory=directory, environment=environment)
    )


def with_offer(request: LaunchRequest, offer: str) -> LaunchRequest:
    """Return the request with an SDP offer."""
    return replace(request, offer=offer)


@contextmanager
def reading(path: Path) -> Iterator[Repository]:
    """Read the repository at `path` as the command line does, and clean up after it."""
    repository = read_repository(path)
    try:
        yield repository
    finally:
        repository.close()


def output(events: list[Event], stream: str = "stdout") -> bytes:
    """Join what the events say of one stream."""
    return b"".join(event.content for event in events if event.stream == stream)


def await_answer(ask: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait until `ask` says so, across answers that do not come; AssertionError when it never
    does.
    """
    deadline = time.monotonic() + seconds
    last: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if ask():
                return
        except (httpx2.HTTPError, grpc.RpcError, Problem, OSError) as error:
            last = error
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s; last: {last!r}")


def _document(answer: httpx2.Response) -> JsonObject:
    document = answer.json() if answer.content else {}
    assert isinstance(document, dict)
    if answer.status_code >= 400:
        raise Problem(answer.status_code, document)
    return document


def _lines(answer: httpx2.Response) -> Iterator[str]:
    """Split at line feeds alone."""
    kept = b""
    for chunk in answer.iter_raw():
        *whole, kept = (kept + chunk).split(b"\n")
        for line in whole:
            yield line.decode()


def _event(document: Mapping[str, object]) -> Event:
    type_ = str(document["type"])
    detail = document[type_]
    assert isinstance(detail, dict)
    if type_ == "problem":
        raise Problem(int(detail["status"]), detail)
    event = Event(cursor=str(document["cursor"]), type=type_, detail=detail)
    if type_ != "output":
        return event
    return replace(
        event,
        stream=str(detail["stream"]),
        sequence=int(detail["sequence"]),
        content=base64.b64decode(detail["content"]),
    )


def _grpc_event(event: launch_pb2.LaunchEvent) -> Event:
    type_ = event.WhichOneof("event") or ""
    found = Event(cursor=event.cursor, type=type_, detail={})
    if type_ != "output":
        return found
    stream = {1: "stdout", 2: "stderr"}[event.output.stream]
    return replace(
        found, stream=stream, sequence=event.output.sequence, content=event.output.content
    )
