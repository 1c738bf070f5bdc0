"""Break-outs towards other processes: of neighbours, of the host, of the sandbox's own init."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead_walls.file_rules import file_rules_version
from fairlead_walls.survey import Survey
from tests.fakes.attacks_on_others import ON_SOCKETS
from tests.fakes.cells import PYTHON, Cells, process_cells, walled_cells

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def walled(walls: Survey) -> AsyncIterator[Cells]:
    async with walled_cells(walls) as cells:
        yield cells


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[Cells]:
    async with process_cells(tmp_path) as cells:
        yield cells


async def test_a_neighbour_of_a_guessed_number_is_the_sandbox_s_own(walled: Cells) -> None:
    """Killing by every number there is ends what is in the sandbox, and nothing else. On tier 0 it
    would end all that the worker's user runs, and is not tried.
    """
    neighbour, _ = await (await walled.open()).neighbour()
    cell = await walled.open()
    killer = await cell.start(PYTHON, "-c", "import os\nos.kill(-1, 9)\nprint('sent')")
    await killer.ended()
    assert neighbour.end is None
    assert await cell.output("echo", "alive") == "alive\n"


async def test_only_the_sandbox_s_own_processes_are_listed(walled: Cells) -> None:
    neighbour, _ = await (await walled.open()).neighbour()
    cell = await walled.open()
    listed = await cell.output("sh", "-c", "ls -d /proc/[0-9]*; cat /proc/[0-9]*/cmdline")
    assert "time.sleep" not in listed
    assert len([line for line in listed.splitlines() if line.startswith("/proc/")]) <= 3
    assert neighbour.end is None


async def test_no_descriptor_of_the_host_is_handed_in(walled: Cells) -> None:
    script = """
own = {line.split()[0] for line in open("/proc/self/mountinfo")}
for entry in os.listdir("/proc/self/fd"):
    try:
        shown = os.readlink(f"/proc/self/fd/{entry}").partition(":")[0]
        mount = open(f"/proc/self/fdinfo/{entry}").read().split("mnt_id:")[1].split()[0]
        found[entry] = shown if shown == "pipe" or mount in own else f"{shown} of the host"
    except FileNotFoundError:
        pass
"""
    found = await (await walled.open()).attempts(script)
    assert found == {"0": "/dev/null", "1": "pipe", "2": "pipe"}


async def test_the_worker_s_environment_is_seen_nowhere(
    walled: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_SECRET", "nightingale-7261")
    cell = await walled.open()
    seen = await cell.output(
        "sh", "-c", "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/cmdline || true"
    )
    assert "nightingale" not in seen.replace("sh -c", "")


async def test_on_the_machine_s_network_its_abstract_sockets_stay_out_of_reach(
    walls: Survey,
) -> None:
    """Landlock keeps them apart where no network namespace does."""
    if file_rules_version() < 6:
        pytest.skip("the kernel's Landlock does not know abstract sockets")
    name = f"fairlead-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        async with walled_cells(walls, host_network=True) as cells:
            found = await (await cells.open()).attempts(
                ON_SOCKETS.script(ON_SOCKETS.rows), str(server.getsockname()[1]), name
            )
    assert found == {"loopback": "done", "abstract": "EPERM"}


async def test_each_sandbox_is_another_user_of_the_machine(walled: Cells) -> None:
    users = set()
    for _ in range(2):
        _, pid = await (await walled.open()).neighbour()
        users.add(os.stat(f"/proc/{pid}/status").st_uid)
    assert os.getuid() not in users or os.getuid() != 0
    assert len(users) == (2 if os.getuid() == 0 else 1)
