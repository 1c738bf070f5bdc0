"""What no surface may take of sandboxes, one row each."""

from __future__ import annotations

from fairlead.sandbox.v1 import sandbox_pb2 as sandbox
from fairlead_sdk.launches import LaunchRequest
from fairlead_sdk.sandbox_records import SandboxRequest
from tests.e2e import bad_input_surfaces as surface
from tests.e2e.bad_input_rows import (
    SANDBOX,
    TRUE,
    Absent,
    Rest,
    Row,
    Usage,
    Words,
    fresh,
    get,
    launching,
    post,
    rpc,
    verb,
)
from tests.e2e.bad_input_surfaces import Kind

_PATH = f"/v1/sandboxes/{SANDBOX}"
_WORKSPACE = "wsp_" + "a" * 26
_HOST = "hst_" + "a" * 26
_ALL = {"mode": "host"}


def ordering(
    reason: str,
    body: dict[str, object],
    *options: str,
    kind: Kind = surface.INVALID,
    cli: Words | Usage | Absent | None = None,
) -> Row:
    """Return the row of a sandbox that the same order asks for on every surface."""

    def request(scene: object) -> sandbox.CreateSandboxRequest:
        asked = (
            {**body, "network": sandbox.NetworkPolicy(mode=sandbox.NETWORK_MODE_HOST)}
            if "network" in body
            else body
        )
        return sandbox.CreateSandboxRequest(idempotency_key=fresh(), **asked)  # type: ignore[arg-type]

    return Row(
        reason=reason,
        kind=kind,
        rest=post("/v1/sandboxes", body),
        grpc=rpc("sandboxes", "CreateSandbox", request),
        cli=cli or Words(lambda scene: ["sandbox", "create", *options]),
    )


def missing(rest: Rest, method: str, request: object, *words: str) -> Row:
    """Return the row of a sandbox that is not there."""
    return Row(
        reason="sandbox_not_found",
        kind=surface.NOT_FOUND,
        rest=rest,
        grpc=rpc("sandboxes", method, request),
        cli=verb("sandbox", *words),
    )


