"""Break-outs through the kernel: system calls, sockets, mounts, devices, settings, and what they
answer from behind the walls.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead_walls.survey import Survey
from sandbox_worker.execution import ProgramEnd
from tests.fakes.cells import PYTHON, Cell, Cells, process_cells, walled_cells

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def walled(walls: Survey) -> AsyncIterator[Cell]:
    async with walled_cells(walls) as cells:
        yield await cells.open()


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[Cells]:
    async with process_cells(tmp_path) as cells:
        yield cells


async def test_there_is_no_right_to_begin_with(walled: Cell) -> None:
    script = """
for line in open("/proc/self/status"):
    field, _, value = line.partition(":")
    if field.startswith(("Cap", "NoNewPrivs", "Seccomp", "Uid", "Groups")):
        found[field] = value.strip()
for line in open("/proc/self/mountinfo"):
    if "nosuid" not in line.split()[5]:
        found[line.split()[4]] = "a mount that lets programs be set-uid"
found["map"] = open("/proc/self/uid_map").read().split()[0]
"""
    found = dict(await walled.attempts(script))
    assert found.pop("Seccomp") == "2"
    assert found.pop("NoNewPrivs") == "1"
    assert found.pop("Seccomp_filters", "1") == "1"
    assert found.pop("Uid").split() == ["1000"] * 4
    assert found.pop("Groups") in ("", "1000")
    assert found.pop("map") == "1000"
    capabilities = {found.pop(f"Cap{each}") for each in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
    assert capabilities == {"0" * 16}
    assert found == {}


async def test_tier_0_leaves_the_worker_s_rights(process: Cells) -> None:
    script = """
attempt("setuid to its own", lambda: os.setuid(os.getuid()))
found["uid"] = str(os.getuid())
"""
    found = await (await process.open()).attempts(script)
    assert found == {"setuid to its own": "done", "uid": str(os.getuid())}


async def test_everyday_devices_are_there(walled: Cell) -> None:
    everyday = """
for path in ("null", "zero", "full", "random", "urandom"):
    attempt(path, lambda: os.read(os.open(f"/dev/{path}", os.O_RDWR), 1))
attempt("pipe", lambda: os.mkfifo("/tmp/pipe"))
"""
    assert set((await walled.attempts(everyday)).values()) == {"done"}


async def test_what_tells_of_the_machine_is_masked(walled: Cell) -> None:
    script = """
for path in ("acpi", "scsi", "asound"):
    found[path] = str(len(os.listdir(f"/proc/{path}"))) if os.path.exists(f"/proc/{path}") else "0"
"""
    found = await walled.attempts(script)
    assert set(found.values()) == {"0"}


async def test_a_core_is_never_handed_to_the_machine(walled: Cell) -> None:
    """With a limit of 0 the kernel would still start the program that core_pattern(5) names."""
    script = """
import resource
found["limit"] = str(resource.getrlimit(resource.RLIMIT_CORE))
"""
    assert await walled.attempts(script) == {"limit": "(1, 1)"}


_I386 = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53 b814000000 cd80 5b c3"))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
_X32 = "import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 39)"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has them")
@pytest.mark.parametrize("script", [_I386, _X32], ids=["i386", "x32"])
async def test_foreign_calling_conventions_kill(walled: Cell, process: Cells, script: str) -> None:
    """Calls of i386 and x32 have other numbers, which the list does not judge. Tier 0 leaves them
    to the kernel.
    """
    outside = await asyncio.create_subprocess_exec(PYTHON, "-c", script)
    status = await outside.wait()
    left_alone = ProgramEnd(signal=-status) if status < 0 else ProgramEnd(code=status)
    for cell, expected in (
        (walled, ProgramEnd(signal=signal.SIGSYS)),
        (await process.open(), left_alone),
    ):
        program = await cell.start(PYTHON, "-c", script)
        await program.ended()
        assert program.end is not None
        assert (program.end.code, program.end.signal) == (expected.code, expected.signal)
        program.close()


async def test_a_terminal_is_the_sandbox_s_own(walled: Cell) -> None:
    listed = await walled.output(
        PYTHON, "-c", "import os, pty; print(os.ttyname(pty.openpty()[1]))"
    )
    assert listed == "/dev/pts/0\n"
    assert (await walled.output("ls", "/dev/pts")).split() == ["ptmx"]
