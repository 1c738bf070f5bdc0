"""Starting, ending, signalling and feeding executions over the wire."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead.execution.v1 import execution_pb2
from fairlead_limits.table import ARGUMENT_BYTES, ENVIRONMENT_BYTES
from tests.contract.wire.sandbox_room import (
    PYTHON,
    SandboxRoom,
    processes_with,
    room_in_process,
    room_settings,
)
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        yield room


async def reason_of_start(room: SandboxRoom, sandbox_id: str, *arguments: str) -> str:
    with pytest.raises(FairleadError) as caught:
        await room.start(sandbox_id, *arguments)
    return caught.value.reason


async def gone(name: str) -> None:
    """Wait for processes that were signalled: they may outlive their group's leader by a moment."""

    async def left() -> list[int]:
        return processes_with(name)

    await eventually(left, lambda found: found == [])


async def test_commands_that_cannot_start(room: SandboxRoom) -> None:
    sandbox = await room.bound()
    tree = room.tree(sandbox.workspace_id)
    (tree / "plain").write_text("x")
    (tree / "no-interpreter").write_text("#!/no/such/program\n")
    (tree / "no-format").write_bytes(b"\x01\x02\x03 not a program")
    for name in ("no-interpreter", "no-format"):
        (tree / name).chmod(0o755)
    expected = {
        "no-such-program": "command_not_found",
        "./missing": "command_not_found",
        "/no/such/program": "command_not_found",
        "./plain": "command_not_executable",
        "/etc": "command_not_executable",
        "./no-interpreter": "command_not_executable",
        "./no-format": "command_not_executable",
        "": "command_invalid",
    }
    for program, reason in expected.items():
        assert await reason_of_start(room, sandbox.sandbox_id, program) == reason, program
    assert await reason_of_start(room, sandbox.sandbox_id) == "command_invalid"
    assert await reason_of_start(room, sandbox.sandbox_id, "a", "x" * 140_000) == "command_too_long"
    assert await reason_of_start(room, sandbox.sandbox_id, "a\0b") == "command_invalid"
    assert list((room.host_root / "sandboxes" / "journals").glob("*")) == []


async def test_the_largest_command_starts(room: SandboxRoom) -> None:
    sandbox = await room.create()
    arguments = ["true", *(["x" * 30] * 4090)]
    assert (await room.run(sandbox.sandbox_id, *arguments)).exit.code == 0
    execution = await room.start(
        sandbox.sandbox_id,
        "sh",
        "-c",
        'printf %s "$LARGE"',
        "x" * (ARGUMENT_BYTES.count - len('sh -c printf %s "$LARGE" ') - 1),
        environment={"LARGE": "e" * (ENVIRONMENT_BYTES.count - len("LARGE=") - 1)},
    )
    output = await room.output(execution.execution_id)
    assert len(output.stdout) == ENVIRONMENT_BYTES.count - 7


async def test_environment_is_scrubbed(room: SandboxRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_ONLY", "must not be seen")
    sandbox = await room.create()
    execution = await room.start(
        sandbox.sandbox_id, "env", "-0", environment={"OWN": "a=b\nc", "LANG": "C"}
    )
    entries = (await room.output(execution.execution_id)).stdout.split(b"\0")
    seen = dict(entry.decode().split("=", 1) for entry in entries if entry)
    private = room.host_root / "sandboxes" / "private" / sandbox.sandbox_id
    assert seen.pop("TRACEPARENT").startswith("00-")
    assert seen.pop("USER")
    assert seen == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(private / "home"),
        "TMPDIR": str(private / "tmp"),
        "LANG": "C",
        "FAIRLEAD_SANDBOX_ID": sandbox.sandbox_id,
        "OWN": "a=b\nc",
    }
    # Nor does any process above it carry the worker's variables.
    above = await room.run(
        sandbox.sandbox_id, "sh", "-c", "cat /proc/$PPID/environ; umask; ls -l /proc/self/fd"
    )
    assert b"WORKER_ONLY" not in above.stdout
    assert above.stdout.startswith(b"0022\n")
    assert b"socket:" not in above.stdout


@pytest.mark.parametrize("name", ["", "A=B", "N\0", "a-b"])
async def test_variables_that_cannot_be(room: SandboxRoom, name: str) -> None:
    sandbox = await room.create()
    with pytest.raises(FairleadError) as caught:
        await room.start(sandbox.sandbox_id, "true", environment={name: "x"})
    assert caught.value.reason == "environment_invalid"


