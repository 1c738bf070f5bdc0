"""Pythons that hold objects, on fakes: how many, for whom, how they end, and who leaves when."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from sandbox_worker import objects as module
from sandbox_worker.errors import ArgumentInvalid, SandboxNotFound, WorkerDraining
from sandbox_worker.execution import ExitReason, ProgramEnd, Stream
from sandbox_worker.object_errors import ObjectsBusy, ObjectsFrameInvalid
from sandbox_worker.objects import Objects, ObjectsEnded, ObjectsFrame, ObjectsOpened
from sandbox_worker.sandbox import Limits, Sandbox
from tests.fakes.execution_bench import Bench
from tests.fakes.isolation import ScriptedProgram

pytestmark = pytest.mark.asyncio
BUNDLE = b"all that a Python needs"
SECONDS = 60.0


class Carried:
    """What brings the membrane in; `waits` holds it up, and `asked` is when it is."""

    boot = "boot"

    def __init__(self) -> None:
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()

    async def bundle(self) -> bytes:
        self.asked.set()
        await self.goes_on.wait()
        return BUNDLE


class Room:
    """Objects on fakes, and one sandbox."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.host = Carried()
        self.objects = Objects(
            sandboxes=self.bench.sandboxes, host=self.host, clock=self.bench.clock
        )

    def attach(
        self,
        sandbox: Sandbox,
        *said: bytes,
        python: str = "wait",
        tenant: str = "t",
        leaves: bool = False,
    ) -> AsyncGenerator[ObjectsFrame, None]:
        """Attach a scripted program, and say this to it; a client that `leaves` ends behind it."""

        async def incoming() -> AsyncIterator[bytes]:
            for each in said:
                yield each
            if not leaves:
                await asyncio.Event().wait()

        return self.objects.attach(
            tenant=tenant, sandbox_id=sandbox.sandbox_id, python=python, incoming=incoming()
        )

    def programs(self, sandbox: Sandbox) -> list[ScriptedProgram]:
        """Give those of a sandbox, the oldest first."""
        return list(self.bench.isolation.enclosures[sandbox.sandbox_id].programs.values())


async def opened(frames: AsyncGenerator[ObjectsFrame, None]) -> AsyncGenerator[ObjectsFrame, None]:
    assert await anext(frames) == ObjectsOpened()
    return frames


async def ended(frames: AsyncGenerator[ObjectsFrame, None]) -> ObjectsEnded:
    async with asyncio.timeout(SECONDS):
        last = [frame async for frame in frames][-1]
    assert isinstance(last, ObjectsEnded)
    return last


async def test_bytes_go_through_behind_the_bundle_until_the_client_has_no_more() -> None:
    room = Room()
    sandbox = await room.bench.sandbox()
    frames = await opened(room.attach(sandbox, b"one ", b"two", python="cat", leaves=True))
    async with asyncio.timeout(SECONDS):
        *said, end = [frame async for frame in frames]
    assert b"".join(each for each in said if isinstance(each, bytes)) == BUNDLE + b"one two"
    assert end == ObjectsEnded(ExitReason.EXITED, 0, None, b"")
    (program,) = room.programs(sandbox)
    # Nothing of its process group stays behind.
    assert program.signals[0] == 0


async def test_it_has_a_moment_to_end_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_SECONDS", SECONDS)
    room = Room()
    sandbox = await room.bench.sandbox()
    ending = asyncio.create_task(ended(await opened(room.attach(sandbox, leaves=True))))
    (program,) = room.programs(sandbox)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not program._stdin_open
    program.on_end(ProgramEnd(code=5))
    assert (await ending).code == 5
    assert signal.SIGKILL not in program.signals


async def test_one_that_goes_on_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.0)
    room = Room()
    sandbox = await room.bench.sandbox()
    end = await ended(await opened(room.attach(sandbox, python="stubborn", leaves=True)))
    assert (end.reason, end.code, end.signal) == (ExitReason.SIGNALLED, None, signal.SIGKILL)


