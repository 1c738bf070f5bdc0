"""kill -9 of the worker while it creates, binds, starts, ends, renews and releases, all at once:
what was answered holds in its next life, what was not is one thing or the other, and nothing runs.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chassis.errors import FairleadError, Unavailable
from chassis.ids import random_id
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2 as pb
from fairlead.sandbox.v1 import sandbox_pb2 as sb
from sandbox_worker.settings import Settings
from tests.contract.wire.sandbox_room import (
    TENANT,
    SandboxRoom,
    own_worker,
    processes_with,
    room_settings,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

_WAITS = ("sh", "-c", "sleep 600; :")
_SANDBOXES = ("bound", "started", "ended", "renewed", "released")
_KILLED_AFTER = (0, 0.004, 0.02)
"""Seconds from the calls to the kill: each meets another part of them."""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="fls-") as sockets:
        yield room_settings(tmp_path, Path(sockets))


@dataclass
class Life:
    """What one life of a worker had been asked, and what it answered."""

    keys: Mapping[str, str]
    ids: dict[str, str] = field(default_factory=dict)
    ended: str = ""
    answers: dict[str, object] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    async def prepare(self, room: SandboxRoom, isolation: str, mark: str) -> None:
        """Make what the calls need."""
        for name in _SANDBOXES:
            try:
                made = await room.create(self.keys[name], isolation=isolation)
            except FairleadError as refused:
                pytest.skip(f"{isolation} cannot be had here: {refused.message}")
            self.ids[name] = made.sandbox_id
        for name in ("renewed", "released"):
            script = "setsid sh -c 'sleep 600; :' \"$0\" & sleep 600; :"
            await room.start(self.ids[name], "sh", "-c", script, mark)
        execution = await room.start(
            self.ids["ended"], "sh", "-c", "echo one; cat; echo two", mark, stdin=True
        )
        self.ended = execution.execution_id

    async def call(self, room: SandboxRoom, isolation: str, mark: str) -> None:
        """Make all calls at once; returns when each has an answer, or none will come."""
        workspace_id = random_id("wsp")
        room.tree(workspace_id).mkdir(parents=True)
        renewal = sb.RenewSandboxRequest(tenant=TENANT, sandbox_id=self.ids["renewed"])
        await asyncio.gather(
            self._note("create", room.create(self.keys["created"], isolation=isolation)),
            self._note("bind", room.bind(self.ids["bound"], workspace_id)),
            self._note("start", room.start(self.ids["started"], *_WAITS, mark, key="k")),
            self._note("write", room.write(self.ended, 0, b"typed\n", close=True)),
            self._note("watch", room.output(self.ended)),
            self._note("renew", _renewed(room, renewal)),
            self._note("release", room.release(self.ids["released"])),
        )

    async def _note(self, name: str, asked: Awaitable[object]) -> None:
        try:
            with neighbour_errors("worker"):
                self.answers[name] = await asked
        except Unavailable as lost:
            self.lost[name] = lost.reason


async def _renewed(room: SandboxRoom, request: sb.RenewSandboxRequest) -> sb.Sandbox:
    return (await room.sandboxes.RenewSandbox(request)).sandbox


async def check(life: Life, room: SandboxRoom, settings: Settings) -> None:
    """Look at what an earlier life left, in the next one."""
    listed = await room.sandboxes.ListSandboxes(sb.ListSandboxesRequest(tenant=TENANT))
    assert not listed.sandboxes
    assert list((settings.host_root / "sandboxes" / "private").glob("*")) == []
    for name in _SANDBOXES:
        assert await _refusal(room.create(life.keys[name])) == "sandbox_released"
        assert await _refusal(room.run(life.ids[name], "true")) == "sandbox_not_found"
    created = await _refusal(room.create(life.keys["created"]))
    assert created == "sandbox_released" or (created == "" and "create" not in life.answers)
    await room.release(key=life.keys["created"])
    seen, now = life.answers.get("watch"), await room.output(life.ended)
    assert b"one\ntyped\ntwo\n".startswith(now.stdout)
    if seen is None:
        lost = now.exit.reason == pb.EXIT_REASON_HOST_LOST
        assert lost or (now.exit.reason == pb.EXIT_REASON_EXITED and now.exit.code == 0)
    else:
        assert now == seen
    if isinstance(started := life.answers.get("start"), pb.Execution):
        output = await room.output(started.execution_id)
        assert output.exit.reason == pb.EXIT_REASON_HOST_LOST


async def _refusal(asked: Awaitable[object]) -> str:
    try:
        await asked
    except FairleadError as error:
        return error.reason
    return ""


@pytest.mark.parametrize("isolation", ["process", "walled"])
async def test_what_was_answered_holds(settings: Settings, isolation: str) -> None:
    mark = random_id("mrk")
    earlier: list[Life] = []
    for seconds in (*_KILLED_AFTER, None):
        async with own_worker(settings) as (process, room):
            assert processes_with(mark) == []
            for life in earlier:
                await check(life, room, settings)
            if seconds is None:
                return
            life = Life({name: random_id("key") for name in (*_SANDBOXES, "created")})
            await life.prepare(room, isolation, mark)
            calling = asyncio.create_task(life.call(room, isolation, mark))
            await asyncio.sleep(seconds)
            process.send_signal(signal.SIGKILL)
            await calling
            process.wait()
            earlier.append(life)
