"""Commands in the background and batches, from both clients."""

from __future__ import annotations

import asyncio
import base64
import signal

import pytest

from fairlead_sdk import (
    AsyncFairlead,
    AsyncRunningCommand,
    Fairlead,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    RunningCommand,
    WriteFile,
)
from fairlead_sdk.batch import FileWork
from fairlead_sdk.cli.endings import ending_of, gap_of
from fairlead_sdk.commands import AsyncCommands
from fairlead_sdk.errors import FailedPrecondition
from fairlead_sdk.executions import AsyncExecutions
from fairlead_sdk.launches import Command
from fairlead_sdk.records import Exit, OutputGap
from tests.eventually import eventually
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Answer, Received, Script, ScriptedTransport, problem

SANDBOX = f"/v1/sandboxes/{documents.SANDBOX_ID}"
EXECUTION = f"/v1/executions/{documents.EXECUTION_ID}"
GAP: dict[str, object] = {
    "type": "gap",
    "gap": {"first_sequence": 2, "last_sequence": 5, "bytes": 300},
}


def output() -> list[dict[str, object]]:
    """Output with a gap after its first record."""
    lines = documents.execution_lines(("stdout", b"first"), end=documents.ending(0))
    lines[-1]["exit"] |= {  # type: ignore[operator]
        "last_sequence": 5,
        "cpu_time": 0.25,
        "peak_memory_bytes": 4096,
    }
    return [*lines[:-1], GAP, lines[-1]]


@pytest.fixture
def script() -> Script:
    return (
        Script()
        .on("POST", f"{SANDBOX}/executions", Answer(status=201, document=documents.execution()))
        .on("GET", EXECUTION, Answer(document=documents.execution()))
        .on("GET", f"{EXECUTION}/output", Answer(lines=output()))
        .on("POST", f"{EXECUTION}/stdin", Answer(document={"offset": 3}))
        .on("POST", f"{EXECUTION}/signal", Answer(document=documents.execution()))
    )


def connected(script: Script) -> AsyncFairlead:
    return AsyncFairlead(url="http://door", api_key="k", transport=ScriptedTransport(script))


def commands(executions: AsyncExecutions) -> AsyncCommands:
    return AsyncCommands(executions=executions, sandbox_id=documents.SANDBOX_ID, directory="source")


@pytest.mark.asyncio
async def test_a_command_in_the_background(script: Script) -> None:
    async with connected(script) as fairlead:
        running = await commands(fairlead.executions).start(
            "make", stdin=True, timeout=9, grace=0.5, on_full="block"
        )
        assert isinstance(running, AsyncRunningCommand)
        await running.write(b"abc")
        await running.close_stdin()
        await running.signal(signal.SIGINT)
        result = await running.wait()
        record = await running.record()
    assert script.asked("POST", f"{SANDBOX}/executions")[0].document == {
        "arguments": ["sh", "-c", "make"],
        "directory": "source",
        "stdin": True,
        "timeout": 9,
        "grace": 0.5,
        "on_full": "block",
    }
    assert [asked.document for asked in script.asked("POST", f"{EXECUTION}/stdin")] == [
        {"offset": 0, "content": "YWJj", "close": False},
        {"offset": 3, "content": "", "close": True},
    ]
    assert (result.stdout, result.missing_bytes, result.exit_code) == (b"first", 300, 0)
    assert (result.exit.cpu_time, result.exit.peak_memory_bytes) == (0.25, 4096)
    assert record.execution_id == running.execution_id == documents.EXECUTION_ID


@pytest.mark.asyncio
async def test_an_output_goes_on_after_a_gap(script: Script) -> None:
    """The connection breaks after the gap: the cursor is that of its last record."""
    script.forget()
    script.on(
        "GET", f"{EXECUTION}/output", Answer(lines=output()[:-1]), Answer(lines=output()[-1:])
    )
    async with connected(script) as fairlead:
        running = commands(fairlead.executions).attach(documents.EXECUTION_ID)
        contents = [frame.content async for frame in running.output()]
    assert contents[2] == OutputGap(first_sequence=2, last_sequence=5, size=300)
    assert isinstance(contents[-1], Exit)
    assert len(contents) == 4
    asked = script.asked("GET", f"{EXECUTION}/output")
    assert asked[1].query == {"cursor": "5"}


@pytest.mark.asyncio
async def test_killing_what_has_ended_is_no_error(script: Script) -> None:
    script.on("POST", f"{EXECUTION}/signal", problem(409, "execution_ended"))
    async with connected(script) as fairlead:
        running = commands(fairlead.executions).attach(documents.EXECUTION_ID)
        await running.kill()
        with pytest.raises(FailedPrecondition):
            await running.signal(15)