async def test_working_directories(room: SandboxRoom) -> None:
    sandbox = await room.bound()
    tree = room.tree(sandbox.workspace_id)
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "in").symlink_to("a/b")
    (tree / "out").symlink_to("/etc")
    (tree / "file").write_text("x")
    for directory, found in {"": tree, "a/b": tree / "a/b", "in": tree / "a/b"}.items():
        execution = await room.start(sandbox.sandbox_id, "pwd", directory=directory)
        output = await room.output(execution.execution_id)
        assert output.stdout.decode() == f"{found}\n"
    expected = {
        "..": "directory_outside",
        "a/../../x": "directory_outside",
        "/etc": "directory_outside",
        "out": "directory_outside",
        "missing": "directory_not_found",
        "file": "directory_not_found",
    }
    for directory, reason in expected.items():
        with pytest.raises(FairleadError) as caught:
            await room.start(sandbox.sandbox_id, "pwd", directory=directory)
        assert caught.value.reason == reason, directory
    tree.rename(tree.with_name("moved"))
    with pytest.raises(FairleadError) as caught:
        await room.start(sandbox.sandbox_id, "pwd", directory="a/b")
    assert caught.value.reason == "workspace_not_found", "it was given back"


async def test_before_a_workspace_it_runs_at_home(room: SandboxRoom) -> None:
    sandbox = await room.create()
    output = await room.run(
        sandbox.sandbox_id, "sh", "-c", 'test "$PWD" = "$HOME" && test -w "$TMPDIR"'
    )
    assert output.exit.code == 0


async def test_exit_codes_and_signals(room: SandboxRoom) -> None:
    sandbox = await room.create()
    for code in (0, 1, 2, 126, 127, 128, 254, 255):
        exit_ = (await room.run(sandbox.sandbox_id, "sh", "-c", f"exit {code}")).exit
        assert exit_.reason == execution_pb2.EXIT_REASON_EXITED
        assert exit_.code == code
        assert exit_.HasField("code")
        assert not exit_.HasField("signal")
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE):
        exit_ = (await room.run(sandbox.sandbox_id, "sh", "-c", f"kill -{int(number)} $$")).exit
        assert exit_.reason == execution_pb2.EXIT_REASON_SIGNALLED
        assert exit_.signal == number
        assert not exit_.HasField("code")


async def test_signals_reach_the_whole_group(room: SandboxRoom) -> None:
    sandbox = await room.create()
    name = random_id("mrk")
    execution = await room.start(
        sandbox.sandbox_id,
        "sh",
        "-c",
        f'{PYTHON} -c "import time; print(1, flush=True); time.sleep(60)" {name}; exit 3',
    )
    async for frame in room.frames(execution.execution_id):
        if frame.HasField("output"):
            break
    await room.signal(execution.execution_id, signal.SIGINT)
    assert (await room.output(execution.execution_id)).exit.signal == signal.SIGINT
    await gone(name)
    with pytest.raises(FairleadError) as caught:
        await room.signal(execution.execution_id, signal.SIGINT)
    assert caught.value.reason == "execution_ended"
    with pytest.raises(FairleadError) as caught:
        await room.signal(execution.execution_id, 0)
    assert caught.value.reason == "signal_invalid"


