"""kill -9 of a zygote at each step from the fork of an init to its sandbox's first execution: the
call gets its sandbox or a typed error, the next one works, and nothing is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import derived_id, random_id
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2 as pb
from fairlead.sandbox.v1 import sandbox_pb2 as sb
from fairlead_walls.survey import Survey
from sandbox_worker.isolation import forker_process, walled
from sandbox_worker.isolation.cgroup_files import own_places
from tests.contract.wire.sandbox_room import TENANT, SandboxRoom, room_in_process, room_settings
from tests.eventually import eventually
from tests.fakes.stopped_zygote import MAPPED, REHEARSED, STEPS, FifoStop, program
from tests.fakes.walled import survey

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ROOT = Path(__file__).resolve().parents[3]
_KEPT = {"records", "journals"}
"""Where a worker keeps for a time what was released, and how executions ended."""
_CGROUPS_READY = 8
"""Cgroups that a worker keeps for its next sandboxes."""

_DONE = {"kept\n"}
_LOST = {"create: sandbox_lost", "sandbox_lost", "sandbox_not_found", "EXIT_REASON_HOST_LOST"}
_MAY_BE_LOST = (
    # A create goes on without these.
    "clone may go on",
    "user map is sent",
    "next network is made",
    "walls are prepared",
    # An init that has not asked to end with its zygote is ended by the worker, a moment later.
    "cgroup is joined",
    "walls are begun",
    # It is answered.
    *STEPS[STEPS.index("taken is sent") :],
)
"""Where a create that was begun may be answered before its zygote is known to be dead."""


@pytest.fixture(scope="module")
def walls(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """The walls of this machine; skips where sandboxes cannot be walled."""
    return survey(tmp_path_factory.mktemp("walls"))


@dataclass(frozen=True, slots=True)
class Scene:
    """A worker whose first zygote to come to a step stops there."""

    room: SandboxRoom
    stop: FifoStop
    pool_size: int
    others: int
    """Processes below others than this worker's zygotes."""

    def tree(self) -> str:
        """Lay a workspace out as a provisioner does, on a frozen layer."""
        workspace_id, root = random_id("wsp"), self.room.host_root
        place = root / "layers" / workspace_id
        for each in (place / "upper", place / "work", root / "trees" / workspace_id):
            each.mkdir(parents=True)
        (place / "mount.json").write_text(json.dumps({"lower": [str(root / "layers" / "shared")]}))
        return workspace_id

    async def create(self, workspace_id: str) -> sb.Sandbox:
        limits = sb.Limits(disk_bytes=64 << 20)
        with neighbour_errors("worker"):
            answer = await self.room.sandboxes.CreateSandbox(
                sb.CreateSandboxRequest(
                    tenant=TENANT,
                    idempotency_key=random_id("key"),
                    isolation="walled",
                    limits=limits,
                    workspace_id=workspace_id,
                )
            )
        return answer.sandbox

    async def use(self, *, bound_apart: bool) -> str:
        """Make a sandbox with a workspace, run a command in it and give it back; returns what that
        printed, or the reason of the error or of the execution's end.
        """
        workspace_id = self.tree()
        try:
            sandbox = await self.create("" if bound_apart else workspace_id)
        except FairleadError as error:
            return f"create: {error.reason}"
        try:
            if bound_apart:
                await self.room.bind(sandbox.sandbox_id, workspace_id)
            output = await self.room.run(sandbox.sandbox_id, "cat", "file")
        except FairleadError as error:
            return error.reason
        finally:
            await self.room.release(sandbox.sandbox_id)
        if output.exit.reason != pb.EXIT_REASON_EXITED:
            return pb.ExitReason.Name(output.exit.reason)
        return output.stdout.decode()

    async def killed(self, using: asyncio.Task[str]) -> Sequence[psutil.Process]:
        """Kill the zygote that stops next in `using`; returns what it had below it."""

        async def stopped() -> int:
            pid = self.stop.stopped()
            # A zygote that makes a network ahead may stop after its call is over.
            assert pid or not using.done() or using.result() in _DONE
            return pid

        pid = await eventually(stopped)
        zygote = psutil.Process(pid)
        below = zygote.children(recursive=True)
        os.kill(pid, signal.SIGKILL)

        async def is_dead() -> bool:
            return not lives(zygote)

        await eventually(is_dead)
        # Not before: what has asked to end with it is dead by now, and what has not goes on.
        self.stop.go_on()
        return [zygote, *below]

    def cgroups(self) -> int:
        """Return how many cgroups this worker has in the hierarchy that has most of them."""
        key = (self.room.host_root / "sandboxes" / "id_key").read_bytes()
        tree = f"fairlead-{derived_id('hst', 'cgroups', key=key)[4:]}"
        places = own_places(
            Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        )
        return max((len(list((each.path / tree).glob("*-*"))) for each in places), default=0)

    def files(self) -> set[str]:
        """Return what is in the worker's state, but for what it keeps."""
        root = self.room.host_root / "sandboxes"
        found = {str(path.relative_to(root)) for path in root.rglob("*")}
        return {path for path in found if path.partition("/")[0] not in _KEPT}


