"""The clients in Python: a launch held for a block, commands in it, release at its end."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import fairlead_sdk
from fairlead_sdk import AsyncFairlead, CommandFailed, Fairlead, LaunchFailed
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import LaunchCancelled
from fairlead_sdk.executions import AsyncExecutions
from membrane import ChildLost
from tests.fakes import launch_documents as documents
from tests.fakes.local_repository import LocalRepository
from tests.fakes.scripted_door import Answer, Script, ScriptedTransport, problem

LAUNCH = f"/v1/launches/{documents.LAUNCH_ID}"
START = f"/v1/sandboxes/{documents.SANDBOX_ID}/executions"
EXECUTION = f"/v1/executions/{documents.EXECUTION_ID}"


@pytest.fixture
def script() -> Script:
    """A launch that gets its workspace and sandbox, and a command in it."""
    lines = [documents.snapshot(), documents.step("1", "workspace"), documents.provisioned()]
    pieces = [("stdout", b"out\n"), ("stderr", b"err\n"), ("stdout", b"\xff")]
    frames = documents.execution_lines(*pieces, end=documents.ending(3))
    return (
        Script()
        .on("POST", "/v1/launches", Answer(lines=lines, held=True))
        .on("POST", f"{LAUNCH}/cancel", Answer(document=documents.launch("cancelled")))
        .on("POST", f"{LAUNCH}/renew", Answer(document=documents.launch("provisioned")))
        .on("GET", f"{LAUNCH}/trace", Answer(document=documents.trace()))
        .on("GET", "/v1/launches", Answer(document={"launches": [documents.launch()]}))
        .on("POST", START, Answer(status=201, document=documents.execution()))
        .on("GET", f"{EXECUTION}/output", Answer(lines=frames))
        .on("POST", f"{EXECUTION}/stdin", Answer(document={"offset": 0}))
    )


def client(script: Script) -> AsyncFairlead:
    return AsyncFairlead(url="http://door", api_key="k", transport=ScriptedTransport(script))


def blocking(script: Script) -> Fairlead:
    return Fairlead(url="http://door", api_key="k", transport=ScriptedTransport(script))


def test_the_public_names_are_these() -> None:
    assert fairlead_sdk.__all__ == sorted(fairlead_sdk.__all__)
    assert fairlead_sdk.__all__ == [
        "AlreadyExists",
        "AsyncFairlead",
        "AsyncLaunch",
        "AsyncRunningCommand",
        "AsyncSandbox",
        "AsyncSession",
        "AsyncSshHost",
        "AsyncTerminal",
        "BatchOutcome",
        "BranchInUse",
        "CommandFailed",
        "CommandResult",
        "CursorGone",
        "DeadlineExceeded",
        "DirectoryNotEmpty",
        "Exit",
        "FailedPrecondition",
        "Fairlead",
        "FairleadError",
        "FileChanged",
        "FileEvent",
        "FileForbidden",
        "FileMissing",
        "FileRecord",
        "FileThere",
        "FileTooLarge",
        "Freshness",
        "HostLacksObjects",
        "HostReserved",
        "IdempotencyConflict",
        "Internal",
        "InvalidArgument",
        "IsolationTooWeak",
        "IsolationUnavailable",
        "Launch",
        "LaunchCancelled",
        "LaunchEvent",
        "LaunchFailed",
        "LaunchNotFound",
        "LaunchNotHeld",
        "LaunchRecord",
        "LimitExceeded",
        "MakeDirectory",
        "MeshUnavailable",
        "MoveFile",
        "NameInvalid",
        "NetworkDecision",
        "NetworkExceeded",
        "NetworkRecord",
        "NetworkUnavailable",
        "NoDirectory",
        "NoRegularFile",
        "NoSpace",
        "NotATerminal",
        "NotFound",
        "OpenedSession",
        "OutOfRange",
        "OutputGap",
        "PathRefused",
        "PermissionDenied",
        "ProfileUnknown",
        "PtyTerminal",
        "QuotaExceeded",
        "ReadFile",
        "RemoveFile",
        "RepositoryError",
        "ResourceExhausted",
        "RunningCommand",
        "Sandbox",
        "SandboxInUse",
        "SandboxNotFound",
        "SandboxRecord",
        "SandboxReleased",
        "Session",
        "SessionClosed",
        "SessionRecord",
        "SessionTunnel",
        "Span",
        "SshHost",
        "StoreLocked",
        "StreamLost",
        "TerminalOwned",
        "Trace",
        "TreeCopied",
        "Unauthenticated",
        "Unavailable",
        "Wall",
        "WorkspaceDirty",
        "WorkspaceExists",
        "WorkspaceNotFound",
        "WorkspaceRecord",
        "WorkspaceReleased",
        "WorkspaceUnpushed",
        "WriteFile",
    ]
    for name in fairlead_sdk.__all__:
        assert getattr(fairlead_sdk, name).__name__ == name


def test_names_of_later_days_are_absent() -> None:
    with pytest.raises(AttributeError, match="isolate"):
        _ = fairlead_sdk.isolate


@pytest.mark.asyncio
async def test_objects_that_are_first_asked_for_as_a_launch_ends_are_closed(
    script: Script, repository: LocalRepository
) -> None:
    async with client(script) as fairlead, fairlead.launch(repository.path) as launch:
        assert "objects" not in vars(launch)
    with pytest.raises(ChildLost, match="is closed here"):
        await launch.isolate("aviary:Parrot")


@pytest.mark.asyncio
async def test_a_command_runs_where_the_launch_was_made(
    script: Script, repository: LocalRepository
) -> None:
    repository.write("new", b"content")
    path = repository.path / "source"
    async with client(script) as fairlead, fairlead.launch(path, branch="try-1") as launch:
        assert launch.launch_id == documents.LAUNCH_ID
        result = await launch.commands.run("echo out", environment={"A": "1"}, timeout=5)
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n\xff", b"err\n", 3)
    assert result.stdout_text == "out\n\N{REPLACEMENT CHARACTER}"
    body = script.asked("POST", "/v1/launches")[0].document
    assert body["branch"] == "try-1"
    assert "command" not in body
    source = body["source"]
    assert isinstance(source, dict)
    assert base64.b64decode(source["changes"]["pack"]).startswith(b"PACK")
    assert script.asked("POST", START)[0].document == {
        "arguments": ["sh", "-c", "echo out"],
        "environment": {"A": "1"},
        "directory": "source",
        "timeout": 5,
        "on_full": "block",
    }
    assert len(script.asked("POST", f"{LAUNCH}/cancel")) == 1


@pytest.mark.asyncio
async def test_stdin_survives_a_mesh_that_is_away(
    script: Script,
) -> None:
    away = Answer(status=503, document={"reason": "idempotency_pending"})
    script.on("POST", f"{EXECUTION}/stdin", *[away] * 7, Answer(document={"offset": 0}))

    async def at_once(seconds: float) -> None:
        return None

    async with FrontDoor(
        url="http://mesh", api_key="", transport=ScriptedTransport(script), sleep=at_once
    ) as door:

        async def content() -> AsyncIterator[bytes]:
            yield b"abc"

        await AsyncExecutions(door=door).feed_stdin(documents.EXECUTION_ID, content())
    bodies = [one.document for one in script.asked("POST", f"{EXECUTION}/stdin")]
    assert bodies[0] == bodies[7] == {"offset": 0, "content": "YWJj", "close": False}
    assert bodies[8:] == [{"offset": 3, "content": "", "close": True}]


@pytest.mark.asyncio
async def test_stdin_is_fed_with_offsets_and_closed(
    script: Script, repository: LocalRepository
) -> None:
    async with client(script) as fairlead, fairlead.launch(repository.path) as launch:
        await launch.commands.run(["cat"], stdin=b"abc")
    assert script.asked("POST", START)[0].document["stdin"] is True
    for one in script.asked("POST", f"{EXECUTION}/stdin"):
        assert one.document in (
            {"offset": 0, "content": "YWJj", "close": False},
            {"offset": 3, "content": "", "close": True},
        )


@pytest.mark.asyncio
async def test_check_raises_and_the_launch_is_still_released(
    script: Script, repository: LocalRepository
) -> None:
    async with client(script) as fairlead:
        with pytest.raises(CommandFailed) as caught:
            async with fairlead.launch(repository.path) as launch:
                await launch.commands.run(["false"], check=True)
    assert caught.value.fields == {"exit_code": "3", "stderr": "err\n"}
    assert len(script.asked("POST", f"{LAUNCH}/cancel")) == 1


@pytest.mark.asyncio
async def test_keep_holds_the_launch(script: Script, repository: LocalRepository) -> None:
    async with client(script) as fairlead, fairlead.launch(repository.path, keep=True):
        pass
    assert script.asked("POST", "/v1/launches")[0].document["keep"] is True
    assert script.asked("POST", f"{LAUNCH}/cancel") == []


@pytest.mark.parametrize(
    ("terminal", "kind", "reason"),
    [
        (documents.failed("1", "no_host", "workspace"), LaunchFailed, "no_host"),
        (documents.cancelled("1", "lease_expired"), LaunchCancelled, "lease_expired"),
    ],
)
@pytest.mark.asyncio
async def test_a_launch_that_does_not_come_about_raises(
    terminal: dict[str, object],
    kind: type[Exception],
    reason: str,
    script: Script,
    repository: LocalRepository,
) -> None:
    script.on("POST", "/v1/launches", Answer(lines=[documents.snapshot(), terminal]))
    async with client(script) as fairlead:
        with pytest.raises(kind) as caught:
            async with fairlead.launch(repository.path):
                pytest.fail("there is no launch")
    assert getattr(caught.value, "reason", "") == reason


@pytest.mark.asyncio
async def test_a_refused_launch_cancels_nothing(
    script: Script, repository: LocalRepository
) -> None:
    script.on("POST", "/v1/launches", problem(400, "branch_invalid"))
    async with client(script) as fairlead:
        with pytest.raises(fairlead_sdk.InvalidArgument):
            async with fairlead.launch(repository.path):
                pytest.fail("there is no launch")
    assert len(script.received) == 1


def test_the_blocking_client_does_the_same(script: Script, repository: LocalRepository) -> None:
    exited = Answer(lines=[documents.snapshot(), documents.exited(code=0)])
    script.on("GET", f"{LAUNCH}/events", exited)
    with blocking(script) as fairlead:
        with fairlead.launch(repository.path) as launch:
            assert launch.commands.run(["true"]).exit_code == 3
            assert launch.renew(lease=60).state == "provisioned"
            assert launch.record.launch_id == launch.launch_id
            assert launch.trace().trace_id == documents.TRACE_ID
        assert [one.launch_id for one in fairlead.launches.list()] == [documents.LAUNCH_ID]
        events = list(fairlead.launches.events(documents.LAUNCH_ID))
        assert fairlead.trace(documents.LAUNCH_ID).spans == ()
    assert [event.document["type"] for event in events] == ["snapshot", "exited"]
    assert len(script.asked("POST", f"{LAUNCH}/cancel")) == 1
    assert script.asked("POST", f"{LAUNCH}/renew")[0].document == {"lease": 60}


def test_an_error_in_the_block_releases_and_is_raised(
    script: Script, repository: LocalRepository
) -> None:
    with (
        blocking(script) as fairlead,
        pytest.raises(ZeroDivisionError),
        fairlead.launch(repository.path),
    ):
        _ = 1 // 0
    assert len(script.asked("POST", f"{LAUNCH}/cancel")) == 1


def test_the_blocking_client_finds_the_stack_of_this_directory(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / ".fairlead"
    state.mkdir()
    (state / "key").write_text("local")
    (state / "stack.json").write_text(json.dumps({"url": "http://here", "api_key_file": "key"}))
    monkeypatch.chdir(tmp_path)
    with Fairlead(transport=ScriptedTransport(script)) as fairlead:
        fairlead.launches.list()
    assert script.received[0].headers["authorization"] == "Bearer local"