async def test_signals_have_their_default_meaning(room: SandboxRoom) -> None:
    sandbox = await room.create()
    output = await room.run(sandbox.sandbox_id, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    # The C library leaves its own two, 32 and 33, ignored after posix_spawn.
    own = 3 << 31
    masks = [int(line.split()[1], 16) for line in output.stdout.splitlines()]
    assert [mask & ~own for mask in masks] == [0, 0]


async def test_a_time_limit_ends_the_whole_group(room: SandboxRoom) -> None:
    sandbox = await room.create()
    polite = await room.start(
        sandbox.sandbox_id,
        "sh",
        "-c",
        "trap 'echo bye; exit 9' TERM; sleep 60 & wait",
        seconds=4,
        grace=60,
    )
    output = await room.output(polite.execution_id)
    assert output.exit.reason == execution_pb2.EXIT_REASON_TIMED_OUT
    assert output.stdout == b"bye\n"
    assert not output.exit.HasField("code")
    name = random_id("mrk")
    deaf = await room.start(
        sandbox.sandbox_id,
        "sh",
        "-c",
        f"trap '' TERM; {PYTHON} -c 'import time; time.sleep(60)' {name}",
        seconds=1,
        grace=0.2,
    )
    output = await room.output(deaf.execution_id)
    assert output.exit.reason == execution_pb2.EXIT_REASON_TIMED_OUT
    await gone(name)


async def test_the_same_key_gives_the_same_execution(room: SandboxRoom) -> None:
    sandbox, other = await room.create(), await room.create()
    script = ("sh", "-c", "echo run >> $HOME/runs; cat $HOME/runs")
    started = await asyncio.gather(
        *(room.start(sandbox.sandbox_id, *script, key="one") for _ in range(6))
    )
    assert len({execution.execution_id for execution in started}) == 1
    assert (await room.output(started[0].execution_id)).stdout == b"run\n"
    again = await room.start(sandbox.sandbox_id, *script, key="one")
    assert again.execution_id == started[0].execution_id
    assert again.state == execution_pb2.EXECUTION_STATE_EXITED
    elsewhere = await room.start(other.sandbox_id, *script, key="one")
    assert elsewhere.execution_id != again.execution_id
    await room.release(sandbox.sandbox_id)
    kept = await room.start(sandbox.sandbox_id, *script, key="one")
    assert kept.execution_id == again.execution_id


async def test_a_key_is_free_again_after_a_failed_start(room: SandboxRoom) -> None:
    sandbox = await room.bound()
    with pytest.raises(FairleadError):
        await room.start(sandbox.sandbox_id, "./tool", key="one")
    tool = room.tree(sandbox.workspace_id) / "tool"
    tool.write_text("#!/bin/sh\necho made\n")
    tool.chmod(0o755)
    execution = await room.start(sandbox.sandbox_id, "./tool", key="one")
    assert (await room.output(execution.execution_id)).stdout == b"made\n"


async def test_a_caller_that_leaves_does_not_stop_the_start(room: SandboxRoom) -> None:
    sandbox = await room.create()
    starting = asyncio.create_task(room.start(sandbox.sandbox_id, "sleep", "0.1", key="one"))
    await asyncio.sleep(0.002)
    starting.cancel()
    await asyncio.wait([starting])
    execution = await room.start(sandbox.sandbox_id, "sleep", "0.1", key="one")
    assert (await room.output(execution.execution_id)).exit.code == 0


async def test_running_executions_are_bounded(tmp_path: Path, sockets: Path) -> None:
    settings = room_settings(tmp_path, sockets, most_executions=2, most_kept_executions=3)
    async with room_in_process(settings) as room:
        sandbox = await room.create()
        running = [await room.start(sandbox.sandbox_id, "sleep", "60") for _ in range(2)]
        assert await reason_of_start(room, sandbox.sandbox_id, "true") == "sandbox_full"
        for execution in running:
            await room.signal(execution.execution_id, signal.SIGKILL)
            await room.output(execution.execution_id)
        for _ in range(6):
            await room.run(sandbox.sandbox_id, "true")
        await room.release(sandbox.sandbox_id)
        assert len(list((tmp_path / "sandboxes" / "journals").iterdir())) == 3


async def test_unknown_executions(room: SandboxRoom) -> None:
    for use in (
        room.output(random_id("exe")),
        room.write("../x", 0, b""),
        room.signal("", 15),
    ):
        with pytest.raises(FairleadError) as caught:
            await use
        assert caught.value.reason == "execution_not_found"


async def test_executions_are_listed_in_pages_and_for_their_tenant_alone(room: SandboxRoom) -> None:
    sandbox = await room.bound()
    other = await room.bound()
    await room.start(other.sandbox_id, "true")
    started = [await room.start(sandbox.sandbox_id, "sleep", "60") for _ in range(3)]
    ids = sorted(each.execution_id for each in started)

    async def page(token: str = "", tenant: str = sandbox.tenant, size: int = 2) -> list[str]:
        answer = await room.executions.ListExecutions(
            execution_pb2.ListExecutionsRequest(
                tenant=tenant, sandbox_id=sandbox.sandbox_id, page_size=size, page_token=token
            )
        )
        found = [each.execution_id for each in answer.executions]
        return [*found, answer.next_page_token]

    *first, token = await page()
    *rest, end = await page(token)
    assert [*first, *rest] == ids
    assert (len(first), end) == (2, "")
    for wrong, code in (
        ({"tenant": "other"}, grpc.StatusCode.NOT_FOUND),
        ({"size": 101}, grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await page(**wrong)
        assert caught.value.code() is code
