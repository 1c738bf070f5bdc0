"""What no surface may take, one row each, and what every surface answers to it."""

from __future__ import annotations

from dataclasses import replace

from fairlead.execution.v1 import execution_pb2 as execution
from fairlead.launch.v1 import launch_pb2 as launch
from fairlead.session.v1 import session_pb2 as session
from fairlead_sdk.launches import LaunchRequest
from tests.e2e import bad_input_rows as ask
from tests.e2e import bad_input_surfaces as surface
from tests.e2e.bad_input_rows import (
    EXECUTION,
    LAUNCH,
    NO_SDP,
    SANDBOX,
    SESSION,
    TRUE,
    Absent,
    Row,
    Usage,
    Words,
    get,
    launching,
    post,
    rpc,
    unknown,
    unknown_launch,
    verb,
)
from tests.e2e.bad_input_sandboxes import SANDBOXES
from tests.e2e.bad_input_workspaces import WORKSPACES
from tests.e2e.mesh_client import command, with_offer

GRPC_FRAMES = Absent(
    "gRPC: there is no text to be malformed; a message that is not one never arrives."
)
NEGOTIATES = Absent("CLI: it makes its offers itself.")

LOCAL = {
    "not a git repository": ask.path("plain", "not_a_repository"),
    "a path that does not exist": ask.path("nowhere", "path_not_found"),
    "a path that is a file": ask.path("a-file", "path_not_directory"),
    "an empty repository": launching(
        TRUE,
        "commit_invalid",
        cli=Words(
            lambda scene: ["launch", str(scene.folder / "empty"), "--", "true"],
            reason="repository_empty",
        ),
        commit="",
    ),
}

LAUNCHES = {
    "a command that does not exist": launching(command("no-such-program"), "command_not_found"),
    "a command that is not executable": launching(command("./plain.sh"), "command_not_executable"),
    "a command without a word": launching(
        command(""),
        "command_invalid",
        cli=Usage(lambda scene: ["launch", scene.local, "--"]),
    ),
    "a timeout that is none": launching(
        LaunchRequest(command=replace(ask.SLEEP, timeout=-1.0)),
        "timeout_invalid",
        cli=Usage(lambda scene: ["launch", scene.local, "--timeout=-1", "--", "sleep", "9"]),
    ),
    "a branch with a space": ask.branch("a b"),
    "a branch that is a command": ask.branch("$(touch x)"),
    "a branch that climbs": ask.branch("a..b"),
    "a branch that looks like an option": ask.branch("-x"),
    "a branch with a wildcard": ask.branch("a*"),
    "an option where the branch belongs": launching(
        replace(TRUE, branch="--x"),
        "branch_invalid",
        cli=Usage(lambda scene: ["launch", scene.local, "--branch", "--x", "--", "true"]),
    ),
    "an isolation that is not there": launching(
        replace(TRUE, isolation="unobtainium"),
        "isolation_unavailable",
        "--isolation=unobtainium",
        kind=surface.PRECONDITION,
    ),
    "an isolation that is no name": launching(
        replace(TRUE, isolation="a b"), "isolation_invalid", "--isolation=a b"
    ),
    "a launch with an offer that is no SDP": launching(
        with_offer(TRUE, NO_SDP), "sdp_invalid", cli=NEGOTIATES
    ),
    "a key that another launch has": Row(
        reason="idempotency_conflict",
        kind=surface.CONFLICT,
        rest=ask.rest_same_key,
        grpc=ask.grpc_same_key,
        cli=Absent("CLI: it makes a new key for every launch."),
    ),
}