@pytest.mark.asyncio
async def test_a_run_that_is_cancelled_leaves_nothing_behind(script: Script) -> None:
    script.on("GET", f"{EXECUTION}/output", Answer(lines=output()[:1], held=True))
    async with connected(script) as fairlead:
        running = asyncio.create_task(commands(fairlead.executions).run("make"))

        async def watched() -> list[Received]:
            return script.asked("GET", f"{EXECUTION}/output")

        await eventually(watched)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    told = [asked.document for asked in script.asked("POST", f"{EXECUTION}/signal")]
    assert told == [{"signal": signal.SIGKILL}]


@pytest.mark.asyncio
async def test_a_batch(script: Script) -> None:
    stat = {"name": "a", "kind": "file", "size_bytes": 1, "modified_at": "2026-01-01T00:00:00Z"}
    execution = documents.execution() | {"exit": documents.ending(3)}
    text = base64.b64encode(b"out").decode()
    script.on(
        "POST",
        f"{SANDBOX}/batch",
        Answer(
            document={
                "outcomes": [
                    {"state": "failed", "execution": execution, "stdout": text, "stderr": ""},
                    {"state": "succeeded", "file": {"stat": stat, "content": text}},
                    {"state": "failed", "failure": {"reason": "file_not_found", "message": "No."}},
                    {"state": "skipped"},
                ]
            }
        ),
    )
    items: list[str | list[str] | Command | FileWork] = [
        "make",
        ["ls", "-l"],
        Command(arguments=["true"], timeout=3),
        WriteFile("a", b"x", permissions=0o600, parents=True),
        ReadFile(b"a%"),
        RemoveFile("a", recursive=True),
        MoveFile("a", "b", overwrite=True),
        MakeDirectory("c", parents=True),
    ]
    async with connected(script) as fairlead:
        outcomes = await commands(fairlead.executions).batch(
            items, continue_on_failure=True, key="once"
        )
    (asked,) = script.asked("POST", f"{SANDBOX}/batch")
    assert asked.headers["idempotency-key"] == "once"
    assert asked.document == {
        "continue_on_failure": True,
        "items": [
            {"command": {"arguments": ["sh", "-c", "make"], "directory": "source"}},
            {"command": {"arguments": ["ls", "-l"], "directory": "source"}},
            {"command": {"arguments": ["true"], "timeout": 3}},
            {
                "file": {
                    "write": {"path": "a", "content": "eA==", "permissions": 384, "parents": True}
                }
            },
            {"file": {"read": {"path": "a%25"}}},
            {"file": {"remove": {"path": "a", "recursive": True}}},
            {"file": {"move": {"source": "a", "target": "b", "overwrite": True}}},
            {"file": {"make_directory": {"path": "c", "parents": True}}},
        ],
    }
    ran, read, failed, skipped = outcomes
    assert (ran.exit_code, ran.stdout, ran.succeeded) == (3, b"out", False)
    assert read.succeeded
    assert read.content == b"out"
    assert read.file is not None
    assert read.file.size == 1
    assert (failed.reason, failed.message, failed.exit_code) == ("file_not_found", "No.", None)
    assert skipped.state == "skipped"


def test_the_blocking_client_does_the_same(script: Script) -> None:
    script.on("POST", f"{SANDBOX}/batch", Answer(document={"outcomes": [{"state": "skipped"}]}))
    script.on(
        "POST",
        "/v1/launches",
        Answer(lines=[documents.snapshot(), documents.provisioned()], held=True),
    )
    with Fairlead(url="http://door", api_key="k", transport=ScriptedTransport(script)) as fairlead:
        from fairlead_sdk.blocking_commands import Commands

        blocking = Commands(loop=fairlead._loop, commands=commands(fairlead._fairlead.executions))
        running = blocking.start(["make"])
        assert isinstance(running, RunningCommand)
        assert running.record().execution_id == running.execution_id
        running.write(b"abc")
        running.close_stdin()
        running.signal(2)
        running.kill()
        contents = [frame.content for frame in blocking.attach(running.execution_id).output()]
        assert isinstance(contents[-1], Exit)
        assert running.wait().missing_bytes == 300
        assert [outcome.state for outcome in blocking.batch(["make"])] == ["skipped"]


@pytest.mark.parametrize(
    ("reason", "words", "code"),
    [
        ("out_of_memory", "memory", 137),
        ("limit_pids", "processes", 137),
        ("limit_disk", "wrote more", 137),
        ("timed_out", "in time", 124),
        ("host_lost", "host", 69),
    ],
)
def test_ends_are_told_in_a_sentence(reason: str, words: str, code: int) -> None:
    exit_ = Exit(reason=reason, code=None, signal=None, last_sequence=0, ended_at=None)
    assert words in ending_of(exit_)
    assert exit_.exit_code == code


def test_a_gap_is_told_with_its_bytes() -> None:
    assert "1,234,567 bytes" in gap_of(OutputGap(1, 2, 1_234_567))