def grandchildren() -> int:
    """Return how many processes there are below the zygotes and other children."""
    own = psutil.Process()
    return len(own.children(recursive=True)) - len(own.children())


@pytest.fixture(scope="module")
def stop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FifoStop]:
    """The stop of every zygote that starts in this module.

    There is one, not one for each worker: a worker starts spare zygotes whenever it is idle, and
    each gets the stop that is set at that moment.
    """
    place = tmp_path_factory.mktemp("stop") / "fifos"
    with closing(FifoStop(place)) as stop, pytest.MonkeyPatch.context() as patch:
        patch.setattr(forker_process, "_PROGRAM", program(place, _ROOT))
        # A busy machine takes long to start another one.
        patch.setattr(walled, "_CREATE_SECONDS", 60.0)
        yield stop


@asynccontextmanager
async def opened(root: Path, stop: FifoStop, pool_size: int) -> AsyncIterator[Scene]:
    shared = root / "host" / "layers" / "shared"
    shared.mkdir(parents=True)
    (shared / "file").write_text("kept\n")
    with tempfile.TemporaryDirectory(prefix="fls-") as sockets:
        settings = room_settings(root / "host", Path(sockets), pool_size=pool_size)
        others = grandchildren()
        async with room_in_process(settings) as room:
            yield Scene(room, stop, pool_size, others)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare(
    walls: Survey, stop: FifoStop, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """A worker without a pool."""
    assert walls.stands
    async with opened(tmp_path_factory.mktemp("bare"), stop, 0) as scene:
        yield scene


@pytest_asyncio.fixture(loop_scope="module")
async def pooled(
    walls: Survey, stop: FifoStop, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """A worker that keeps a sandbox ready, or is about to."""
    assert walls.stands
    async with opened(tmp_path_factory.mktemp("pooled"), stop, 1) as scene:
        yield scene


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def outcomes(step: str, *, pool_size: int, bound_apart: bool) -> Collection[str]:
    """Return what may come of the call: a create takes another zygote's, and what is made is lost
    with its zygote.
    """
    if bound_apart:
        return _LOST
    if pool_size or step in _MAY_BE_LOST:
        return _DONE | _LOST
    return _DONE


async def see_killed(scene: Scene, step: str, *, bound_apart: bool = False) -> None:
    """Kill the zygote of a call at this step, and look at what comes of it and what is left."""
    before, files = mounts(), scene.files()
    scene.stop.arm(step)
    using = asyncio.create_task(scene.use(bound_apart=bound_apart))
    held = await scene.killed(using)
    expected = outcomes(step, pool_size=scene.pool_size, bound_apart=bound_apart)
    assert await using in expected
    assert await scene.use(bound_apart=bound_apart) == "kept\n"

    async def remaining() -> str:
        if living := [each for each in held if lives(each)]:
            return f"{living}"
        ready, cgroups = grandchildren() - scene.others, scene.cgroups()
        if ready > 2 * scene.pool_size or cgroups > _CGROUPS_READY + ready:
            return f"{ready} processes more, {cgroups} cgroups: {psutil.Process().children(True)}"
        return ""

    await eventually(remaining, "".__eq__)
    scene.stop.settle()
    listed = await scene.room.sandboxes.ListSandboxes(sb.ListSandboxesRequest(tenant=TENANT))
    assert not listed.sandboxes
    assert scene.files() == files

    async def mounted() -> set[str]:
        return mounts() - before  # other tests mount here too, for a time

    await eventually(mounted, lambda found: not found)


@pytest.mark.parametrize("step", STEPS)
async def test_a_zygote_is_killed_where(walls: Survey, bare: Scene, step: str) -> None:
    if step == "next network is made" and b"privileged" not in walls.terms:
        pytest.skip("who has no rights here makes no network ahead")
    await see_killed(bare, step)


@pytest.mark.parametrize("step", MAPPED)
async def test_a_zygote_is_killed_while_it_maps_files(
    walls: Survey, stop: FifoStop, tmp_path: Path, step: str
) -> None:
    if not walls.own_uid:
        pytest.skip("files are the sandbox's as they are")
    async with opened(tmp_path, stop, 0) as fresh:
        await see_killed(fresh, step)


@pytest.mark.parametrize("step", ["workspace is opened", "workspace is bound"])
async def test_a_zygote_is_killed_while_a_sandbox_gets_its_workspace(
    bare: Scene, step: str
) -> None:
    await see_killed(bare, step, bound_apart=True)


@pytest.mark.parametrize("step", ["clone is told of", "root is made", REHEARSED])
async def test_a_zygote_is_killed_while_it_fills_a_pool(pooled: Scene, step: str) -> None:
    await see_killed(pooled, step)