IDS = {
    "get of an unknown launch": unknown_launch(
        get(f"/v1/launches/{LAUNCH}"),
        "GetLaunch",
        launch.GetLaunchRequest(launch_id=LAUNCH),
        verb("exec", LAUNCH, "--", "true"),
    ),
    "get of what is no id": unknown_launch(
        get("/v1/launches/..$(id)"),
        "GetLaunch",
        launch.GetLaunchRequest(launch_id="..$(id)"),
        verb("logs", "..$(id)"),
    ),
    "cancel of an unknown launch": unknown_launch(
        post(f"/v1/launches/{LAUNCH}/cancel"),
        "CancelLaunch",
        launch.CancelLaunchRequest(launch_id=LAUNCH),
        verb("kill", LAUNCH),
    ),
    "renewal of an unknown launch": unknown_launch(
        post(f"/v1/launches/{LAUNCH}/renew"),
        "RenewLaunch",
        launch.RenewLaunchRequest(launch_id=LAUNCH),
        Absent("CLI: no verb renews."),
    ),
    "events of an unknown launch": unknown_launch(
        get(f"/v1/launches/{LAUNCH}/events"),
        "WatchLaunch",
        launch.WatchLaunchRequest(launch_id=LAUNCH),
        verb("logs", LAUNCH),
    ),
    "trace of an unknown launch": unknown_launch(
        get(f"/v1/launches/{LAUNCH}/trace"),
        "GetLaunchTrace",
        launch.GetLaunchTraceRequest(launch_id=LAUNCH),
        verb("trace", LAUNCH),
    ),
    "a session for an unknown launch": unknown_launch(
        post("/v1/sessions", {"launch_id": LAUNCH}),
        "OpenSession",
        lambda scene: session.OpenSessionRequest(
            launch_id=LAUNCH, mode=session.SESSION_MODE_COMPLETE, idempotency_key=ask.fresh()
        ),
        verb("forward", LAUNCH, "80"),
        stub="sessions",
    ),
    "an unknown execution": unknown(
        "execution",
        get(f"/v1/executions/{EXECUTION}"),
        "executions",
        "GetExecution",
        execution.GetExecutionRequest(execution_id=EXECUTION),
    ),
    "output of an unknown execution": unknown(
        "execution",
        get(f"/v1/executions/{EXECUTION}/output"),
        "executions",
        "WatchOutput",
        execution.WatchOutputRequest(execution_id=EXECUTION),
    ),
    "a signal to an unknown execution": unknown(
        "execution",
        post(f"/v1/executions/{EXECUTION}/signal", {"signal": 15}),
        "executions",
        "SignalExecution",
        execution.SignalExecutionRequest(execution_id=EXECUTION, signal=15),
    ),
    "input for an unknown execution": unknown(
        "execution",
        post(f"/v1/executions/{EXECUTION}/stdin", {"offset": 0, "close": True}),
        "executions",
        "WriteStdin",
        execution.WriteStdinRequest(execution_id=EXECUTION, close=True),
    ),
    "an unknown sandbox": unknown(
        "sandbox",
        post(f"/v1/sandboxes/{SANDBOX}/executions", {"arguments": ["true"]}),
        "executions",
        "StartExecution",
        lambda scene: execution.StartExecutionRequest(
            sandbox_id=SANDBOX,
            idempotency_key=ask.fresh(),
            command=execution.Command(arguments=["true"]),
        ),
    ),
    "an unknown session": unknown(
        "session",
        get(f"/v1/sessions/{SESSION}"),
        "sessions",
        "GetSession",
        session.GetSessionRequest(session_id=SESSION),
    ),
    "an end of an unknown session": unknown(
        "session",
        lambda scene: scene.mesh.http.delete(f"/v1/sessions/{SESSION}"),
        "sessions",
        "CloseSession",
        session.CloseSessionRequest(session_id=SESSION),
    ),
    "an offer to an unknown session": unknown(
        "session",
        post(f"/v1/sessions/{SESSION}/offer", {"offer": ask.OFFER}),
        "sessions",
        "SendOffer",
        session.SendOfferRequest(session_id=SESSION, offer=ask.OFFER),
    ),
}

REQUESTS = {
    "a wrong key": ask.caller("not-the-key", "key_invalid"),
    "no key": ask.caller("", "key_missing"),
    "a path of the API that is none": Row(
        reason="route_not_found",
        kind=surface.NOT_FOUND,
        rest=get("/v1/nothing"),
        grpc=Absent("gRPC: the generated clients have no other methods."),
        cli=Usage(lambda scene: ["nothing"]),
    ),
    "100 MB where 768 KiB are allowed": Row(
        reason="body_too_large",
        kind=surface.TOO_LARGE,
        rest=ask.rest_huge,
        grpc=ask.grpc_huge,
        grpc_reason="message_too_large",
        cli=Absent("CLI: the system bounds its words below 1 MB; changes go as an upload."),
    ),
    "malformed JSON": Row(
        reason="malformed_json",
        rest=ask.rest_malformed,
        grpc=GRPC_FRAMES,
        cli=Absent("CLI: it takes no JSON."),
    ),
    "unknown fields": Row(
        reason="invalid_body",
        rest=lambda scene: surface.rest_launch(scene, {**scene.body(TRUE), "colour": "red"}),
        grpc=Absent("gRPC: fields of a newer client are ignored, as protobuf has it."),
        cli=Usage(lambda scene: ["launch", scene.local, "--colour=red", "--", "true"]),
    ),
    "a cursor that is none": Row(
        reason="cursor_invalid",
        rest=get("/v1/launches/{held}/events?cursor=nonsense"),
        grpc=rpc(
            "launches",
            "WatchLaunch",
            lambda scene: launch.WatchLaunchRequest(launch_id=scene.held_id, cursor="nonsense"),
        ),
        cli=verb("logs", "{held}", "--cursor", "nonsense"),
    ),
    "a page token that is none": Row(
        reason="page_token_invalid",
        rest=get("/v1/launches?page_token=nonsense"),
        grpc=rpc("launches", "ListLaunches", launch.ListLaunchesRequest(page_token="nonsense")),
        cli=Absent("CLI: it turns the pages itself."),
    ),
    "an offer to a session that is no SDP": Row(
        reason="sdp_invalid",
        rest=post("/v1/sessions/{session}/offer", {"offer": NO_SDP}),
        grpc=rpc(
            "sessions",
            "SendOffer",
            lambda scene: session.SendOfferRequest(session_id=scene.session_id, offer=NO_SDP),
        ),
        cli=NEGOTIATES,
    ),
    "a port that is none": Row(
        reason="port_invalid",
        kind=surface.UNREADABLE,
        rest=Absent("REST: ports are asked for inside a session's tunnel."),
        grpc=Absent("gRPC: ports are asked for inside a session's tunnel."),
        cli=verb("forward", "{held}", "70000"),
    ),
    "an upload with a token that is none": Row(
        reason="upload_token_invalid",
        kind=surface.NOT_FOUND,
        rest=lambda scene: ask.rest_upload(scene, "no-token"),
        grpc=lambda scene: ask.grpc_upload(scene, "no-token"),
        cli=Absent("CLI: it only uploads with the token of its own launch."),
    ),
    "an upload that is no pack": Row(
        reason="pack_invalid",
        rest=ask.rest_garbage,
        grpc=ask.grpc_garbage,
        cli=Absent("CLI: git makes the pack that it uploads."),
    ),
}

ROWS = LOCAL | LAUNCHES | IDS | REQUESTS | WORKSPACES | SANDBOXES
