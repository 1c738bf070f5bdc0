"""What a row of the table of bad input is made of, and how each surface is asked for it."""

from __future__ import annotations

import json
import select
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPResponse
from urllib.parse import urlsplit

import httpx2

from fairlead.launch.v1 import launch_pb2 as launch
from fairlead.snapshot.v1 import snapshot_pb2 as snapshot
from fairlead_sdk.launches import Command, LaunchRequest
from tests.e2e import bad_input_surfaces as surface
from tests.e2e.bad_input_surfaces import CALL_SECONDS, Kind, Scene
from tests.e2e.endings import make_offer
from tests.e2e.mesh_client import PACK, MeshClient, command

LAUNCH = "lch_" + "a" * 26
EXECUTION = "exe_" + "a" * 26
SANDBOX = "sbx_" + "a" * 26
SESSION = "ses_" + "a" * 26
NO_SDP = "v=0\r\nthis is no line of SDP\r\n"
OFFER = make_offer()
TRUE = command("true")
SLEEP = Command(arguments=("sleep", "9"))
HUNDRED_MEGABYTES = 100_000_000
NO_VERB = "CLI: no verb takes such an id."


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a row makes no sense on a surface."""

    why: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Words that the command line cannot read."""

    words: Callable[[Scene], list[str]]


@dataclass(frozen=True, slots=True)
class Words:
    """Words for the command line, with their own reason where it notices the fault itself."""

    words: Callable[[Scene], list[str]]
    reason: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def fresh() -> str:
    """Return an idempotency key that nobody had."""
    return uuid.uuid4().hex


