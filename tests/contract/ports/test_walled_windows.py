"""What arrives while a pool is refilled, an init is taken, or a zygote or the worker dies; and that
nothing is left, and nothing shared, afterwards.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead_walls.survey import Survey
from sandbox_worker.isolation import generation as generation_module
from sandbox_worker.isolation.descendants import below
from sandbox_worker.isolation.generation import Generation
from sandbox_worker.isolation.init_link import InitEnclosure
from sandbox_worker.isolation.walled import WalledIsolation
from sandbox_worker.isolation.walled_init import WalledInit
from sandbox_worker.sandbox import Limits, NetworkMode, NetworkPolicy
from tests.fakes.clock import FakeClock
from tests.fakes.walled import open_walled, run

pytestmark = pytest.mark.asyncio

_NONE = NetworkPolicy(NetworkMode.NONE)
_ROOT = Path(__file__).resolve().parents[3]


async def enclosed(isolation: WalledIsolation, tenant: str = "ada") -> InitEnclosure:
    return await isolation.enclose(random_id("sbx"), Limits(), _NONE, tenant=tenant)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - other processes do not tell
            await asyncio.sleep(0.005)


def generation_of(isolation: WalledIsolation, tenant: str) -> Generation:
    (found,) = (
        each for each in isolation.zygotes.generations if each.tenant == tenant and each.can_fork
    )
    return found


def spare(isolation: WalledIsolation) -> Generation | None:
    for each in isolation.zygotes.generations:
        if not each.tenant and each.can_fork:
            return each
    return None


def children(pid: int) -> list[int]:
    return [child for child, parent in below(pid).items() if parent == pid]


@pytest_asyncio.fixture
async def isolation(walls: Survey) -> AsyncIterator[WalledIsolation]:
    def more() -> tuple[set[int], int]:
        opened = len(os.listdir("/proc/self/fd"))  # what earlier tests had may end meanwhile
        return set(below(os.getpid())) - processes, max(opened - descriptors, 0)

    processes: set[int] = set()
    descriptors = 0
    processes, descriptors = more()
    async with open_walled(walls, pool_size=2) as opened:
        await until(lambda: (found := spare(opened)) is not None and found.depth == 2)
        yield opened
    with suppress(TimeoutError):
        await until(lambda: more() == (set(), 0))
    assert more() == (set(), 0)


async def test_a_pool_gives_what_is_ready_and_is_filled_again(isolation: WalledIsolation) -> None:
    first = spare(isolation)
    assert first is not None
    await until(lambda: len(children(first.pid)) == 2)
    ready = set(children(first.pid))
    enclosures = [await enclosed(isolation) for _ in range(2)]
    assert ready <= set(children(first.pid))
    assert first.tenant == "ada"
    await until(lambda: first.depth == 2)
    await until(lambda: len(children(first.pid)) == 4)
    for enclosure in enclosures:
        await enclosure.destroy()
    await until(lambda: len(children(first.pid)) == 2)


async def test_an_empty_pool_falls_to_a_fork(isolation: WalledIsolation) -> None:
    found = await asyncio.gather(*(enclosed(isolation) for _ in range(8)))
    assert [await run(each, "echo here") for each in found] == ["here\n"] * 8
    await asyncio.gather(*(each.destroy() for each in found))


async def test_a_dead_init_is_never_handed_out(isolation: WalledIsolation) -> None:
    found = spare(isolation)
    assert found is not None
    for pid in children(found.pid):
        with suppress(ProcessLookupError):  # one that only lived to be mapped
            os.kill(pid, signal.SIGKILL)
    enclosure = await enclosed(isolation)
    assert await run(enclosure, "echo alive") == "alive\n"
    await enclosure.destroy()


async def test_an_init_that_ends_before_it_is_given_is_followed_by_another(
    isolation: WalledIsolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = isolation.zygotes.take
    taken: list[WalledInit] = []

    async def dying(tenant: str, *, own_network: bool = True) -> WalledInit:
        taken.append(await take(tenant, own_network=own_network))
        if len(taken) == 1:
            taken[0].end()
        return taken[-1]

    monkeypatch.setattr(isolation.zygotes, "take", dying)
    enclosure = await enclosed(isolation)
    assert len(taken) == 2
    assert await run(enclosure, "echo alive") == "alive\n"
    await enclosure.destroy()
    await taken[0].gone.wait()


async def test_tenants_never_share_a_generation(isolation: WalledIsolation) -> None:
    pids: dict[str, set[int]] = {}
    enclosures = []
    for tenant in ("ada", "bob", "ada", "eve", "bob"):
        enclosures.append(await enclosed(isolation, tenant))
        pids.setdefault(tenant, set()).add(generation_of(isolation, tenant).pid)
    assert [len(each) for each in pids.values()] == [1, 1, 1]
    assert len(set.union(*pids.values())) == 3
    taken = {each.tenant for each in isolation.zygotes.generations if not each.is_empty}
    assert taken >= {"ada", "bob", "eve"}
    for enclosure in enclosures:
        await enclosure.destroy()


async def test_live_sandboxes_have_a_uid_of_their_own(
    isolation: WalledIsolation, walls: Survey
) -> None:
    if not walls.own_uid:
        pytest.skip("only root can give uids away")
    found = await asyncio.gather(*(enclosed(isolation, t) for t in ("ada", "bob") for _ in "123"))
    owners = []
    for pid in (pid for each in isolation.zygotes.generations for pid in children(each.pid)):
        with suppress(FileNotFoundError, ProcessLookupError):  # one that only lived to be mapped
            owners.append(_uid(pid))
    # One that lives to be mapped, or is just made for a pool, has no user of its own yet.
    owners = [each for each in owners if each != os.geteuid()]
    assert len(owners) >= 6
    assert len(set(owners)) == len(owners)
    await asyncio.gather(*(each.destroy() for each in found))


def _uid(pid: int) -> int:
    """Read the uid of a process whose files are root's, since it cannot be dumped."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    raise ProcessLookupError(pid)