ORDERS = {
    "a sandbox of an isolation that is not there": ordering(
        "isolation_unavailable",
        {"isolation": "unobtainium"},
        "--isolation=unobtainium",
        kind=surface.PRECONDITION,
    ),
    "a sandbox of a profile that is not there": ordering(
        "profile_unknown", {"profile": "large"}, "--profile=large"
    ),
    "a sandbox of a profile that is no name": ordering(
        "profile_invalid", {"profile": "../x"}, "--profile=../x"
    ),
    "a sandbox with more than its profile allows": ordering(
        "limit_exceeded", {"limits": {"open_files": 1_000_000}}, "--limit=open_files=1000000"
    ),
    "a sandbox with fewer files than its first process needs": ordering(
        "limit_invalid", {"limits": {"open_files": 2}}, "--limit=open_files=2"
    ),
    "a sandbox with a limit below nothing": ordering(
        "limit_invalid",
        {"limits": {"processes": -1}},
        cli=Usage(lambda scene: ["sandbox", "create", "--limit=processes=-1"]),
    ),
    "a sandbox with a limit that is none": Row(
        reason="invalid_body",
        rest=post("/v1/sandboxes", {"limits": {"patience": 1}}),
        grpc=Absent("gRPC: limits have names by their type."),
        cli=Usage(lambda scene: ["sandbox", "create", "--limit=patience=1"]),
    ),
    "a sandbox with a network that is none": Row(
        reason="invalid_body",
        rest=post("/v1/sandboxes", {"network": {"mode": "all"}}),
        grpc=Absent("gRPC: a mode is a number by its type."),
        cli=Usage(lambda scene: ["sandbox", "create", "--network=all"]),
    ),
    "a sandbox without walls": ordering(
        "isolation_unavailable",
        {"isolation": "process"},
        "--isolation=process",
        kind=surface.PRECONDITION,
    ),
    "a launch without walls": launching(
        LaunchRequest(command=TRUE.command, isolation="process"),
        "isolation_unavailable",
        "--isolation=process",
        kind=surface.PRECONDITION,
    ),
    "more of the network than the profile allows": ordering(
        "network_exceeded",
        {"isolation": "walled", "network": _ALL},
        "--isolation=walled",
        "--network=host",
        kind=surface.FORBIDDEN,
    ),
    "a sandbox that is held for years": Row(
        reason="lease_invalid",
        rest=post("/v1/sandboxes", {"lease": 1e8}),
        grpc=rpc(
            "sandboxes",
            "CreateSandbox",
            lambda scene: sandbox.CreateSandboxRequest(lease={"seconds": 100_000_000}),  # type: ignore[arg-type]
        ),
        cli=Usage(lambda scene: ["sandbox", "create", "--lease", "1000000"]),
    ),
    "a sandbox of an unknown workspace": ordering(
        "workspace_not_found",
        {"workspace_id": _WORKSPACE},
        f"--workspace={_WORKSPACE}",
        kind=surface.NOT_FOUND,
    ),
    "a sandbox on an unknown host": ordering(
        "host_not_found", {"host_id": _HOST}, f"--host={_HOST}", kind=surface.NOT_FOUND
    ),
    "a launch of a profile that is not there": launching(
        LaunchRequest(command=TRUE.command, sandbox=SandboxRequest(profile="large")),
        "profile_unknown",
        "--profile=large",
    ),
    "a launch into an unknown workspace": Row(
        reason="workspace_not_found",
        kind=surface.NOT_FOUND,
        rest=lambda scene: surface.rest_launch(
            scene, LaunchRequest(command=TRUE.command, workspace_id=_WORKSPACE).document(None)
        ),
        grpc=lambda scene: surface.grpc_launch(
            scene, LaunchRequest(command=TRUE.command, workspace_id=_WORKSPACE).document(None)
        ),
        cli=Words(lambda scene: ["launch", "--workspace", _WORKSPACE, "--", "true"]),
    ),
    "a launch into a workspace, of a source": Row(
        reason="workspace_conflict",
        rest=lambda scene: surface.rest_launch(
            scene, {**scene.body(TRUE), "workspace_id": _WORKSPACE}
        ),
        grpc=lambda scene: surface.grpc_launch(
            scene, {**scene.body(TRUE), "workspace_id": _WORKSPACE}
        ),
        cli=Usage(lambda scene: ["launch", scene.local, "--workspace", _WORKSPACE, "--", "true"]),
    ),
}

IDS = {
    "get of an unknown sandbox": missing(
        get(_PATH), "GetSandbox", sandbox.GetSandboxRequest(sandbox_id=SANDBOX), "show", SANDBOX
    ),
    "get of what is no sandbox": missing(
        get("/v1/sandboxes/..$(id)"),
        "GetSandbox",
        sandbox.GetSandboxRequest(sandbox_id="..$(id)"),
        "show",
        "..$(id)",
    ),
    "renewal of an unknown sandbox": missing(
        post(f"{_PATH}/renew"),
        "RenewSandbox",
        sandbox.RenewSandboxRequest(sandbox_id=SANDBOX),
        "renew",
        SANDBOX,
    ),
    "release of an unknown sandbox": missing(
        lambda scene: scene.mesh.http.delete(_PATH),
        "ReleaseSandbox",
        sandbox.ReleaseSandboxRequest(sandbox_id=SANDBOX),
        "rm",
        SANDBOX,
    ),
    "release of a launch's sandbox": Row(
        reason="sandbox_in_use",
        kind=surface.PRECONDITION,
        rest=lambda scene: scene.mesh.http.delete(f"/v1/sandboxes/{scene.held['sandbox_id']}"),
        grpc=rpc(
            "sandboxes",
            "ReleaseSandbox",
            lambda scene: sandbox.ReleaseSandboxRequest(sandbox_id=str(scene.held["sandbox_id"])),
        ),
        cli=Words(lambda scene: ["sandbox", "rm", str(scene.held["sandbox_id"])]),
    ),
    "a page token of sandboxes that is none": Row(
        reason="page_token_invalid",
        rest=get("/v1/sandboxes?page_token=nonsense"),
        grpc=rpc("sandboxes", "ListSandboxes", sandbox.ListSandboxesRequest(page_token="nonsense")),
        cli=Absent("CLI: it turns the pages itself."),
    ),
}

SANDBOXES = ORDERS | IDS