Rest = Callable[[Scene], httpx2.Response]
Grpc = Callable[[Scene], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bad input."""

    reason: str
    kind: Kind = surface.INVALID
    rest: Rest | Absent
    grpc: Grpc | Absent
    grpc_reason: str = ""
    cli: Words | Usage | Absent


def launching(
    request: LaunchRequest,
    reason: str,
    *options: str,
    kind: Kind = surface.INVALID,
    cli: Words | Usage | Absent | None = None,
    **source: str,
) -> Row:
    """Return the row of a launch that the same request asks for on every surface; `source` takes
    the place of what the repository says.
    """
    words = request.command.arguments if request.command is not None else ()
    return Row(
        reason=reason,
        kind=kind,
        rest=lambda scene: surface.rest_launch(scene, scene.body(request, **source)),
        grpc=lambda scene: surface.grpc_launch(scene, scene.body(request, **source)),
        cli=cli or Words(lambda scene: ["launch", scene.local, *options, "--", *words]),
    )


def path(name: str, reason: str) -> Row:
    """Return the row of a path that the command line cannot launch."""
    return Row(
        reason=reason,
        rest=Absent("REST: the client reads the repository; no path reaches the front door."),
        grpc=Absent("gRPC: the client reads the repository; no path reaches the front door."),
        cli=Words(lambda scene: ["launch", str(scene.folder / name), "--", "true"]),
    )


def branch(name: str) -> Row:
    """Return the row of a branch that git does not allow."""
    return launching(replace(TRUE, branch=name), "branch_invalid", f"--branch={name}")


def get(url: str) -> Rest:
    return lambda scene: scene.mesh.http.get(url.format(held=scene.held_id if scene.held else ""))


def post(url: str, body: object = None) -> Rest:
    return lambda scene: scene.mesh.http.post(
        url.format(session=scene.session_id, sandbox=scene.held.get("sandbox_id", "")),
        json={} if body is None else body,
        headers={"Idempotency-Key": uuid.uuid4().hex},
    )


def rpc(stub: str, method: str, request: object) -> Grpc:
    """Call a method; one that streams is read to its end."""

    def call(scene: Scene) -> object:
        owner = scene.executions if stub == "executions" else getattr(scene.mesh, stub)
        asked = request(scene) if callable(request) else request
        return getattr(owner, method)(asked, metadata=scene.mesh.metadata, timeout=CALL_SECONDS)

    return call


def verb(*words: str) -> Words:
    return Words(lambda scene: [word.format(held=scene.held.get("launch_id")) for word in words])


def unknown_launch(
    rest: Rest, method: str, request: object, cli: Words | Absent, *, stub: str = "launches"
) -> Row:
    return Row(
        reason="launch_not_found",
        kind=surface.NOT_FOUND,
        rest=rest,
        grpc=rpc(stub, method, request),
        cli=cli,
    )


def unknown(what: str, rest: Rest, stub: str, method: str, request: object) -> Row:
    return Row(
        reason=f"{what}_not_found",
        kind=surface.NOT_FOUND,
        rest=rest,
        grpc=rpc(stub, method, request),
        cli=Absent(NO_VERB),
    )


def caller(key: str, reason: str) -> Row:
    """Return the row of a caller with another key; without one when empty."""

    def rest(scene: Scene) -> httpx2.Response:
        with MeshClient(stack=scene.stack, api_key=key) as stranger:
            return stranger.http.get("/v1/launches")

    def call(scene: Scene) -> object:
        with MeshClient(stack=scene.stack, api_key=key) as stranger:
            return stranger.launches.ListLaunches(
                launch.ListLaunchesRequest(), metadata=stranger.metadata, timeout=CALL_SECONDS
            )

    # Nothing may tell the command line where the stack keeps its own key.
    environment = {"FAIRLEAD_API_KEY": key, "FAIRLEAD_STATE": "", "XDG_STATE_HOME": "/nowhere"}
    return Row(
        reason=reason,
        kind=surface.UNKNOWN_CALLER,
        rest=rest,
        grpc=call,
        cli=Words(lambda scene: ["launch", scene.local, "--", "true"], environment=environment),
    )


def rest_huge(scene: Scene) -> httpx2.Response:
    """Stream 100 MB; the answer must come long before all of it is sent."""
    front, sent = urlsplit(scene.stack.url), 0
    head = (
        f"POST /v1/launches HTTP/1.1\r\nHost: {front.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {scene.stack.api_key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((front.hostname, front.port), timeout=CALL_SECONDS) as line:
        line.sendall(head.encode())
        while sent < HUNDRED_MEGABYTES and not select.select([line], [], [], 0)[0]:
            line.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")
            sent += 65_536
        answer = HTTPResponse(line, method="POST")
        answer.begin()
        content = answer.read()
    assert 768 * 1024 < sent < HUNDRED_MEGABYTES / 5, sent
    return httpx2.Response(answer.status, headers=answer.getheaders(), content=content)


def rest_malformed(scene: Scene) -> httpx2.Response:
    return scene.mesh.http.post(
        "/v1/launches", content=b'{"source": ', headers={"Content-Type": "application/json"}
    )


def rest_same_key(scene: Scene) -> httpx2.Response:
    return scene.mesh.http.post(
        "/v1/launches",
        json=scene.body(TRUE),
        headers={"Idempotency-Key": scene.held_key},
    )


def grpc_same_key(scene: Scene) -> object:
    return surface.grpc_launch(scene, scene.body(TRUE), key=scene.held_key)


def grpc_huge(scene: Scene) -> object:
    """Send one message of 100 MB."""
    request = launch.LaunchRequest(offer="v" * HUNDRED_MEGABYTES)
    return scene.mesh.launches.Launch(request, metadata=scene.mesh.metadata, timeout=CALL_SECONDS)


def rest_upload(scene: Scene, token: str) -> httpx2.Response:
    return scene.mesh.http.post(
        "/v1/snapshots",
        params={"upload": token},
        content=json.dumps({"tips": []}).encode() + b"\nthis is no pack",
        headers={"Content-Type": PACK, "Idempotency-Key": uuid.uuid4().hex},
    )


def grpc_upload(scene: Scene, token: str) -> object:
    frames = (
        snapshot.UploadSnapshotRequest(open=snapshot.OpenUpload(upload_token=token)),
        snapshot.UploadSnapshotRequest(chunk=b"this is no pack"),
    )
    return scene.mesh.snapshots.UploadSnapshot(
        iter(frames), metadata=scene.mesh.metadata, timeout=CALL_SECONDS
    )


@contextmanager
def waiting(scene: Scene) -> Iterator[str]:
    """Yield the upload token of a launch, which waits on after the block until it is cancelled."""
    mesh = scene.mesh
    launch_id = mesh.launch(scene.repository, TRUE, project=uuid.uuid4().hex)
    try:
        yield mesh.follow(launch_id, until="miss")[-1].text("upload_token")
        assert mesh.record(launch_id)["state"] == "requested"
    finally:
        assert mesh.cancel(launch_id)["state"] == "cancelled"


def rest_garbage(scene: Scene) -> httpx2.Response:
    """Upload what is no pack, over REST."""
    with waiting(scene) as token:
        return rest_upload(scene, token)


def grpc_garbage(scene: Scene) -> object:
    """Upload what is no pack, over gRPC."""
    with waiting(scene) as token:
        return grpc_upload(scene, token)
