"""What no surface may take of workspaces, one row each."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import httpx2

from fairlead.workspace.v1 import workspace_pb2 as workspace
from fairlead_sdk.source import source_document
from tests.e2e import bad_input_surfaces as surface
from tests.e2e.bad_input_rows import (
    Absent,
    Rest,
    Row,
    Usage,
    Words,
    fresh,
    get,
    post,
    rpc,
    verb,
)
from tests.e2e.bad_input_surfaces import CALL_SECONDS, Scene

WORKSPACE = "wsp_" + "a" * 26
_PATH = f"/v1/workspaces/{WORKSPACE}"
_ELSEWHERE = {"url": "file:///etc", "branch": "main"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked for; `source` takes the place of what the repository says."""

    members: dict[str, object] = field(default_factory=dict)
    source: dict[str, object] = field(default_factory=dict)

    def rest(self, scene: Scene) -> httpx2.Response:
        """Ask over REST."""
        said = source_document(scene.repository, url=scene.stack.url)
        return scene.mesh.http.post(
            "/v1/workspaces",
            json={"source": {**said, **self.source}, **self.members},
            headers={"Idempotency-Key": uuid.uuid4().hex},
        )

    def grpc(self, scene: Scene) -> object:
        """Ask over gRPC."""
        repository = scene.repository
        said = {
            "project": repository.project,
            "commit": repository.commit,
            "branch": repository.branch,
        }
        asked: dict[str, object] = {**self.members, "source": {**said, **self.source}}
        return scene.mesh.workspaces.MaterializeWorkspace(
            workspace.MaterializeWorkspaceRequest(idempotency_key=fresh(), **asked),  # type: ignore[arg-type]
            metadata=scene.mesh.metadata,
            timeout=CALL_SECONDS,
        )


def ordering(
    reason: str,
    *options: str,
    cli: Words | Absent | None = None,
    source: dict[str, object] | None = None,
    **members: object,
) -> Row:
    """Return the row of a workspace that the same order asks for on every surface."""
    order = Order(members=members, source=source or {})
    words = Words(lambda scene: ["workspace", "create", scene.local, *options])
    return Row(reason=reason, rest=order.rest, grpc=order.grpc, cli=cli or words)


def missing(rest: Rest, method: str, request: object, *words: str) -> Row:
    """Return the row of a workspace that is not there."""
    return Row(
        reason="workspace_not_found",
        kind=surface.NOT_FOUND,
        rest=rest,
        grpc=rpc("workspaces", method, request),
        cli=verb("workspace", *words),
    )


def _held(scene: Scene) -> str:
    return str(scene.held["workspace_id"])


ORDERS = {
    "a workspace of no commit": ordering(
        "commit_invalid",
        source={"commit": "HEAD"},
        cli=Absent("CLI: it reads the commit itself."),
    ),
    "a workspace on a branch that climbs": ordering(
        "branch_invalid", "--branch=a..b", branch="a..b"
    ),
    "a workspace with a name that climbs": ordering("name_invalid", "--name=../x", name="../x"),
    "a workspace with a name that is too long": ordering(
        "name_invalid", f"--name={'a' * 65}", name="a" * 65
    ),
    "a workspace with a name that looks like an option": ordering(
        "name_invalid", "--name=-x", name="-x"
    ),
    "a workspace of an upstream on the host's own disk": ordering(
        "origin_invalid",
        source={"upstream": _ELSEWHERE},
        cli=Words(
            lambda scene: ["workspace", "create", scene.local, "--from", "trunk"],
            reason="origin_missing",
        ),
    ),
    "a workspace that is held for years": Row(
        reason="lease_invalid",
        rest=Order(members={"lease": 1e8}).rest,
        grpc=Order(members={"lease": {"seconds": 100_000_000}}).grpc,
        cli=Usage(lambda scene: ["workspace", "create", scene.local, "--lease", "1000000"]),
    ),
    "a workspace that is held for no number": Row(
        reason="invalid_body",
        rest=Order(members={"lease": "for ever"}).rest,
        grpc=Absent("gRPC: a duration is a number by its type."),
        cli=Usage(lambda scene: ["workspace", "create", scene.local, "--lease", "for ever"]),
    ),
    "a name for a held workspace that is none": Row(
        reason="name_invalid",
        rest=lambda scene: post(f"/v1/workspaces/{_held(scene)}/rename", {"name": "a b"})(scene),
        grpc=rpc(
            "workspaces",
            "RenameWorkspace",
            lambda scene: workspace.RenameWorkspaceRequest(workspace_id=_held(scene), name="a b"),
        ),
        cli=Words(lambda scene: ["workspace", "rename", _held(scene), "a b"]),
    ),
}

IDS = {
    "get of an unknown workspace": missing(
        get(_PATH),
        "GetWorkspace",
        workspace.GetWorkspaceRequest(workspace_id=WORKSPACE),
        "show",
        WORKSPACE,
    ),
    "get of what is no workspace": missing(
        get("/v1/workspaces/..$(id)"),
        "GetWorkspace",
        workspace.GetWorkspaceRequest(workspace_id="..$(id)"),
        "show",
        "..$(id)",
    ),
    "fork of an unknown workspace": missing(
        post(f"{_PATH}/fork"),
        "ForkWorkspace",
        lambda scene: workspace.ForkWorkspaceRequest(
            workspace_id=WORKSPACE, idempotency_key=fresh()
        ),
        "fork",
        WORKSPACE,
    ),
    "rename of an unknown workspace": missing(
        post(f"{_PATH}/rename", {"name": "fix"}),
        "RenameWorkspace",
        workspace.RenameWorkspaceRequest(workspace_id=WORKSPACE, name="fix"),
        "rename",
        WORKSPACE,
        "fix",
    ),
    "renewal of an unknown workspace": missing(
        post(f"{_PATH}/renew"),
        "RenewWorkspace",
        workspace.RenewWorkspaceRequest(workspace_id=WORKSPACE),
        "renew",
        WORKSPACE,
    ),
    "release of an unknown workspace": missing(
        lambda scene: scene.mesh.http.delete(_PATH, params={"force": "true"}),
        "ReleaseWorkspace",
        workspace.ReleaseWorkspaceRequest(workspace_id=WORKSPACE),
        "rm",
        "--force",
        WORKSPACE,
    ),
    "a page token of workspaces that is none": Row(
        reason="page_token_invalid",
        rest=get("/v1/workspaces?page_token=nonsense"),
        grpc=rpc(
            "workspaces",
            "ListWorkspaces",
            workspace.ListWorkspacesRequest(page_token="nonsense"),
        ),
        cli=Absent("CLI: it turns the pages itself."),
    ),
    "a page of workspaces that is too large": Row(
        reason="page_size_invalid",
        rest=get("/v1/workspaces?page_size=101"),
        grpc=rpc("workspaces", "ListWorkspaces", workspace.ListWorkspacesRequest(page_size=101)),
        cli=Absent("CLI: it turns the pages itself."),
    ),
    "a verb of workspaces that is none": Row(
        reason="route_not_found",
        kind=surface.NOT_FOUND,
        rest=post(f"{_PATH}/explode"),
        grpc=Absent("gRPC: the generated clients have no other methods."),
        cli=Usage(lambda scene: ["workspace", "explode", WORKSPACE]),
    ),
}

WORKSPACES = ORDERS | IDS