@pytest.mark.parametrize("delay", [0, 0.001, 0.002, 0.004, 0.008, 0.016])
async def test_a_zygote_is_killed_under_creates(isolation: WalledIsolation, delay: float) -> None:
    """Between fork, walls and take, whatever the machine is at: each create succeeds with another
    zygote's, or was given away before and is lost.
    """
    first = await enclosed(isolation)
    victim = generation_of(isolation, "ada")
    making = [asyncio.create_task(enclosed(isolation)) for _ in range(6)]
    await asyncio.sleep(delay)
    held = below(victim.pid)
    os.kill(victim.pid, signal.SIGKILL)
    made = await asyncio.gather(*making)
    await asyncio.wait_for(first.gone(), 60)
    await until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in held))
    survivor = await enclosed(isolation)
    assert await run(survivor, "echo on") == "on\n"
    for enclosure in (first, survivor, *made):
        await enclosure.destroy()


@pytest.mark.parametrize("pause", range(0, 1_000_000, 50_000))
async def test_a_zygote_is_killed_before_its_init_asked_to_end_with_it(
    isolation: WalledIsolation, monkeypatch: pytest.MonkeyPatch, pause: int
) -> None:
    """`pause` is in nanoseconds."""
    await (await enclosed(isolation)).destroy()
    victim = generation_of(isolation, "ada")
    await until(lambda: victim.depth == 2)
    on_born = WalledInit.on_born

    def killing(init: WalledInit, descriptors: list[int]) -> None:
        on_born(init, descriptors)
        if init.name in victim._inits:
            until_then = time.monotonic_ns() + pause
            while time.monotonic_ns() < until_then:
                continue
            os.kill(victim.pid, signal.SIGKILL)

    monkeypatch.setattr(WalledInit, "on_born", killing)
    held = below(victim.pid)
    init = await victim.fork()
    near = init.give()  # as one that was taken: nobody closes its link
    with near:
        await asyncio.wait_for(init.gone.wait(), 60)
        await until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in held))


async def test_a_release_during_a_take(isolation: WalledIsolation) -> None:
    for steps in range(12):
        making = asyncio.create_task(enclosed(isolation))
        for _ in range(steps):
            await asyncio.sleep(0)
        if making.cancel():
            with pytest.raises(asyncio.CancelledError):
                await making
        else:  # it was quicker
            await (await making).destroy()
    enclosure = await enclosed(isolation)
    await enclosure.destroy()
    found = generation_of(isolation, "ada")
    await until(lambda: len(children(found.pid)) == found.depth == 2)


async def test_an_idle_generation_ends_with_its_last_sandbox(walls: Survey) -> None:
    clock = FakeClock()
    async with open_walled(walls, pool_size=1, clock=clock) as isolation:
        enclosure = await enclosed(isolation)
        found = generation_of(isolation, "ada")
        await until(lambda: found.depth == 1)
        clock.advance(61)
        isolation.zygotes.on_changed()
        await until(lambda: len(children(found.pid)) == 1)
        assert await run(enclosure, "echo on") == "on\n"
        await enclosure.destroy()
        await until(lambda: found not in isolation.zygotes.generations)
        assert found.pid not in below(os.getpid())


