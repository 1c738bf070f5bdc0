"""How REST, gRPC and the command line refuse: each answer is read into the same `Refusal`, and must
have every part that the surface promises.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import cast

import grpc
import httpx2
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from chassis.rpc_errors import to_error
from fairlead.execution.v1 import execution_pb2_grpc
from fairlead.launch.v1 import launch_pb2
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.launches import LaunchRequest
from fairlead_sdk.repository import Repository
from fairlead_sdk.source import source_document
from tests.e2e.mesh_client import NDJSON, MeshClient
from tests.e2e.running_stack import RunningStack
from tests.eventually import SECONDS

USAGE, FAILED, UNAVAILABLE, NOT_PERMITTED = 2, 1, 69, 77
CALL_SECONDS = SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A running stack with one launch that is held, and the places that a user could be in."""

    stack: RunningStack
    mesh: MeshClient
    repository: Repository
    folder: Path
    held: JsonObject = field(default_factory=dict)
    held_key: str = ""
    session_id: str = ""

    @property
    def local(self) -> str:
        """The directory of the repository."""
        return str(self.repository.top)

    @property
    def held_id(self) -> str:
        """The id of the held launch."""
        return str(self.held["launch_id"])

    @property
    def executions(self) -> execution_pb2_grpc.ExecutionServiceStub:
        """The stub that the mesh client lacks."""
        return execution_pb2_grpc.ExecutionServiceStub(self.mesh.channel)

    def body(self, request: LaunchRequest, **source: str) -> dict[str, object]:
        """Return the JSON form of a launch; `source` replaces what the repository says."""
        said = source_document(self.repository, url=self.stack.url)
        return dict(request.document({**said, **source}))

    def cli(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `fairlead` in the folder against the stack."""
        return subprocess.run(
            [str(Path(sys.executable).with_name("fairlead")), *arguments],
            env=self.stack.environment | dict(environment or {}),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of refusal on each surface."""

    status: int
    code: grpc.StatusCode
    exit: int = FAILED


INVALID = Kind(status=400, code=grpc.StatusCode.INVALID_ARGUMENT)
UNREADABLE = Kind(status=400, code=grpc.StatusCode.INVALID_ARGUMENT, exit=USAGE)
NOT_FOUND = Kind(status=404, code=grpc.StatusCode.NOT_FOUND)
CONFLICT = Kind(status=409, code=grpc.StatusCode.ALREADY_EXISTS)
PRECONDITION = Kind(status=409, code=grpc.StatusCode.FAILED_PRECONDITION)
TOO_LARGE = Kind(status=413, code=grpc.StatusCode.RESOURCE_EXHAUSTED)
FORBIDDEN = Kind(status=403, code=grpc.StatusCode.PERMISSION_DENIED, exit=NOT_PERMITTED)
UNKNOWN_CALLER = Kind(status=401, code=grpc.StatusCode.UNAUTHENTICATED, exit=NOT_PERMITTED)
AWAY = Kind(status=503, code=grpc.StatusCode.UNAVAILABLE, exit=UNAVAILABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What every surface tells."""

    reason: str
    sentence: str
    remedy: str


def refused(reason: object, sentence: object, remedy: object) -> Refusal:
    """Return a refusal that has all of its parts; AssertionError where one is missing."""
    found = Refusal(reason=str(reason), sentence=str(sentence), remedy=str(remedy or ""))
    assert re.fullmatch(r"[a-z][a-z0-9_]+", found.reason), found
    assert re.match(r"['A-Z0-9/.].*\.$", found.sentence, re.DOTALL), found
    assert found.remedy, found
    return found


def by_rest(answer: httpx2.Response, kind: Kind) -> Refusal:
    """Read a problem document (RFC 9457), or the `failed` that ends the events of a launch."""
    answer.read()
    if answer.status_code < 300:
        event = json.loads(answer.content.splitlines()[-1])
        assert event["type"] == "failed", event
        failure = event["failed"]["failure"]
        return refused(failure["reason"], failure["message"], failure["remedy"])
    document = answer.json()
    assert answer.status_code == kind.status, document
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["type"] == f"urn:fairlead:problem:{document['reason']}"
    assert document["title"] == HTTPStatus(kind.status).phrase
    assert document["status"] == kind.status
    assert re.fullmatch("[0-9a-f]{32}", document["trace_id"]), document
    return refused(document["reason"], document["detail"], document["remedy"])


def by_grpc(ask: Callable[[], object], kind: Kind) -> Refusal:
    """Read the `google.rpc.ErrorInfo` of a call, or the `failed` that ends a launch's events."""
    try:
        answered = ask()
        events = list(answered) if isinstance(answered, Iterable) else [answered]
    except grpc.RpcError as error:
        return _status(error, kind)
    last = events[-1]
    assert isinstance(last, launch_pb2.LaunchResponse | launch_pb2.WatchLaunchResponse), last
    failure = MessageToDict(last.event.failed.failure)
    return refused(failure.get("reason"), failure.get("message"), failure.get("remedy"))


def _status(error: grpc.RpcError, kind: Kind) -> Refusal:
    assert isinstance(error, grpc.Call)
    assert error.code() is kind.code, error
    status = rpc_status.from_call(error)
    if status is None:
        # gRPC itself refused, before anything of ours was reached: clients give it its reason.
        named = to_error(cast("grpc.aio.AioRpcError", error), peer="signalling")
        return refused(named.reason, named.message, named.remedy)
    found = ErrorInfo()
    assert any(detail.Unpack(found) for detail in status.details), error
    assert found.domain == "fairlead"
    assert found.reason == found.reason.upper()
    return refused(found.reason.lower(), status.message, found.metadata.get("remedy"))


def by_cli(scene: Scene, words: list[str], env: Mapping[str, str], kind: Kind) -> Refusal:
    """Read what the command line says to a person and to a program."""
    cut = words.index("--") if "--" in words else len(words)
    as_json = [*words[:cut], "-o", "json", *words[cut:]]
    with ThreadPoolExecutor(2) as both:
        said, told = both.map(lambda given: scene.cli(*given, environment=env), (words, as_json))
    assert (said.returncode, told.returncode) == (kind.exit, kind.exit), (said, told)
    problem = json.loads(told.stdout.splitlines()[-1])
    assert problem["type"] == f"urn:fairlead:problem:{problem['reason']}"
    assert problem["title"]
    assert "trace_id" in problem
    assert f"fairlead: {problem['detail']}\n  remedy: {problem['remedy']}\n" in said.stderr
    assert "Traceback" not in said.stderr + told.stderr
    return refused(problem["reason"], problem["detail"], problem["remedy"])


def usage_error(scene: Scene, words: list[str]) -> None:
    """Ask what the command line cannot even read: it says how it is used, and exits with 2."""
    said = scene.cli(*words)
    assert said.returncode == USAGE, said
    usage, *_, sentence = said.stderr.splitlines()
    assert usage.startswith("usage: fairlead")
    assert sentence.startswith("fairlead: ")
    assert not said.stdout


def rest_launch(scene: Scene, body: Mapping[str, object]) -> httpx2.Response:
    """Launch over REST and read the events to their end."""
    headers = {"Accept": NDJSON, "Idempotency-Key": uuid.uuid4().hex}
    return scene.mesh.http.post("/v1/launches", json=dict(body), headers=headers)


def grpc_launch(scene: Scene, body: Mapping[str, object], *, key: str = "") -> object:
    """Launch over gRPC and read the events to their end."""
    command = body.get("command")
    if isinstance(command, dict) and "timeout" in command:
        body = {**body, "command": {**command, "timeout": f"{command['timeout']}s"}}
    request = launch_pb2.LaunchRequest()
    ParseDict({**body, "idempotency_key": key or uuid.uuid4().hex}, request)
    return scene.mesh.launches.Launch(request, metadata=scene.mesh.metadata, timeout=CALL_SECONDS)
