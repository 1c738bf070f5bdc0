"""A room as a process: exit codes, signals, one clear line, and no life without its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.eventually import eventually

ROOM = Path(__file__).with_name("probe_room.py")


@asynccontextmanager
async def room(*arguments: str, **settings: str) -> AsyncIterator[Process]:
    environment = {
        name: text for name, text in os.environ.items() if name[:5] not in ("FAIRL", "OTEL_")
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOM), *arguments, stdout=PIPE, stderr=PIPE, env=environment | settings
    )
    try:
        async with asyncio.timeout(200):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def lines_until(process: Process, message: str) -> list[dict[str, object]]:
    """Read log lines up to the one with `message`, or to the end."""
    assert process.stderr is not None
    found: list[dict[str, object]] = []
    while (line := await process.stderr.readline()) and message not in [
        one["message"] for one in found
    ]:
        found.append(json.loads(line))
        if found[-1]["message"] == message:
            break
    return found


async def messages(process: Process) -> list[object]:
    return [line["message"] for line in await lines_until(process, "")]


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_closes_and_ends_with_zero(number: signal.Signals) -> None:
    async with room() as process:
        assert [line["message"] for line in await lines_until(process, "ready")] == ["ready"]
        process.send_signal(number)
        assert await messages(process) == ["draining", "closed", "stopped"]
        assert await process.wait() == 0


@pytest.mark.asyncio
async def test_a_drain_is_cut_short_and_the_rest_still_closes() -> None:
    async with room(FAIRLEAD_PROBE_MODE="slow_drain", FAIRLEAD_DRAIN_SECONDS="0.05") as process:
        await lines_until(process, "ready")
        process.terminate()
        assert await messages(process) == ["draining", "drain cut short", "closed", "stopped"]
        assert await process.wait() == 0


@pytest.mark.asyncio
async def test_a_second_signal_ends_it_at_once() -> None:
    async with room(FAIRLEAD_PROBE_MODE="slow_drain", FAIRLEAD_DRAIN_SECONDS="60") as process:
        await lines_until(process, "ready")
        process.terminate()
        await lines_until(process, "draining")
        process.terminate()
        assert await process.wait() == 128 + signal.SIGTERM


@pytest.mark.asyncio
async def test_a_signal_during_the_start_ends_the_start() -> None:
    async with room(FAIRLEAD_PROBE_MODE="slow_start") as process:
        await lines_until(process, "starting")
        process.terminate()
        assert await messages(process) == ["stopped"]
        assert await process.wait() == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("mode", "message", "fields"),
    [
        ("refuses", "No root.", {"reason": "no_root", "remedy": "Make one."}),
        ("bind", "the room cannot start or go on", {"cause": "[Errno 98] Address already in use"}),
    ],
)
async def test_a_start_that_fails_says_so_in_one_line(
    mode: str, message: str, fields: dict[str, str]
) -> None:
    async with room(FAIRLEAD_PROBE_MODE=mode) as process:
        (line,) = await lines_until(process, "")
        assert await process.wait() == 1
    assert line["message"] == message
    assert line["level"] == "error"
    assert line.items() >= fields.items()
    assert "exception" not in line


@pytest.mark.asyncio
async def test_a_task_of_the_room_that_fails_ends_the_room() -> None:
    async with room(FAIRLEAD_PROBE_MODE="crashes") as process:
        lines = await lines_until(process, "the room failed")
        assert await process.wait() == 1
    assert "ValueError: a bug" in str(lines[-1]["exception"])


@pytest.mark.asyncio
async def test_wrong_settings_are_named_and_not_repeated() -> None:
    async with room(FAIRLEAD_LOG_LEVEL="lo", FAIRLEAD_DRAIN_SECONDS="s3cret") as process:
        output, errors = await process.communicate()
    assert process.returncode == 2
    assert output == b""
    text = errors.decode()
    assert text.startswith("probe: FAIRLEAD_LOG_LEVEL: ")
    assert "; FAIRLEAD_DRAIN_SECONDS: " in text
    assert "s3cret" not in text
    assert text.count("\n") == 1


@pytest.mark.asyncio
async def test_an_unknown_setting_is_a_warning_with_the_nearest_name() -> None:
    async with room(FAIRLEAD_PROBE_MODUS="x") as process:
        first = (await lines_until(process, "ready"))[0]
    assert (first["level"], first["setting"], first["nearest"]) == (
        "warning",
        "FAIRLEAD_PROBE_MODUS",
        "FAIRLEAD_PROBE_MODE",
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("argument", ["--show-settings", "--help"])
async def test_the_settings_can_be_seen_without_starting(argument: str) -> None:
    async with room(argument, FAIRLEAD_REDIS_URL="redis://u:hunter2@h/0") as process:
        output, errors = await process.communicate()
    assert process.returncode == 0
    assert errors == b""
    assert b"FAIRLEAD_PROBE_MODE" in output
    assert b"FAIRLEAD_REDIS_URL" in output
    assert b"hunter2" not in output


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["good", "stuck_flush"])
async def test_a_collector_that_is_gone_neither_fills_the_log_nor_holds_the_end(mode: str) -> None:
    async with room(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", FAIRLEAD_PROBE_MODE=mode
    ) as process:
        await lines_until(process, "ready")
        process.terminate()
        after = await lines_until(process, "")
        # What is stuck is so for ever: it was not waited for.
        assert await process.wait() == 0
    own = ("chassis.service", None)
    assert len([line for line in after if line.get("logger") not in own]) <= 1


@pytest.mark.asyncio
async def test_a_supervised_room_ends_with_its_parent() -> None:
    async with room("parent", FAIRLEAD_SUPERVISED="1") as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(await parent.stdout.readline()))
        await lines_until(parent, "ready")
        parent.kill()
        assert await messages(parent) == ["draining", "closed", "stopped"]

        async def ended() -> bool:
            return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

        await eventually(ended)