async def test_the_end_of_what_it_wrote_to_standard_error_is_told() -> None:
    room = Room()
    sandbox = await room.bench.sandbox()
    frames = await opened(room.attach(sandbox))
    (program,) = room.programs(sandbox)
    for content in (b"first", bytes(4000), b"x" * 4000, b"last words"):
        program.emit(content, Stream.STDERR)
    program.on_end(ProgramEnd(code=7))
    end = await ended(frames)
    assert (end.reason, end.code) == (ExitReason.EXITED, 7)
    assert end.errors == bytes(86) + b"x" * 4000 + b"last words"


async def test_the_time_of_programs_of_its_sandbox_is_its_time() -> None:
    room = Room()
    sandbox = await room.bench.sandbox(limits=Limits(wall_seconds=0.01))
    end = await ended(await opened(room.attach(sandbox, python="stubborn")))
    assert end == ObjectsEnded(ExitReason.TIMED_OUT, None, None, b"")


async def test_a_release_ends_it_and_says_so() -> None:
    room = Room()
    sandbox = await room.bench.sandbox()
    frames = await opened(room.attach(sandbox, python="stubborn"))
    ending = asyncio.create_task(ended(frames))
    assert await room.bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    assert await ending == ObjectsEnded(ExitReason.RELEASED, None, None, b"")


async def test_a_sandbox_has_so_many_and_room_again_when_one_ends() -> None:
    room = Room()
    sandbox, other = await room.bench.sandbox(), await room.bench.sandbox("two")
    held = [await opened(room.attach(sandbox)) for _ in range(16)]
    with pytest.raises(ObjectsBusy):
        await anext(room.attach(sandbox))
    held.append(await opened(room.attach(other)))
    await held[0].aclose()
    # One that cannot be started takes no room for good either.
    with pytest.raises(Exception, match="missing"):
        await anext(room.attach(sandbox, python="missing"))
    held.append(await opened(room.attach(sandbox)))
    for each in held:
        await each.aclose()
    assert all(program.end for program in room.programs(sandbox))


async def test_who_may_not_and_what_is_none() -> None:
    room = Room()
    sandbox = await room.bench.sandbox()
    with pytest.raises(SandboxNotFound):
        await anext(room.attach(sandbox, tenant="other"))
    for python in ("a\0", "x" * 4097):
        with pytest.raises(ArgumentInvalid):
            await anext(room.attach(sandbox, python=python))
    with pytest.raises(ObjectsFrameInvalid):
        await ended(await opened(room.attach(sandbox, bytes(1024 * 1024 + 1))))
    room.objects.drain()
    with pytest.raises(WorkerDraining):
        await anext(room.attach(sandbox))
    assert len(room.programs(sandbox)) == 1


async def test_who_leaves_while_it_starts_leaves_none_and_a_release_waits_for_that() -> None:
    room = Room()
    sandbox = await room.bench.sandbox()
    room.host.goes_on.clear()
    starting = asyncio.create_task(opened(room.attach(sandbox)))
    await room.host.asked.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    room.host.goes_on.set()
    await room.objects.close()
    (program,) = room.programs(sandbox)
    assert program.end is not None
    assert signal.SIGKILL in program.signals


async def test_a_release_waits_for_one_that_is_starting() -> None:
    room = Room()
    sandbox = await room.bench.sandbox()
    room.host.goes_on.clear()
    starting = asyncio.create_task(opened(room.attach(sandbox)))
    await room.host.asked.wait()
    releasing = asyncio.create_task(
        room.bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    )
    enclosure = room.bench.isolation.enclosures[sandbox.sandbox_id]
    await enclosure.gone()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not releasing.done()
    room.host.goes_on.set()
    with pytest.raises(SandboxNotFound):
        await starting
    assert await releasing
    assert not room.programs(sandbox)


async def test_a_client_that_goes_ends_its_python() -> None:
    room = Room()
    sandbox = await room.bench.sandbox()
    async with aclosing(room.attach(sandbox, python="stubborn")) as frames:
        await opened(frames)
    (program,) = room.programs(sandbox)
    assert program.end == ProgramEnd(signal=signal.SIGKILL)