@pytest.mark.parametrize("by", ["forks", "age"])
async def test_a_worn_zygote_is_replaced(
    isolation: WalledIsolation, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    enclosure = await enclosed(isolation)
    worn = generation_of(isolation, "ada")
    if by == "forks":
        monkeypatch.setattr(worn, "_forks", generation_module.MOST_FORKS)
    else:
        monkeypatch.setattr(worn, "_made_at", worn._made_at - generation_module.MOST_SECONDS)
    assert not worn.can_fork
    other = await enclosed(isolation)
    assert generation_of(isolation, "ada") is not worn
    assert await run(enclosure, "echo on") == "on\n"
    for each in (enclosure, other):
        await each.destroy()
    await until(lambda: worn not in isolation.zygotes.generations)


async def test_a_burst_of_creates_and_releases(isolation: WalledIsolation) -> None:
    async def once(number: int) -> str:
        enclosure = await enclosed(isolation, f"t{number % 3}")
        try:
            return await run(enclosure, f"(setsid sleep 60 &) ; echo {number}")
        finally:
            await enclosure.destroy()

    assert await asyncio.gather(*map(once, range(30))) == [f"{each}\n" for each in range(30)]


_WORKER = """
import asyncio, os, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.contract.ports.test_walled_windows import children, enclosed
from tests.fakes.walled import open_walled, run, survey
from sandbox_worker.ports import ProgramOrder
async def main():
    async with open_walled(found, pool_size=2) as isolation:
        made = await asyncio.gather(*(enclosed(isolation, t) for t in "aab"))
        for each in made:
            await each.start(ProgramOrder("exe_x", ("sh", "-c", "setsid sleep 60 & sleep 60"),
                                          {}, "", False))
        from sandbox_worker.isolation.descendants import below
        print(*below(os.getpid()), flush=True)
        await asyncio.sleep(60)
found = survey(Path(sys.argv[1]))
asyncio.run(main())
"""


async def test_nothing_outlives_a_killed_worker(tmp_path: Path, walls: Survey) -> None:
    assert walls.stands
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WORKER, str(tmp_path),
        stdout=subprocess.PIPE,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (_ROOT, _ROOT / "services")))},
    )  # fmt: skip
    assert worker.stdout is not None
    pids = [int(each) for each in (await worker.stdout.readline()).split()]
    assert len(pids) > 6
    worker.kill()
    await worker.wait()
    await until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


async def test_a_machine_without_uids_left(walls: Survey, monkeypatch: pytest.MonkeyPatch) -> None:
    if not walls.own_uid:
        pytest.skip("only root can give uids away")
    async with open_walled(walls) as isolation:
        monkeypatch.setattr(isolation._users, "_count", 1)
        first = await enclosed(isolation)
        with pytest.raises(FairleadError) as caught:
            await enclosed(isolation)
        assert caught.value.reason == "isolation_failed"
        await first.destroy()
        second = await enclosed(isolation)
        await second.destroy()


async def test_an_init_that_cannot_be_made(walls: Survey) -> None:
    """The kernel has no user of this number."""
    if not walls.own_uid:
        pytest.skip("only root can give uids away")
    before = set(below(os.getpid()))
    async with open_walled(replace(walls, first_uid=2**32 - 1, uids=1), pool_size=1) as isolation:
        for _ in range(2):
            with pytest.raises(FairleadError) as caught:
                await enclosed(isolation)
            assert caught.value.reason == "isolation_failed"
            assert "Invalid argument" in caught.value.message
    assert not set(below(os.getpid())) - before


def network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


async def test_what_is_made_ahead_is_one_sandboxs_alone(walls: Survey) -> None:
    """The zygote enters a network, an IPC and a host name namespace for its next clone."""
    own = NetworkPolicy(NetworkMode.NONE)
    modes = [own, own, NetworkPolicy(NetworkMode.HOST), own]
    kinds = ("net", "ipc", "uts")
    shown = " ".join(f"/proc/self/ns/{kind}" for kind in kinds)
    ours = [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]
    seen = [[each] for each in ours]
    async with open_walled(walls, host_network=True) as isolation:
        for policy in modes:
            ahead = ""
            if b"privileged" in walls.terms and len(seen[0]) > 1:
                zygote = generation_of(isolation, "ada").pid
                await until(lambda: network_of(zygote) not in seen[0])  # noqa: B023
                ahead = network_of(zygote)
            enclosure = await isolation.enclose(random_id("sbx"), Limits(), policy, tenant="ada")
            spaces = (await run(enclosure, f"readlink {shown}; uname -n")).split()
            assert spaces.pop() == "sandbox"
            if policy is own:
                assert not ahead or spaces[0] == ahead
                with await enclosure.listen() as listener:
                    reached = await enclosure.connect(listener.getsockname()[1])
                    assert reached is not None
                    reached.close()
            else:
                assert spaces.pop(0) == ours[0]
            for before, space in zip(seen[-len(spaces) :], spaces, strict=True):
                assert space not in before
                before.append(space)


async def test_what_an_init_does_ahead_leaves_nothing(walls: Survey) -> None:
    """One of a pool has gone through a take and a start that came to nothing."""
    script = (
        "ls -Al --time-style=+ / /tmp /run/shm ~ /workspace | grep -v proc | tr -s ' ';"
        "cut -d' ' -f5- /proc/self/mountinfo | sed -E 's/[ug]id=[0-9]+//g'; cat /proc/self/limits;"
        "grep -E 'Cap|Sig|NoNew|Seccomp' /proc/self/status; ls /proc/self/fd; pwd; umask"
    )
    seen = []
    for pool_size in (0, 1):
        async with open_walled(walls, pool_size=pool_size) as opened:
            await until(lambda: (it := spare(opened)) is not None and it.depth == pool_size)  # noqa: B023
            enclosure = await enclosed(opened)
            seen.append(await run(enclosure, script))
    assert "dr-xr-xr-x" not in seen[0]
    assert "/dev/pts rw" in seen[0]
    assert seen[0] == seen[1]
