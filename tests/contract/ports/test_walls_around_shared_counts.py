"""What the kernel has a limited number of, for a user or for the whole machine: one sandbox that
takes all that it can get leaves enough for its neighbours and for the host. On tier 0 it would take
them from the worker's user, and from whoever else works on the machine: that is not tried.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fairlead_walls.survey import Survey
from sandbox_worker.errors import IsolationFailed
from sandbox_worker.execution_errors import ProcessesExhausted
from sandbox_worker.sandbox import Limits
from tests.fakes.cells import PRELUDE, PYTHON, Cell, Cells, walled_cells

pytestmark = pytest.mark.asyncio

_MOST = """
import resource, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def take_all(take):
    for taken in range(most):
        try:
            take()
        except OSError as error:
            found["taken"], found["then"] = str(taken), name(error.errno)
            return
"""
_WATCHER = "libc.inotify_init1(0) >= 0 or (_ for _ in ()).throw(OSError(ctypes.get_errno(), ''))"
_TERMINAL = "os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)"


@pytest_asyncio.fixture
async def walled(walls: Survey) -> AsyncIterator[Cells]:
    async with walled_cells(walls) as cells:
        yield cells


async def greedy(cell: Cell, take: str, before: str = "") -> str:
    """Let a program take all that it gets and keep it; returns what it told."""
    script = f"{PRELUDE}{_MOST}{before}take_all(lambda: {take})\ntell()\ntime.sleep(600)"
    program = await cell.start(PYTHON, "-c", script)
    told = b""
    while not told.endswith(b"\n"):
        pieces = await program.read()
        assert pieces, told
        told += b"".join(piece.content for piece in pieces)
    return told.decode()


async def test_watches_are_counted_for_each_sandbox(walls: Survey, walled: Cells) -> None:
    if not walls.own_uid:
        pytest.skip("sandboxes share a user, and so its counts")
    told = await greedy(await walled.open(), _WATCHER)
    assert "EMFILE" in told
    neighbour = await (await walled.open()).attempts(f"attempt('watch', lambda: {_WATCHER})")
    assert neighbour == {"watch": "done"}
    libc = ctypes.CDLL(None, use_errno=True)
    own = libc.inotify_init1(os.O_CLOEXEC)
    assert own >= 0, "the host's own user has none left"
    os.close(own)


async def test_terminals_of_one_sandbox_are_bounded(walled: Cells) -> None:
    told = await greedy(await walled.open(), _TERMINAL)
    assert '"taken": "64"' in told
    assert "ENOSPC" in told
    neighbour = await (await walled.open()).attempts(f"attempt('open', lambda: {_TERMINAL})")
    assert neighbour == {"open": "done"}


_ON_THEIR_WAY = """
keep = []
def send():
    keep.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    for _ in range(8):
        socket.send_fds(keep[-1][0], [b"x"], [0] * 250)
"""


async def test_descriptors_on_their_way_cost_no_neighbour_its_link(
    walls: Survey, walled: Cells
) -> None:
    """Where they share a user, more than a worker may have open keep it from handing any out."""
    hostile = await walled.open(Limits(open_files=2048))
    neighbour = await walled.open()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    try:
        assert "ETOOMANYREFS" in await greedy(hostile, "send()", _ON_THEIR_WAY)
        if walls.own_uid:
            assert await neighbour.output("echo", "alive") == "alive\n"
        else:
            with pytest.raises(ProcessesExhausted):
                await neighbour.start("true")
            with pytest.raises(IsolationFailed):
                await walled.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    await hostile.enclosure.destroy()
    assert await neighbour.output("echo", "alive") == "alive\n"
    agent = await neighbour.enclosure.files()
    agent.link.close()


async def test_what_the_whole_machine_shares_is_not_to_be_had(walled: Cells) -> None:
    """Places for asynchronous reads (fs.aio-max-nr), memory for compiled filters
    (net.core.bpf_jit_limit), and the programs that load modules for whoever asks.
    """
    script = """
import fcntl, struct
call("reads", 0 if ARM else 206, 65536, ctypes.create_string_buffer(8))
steps = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
program = struct.pack("@HP", 1, ctypes.addressof(steps))
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in (26, 51):
    attempt(f"filter {number}", lambda: asked.setsockopt(socket.SOL_SOCKET, number, program))
for number in (0x8940, 0x8982, 0x89A0):
    attempt(f"module {number:x}", lambda: fcntl.ioctl(asked, number, bytes(40)))
attempt("protocol", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 17))
attempt("option", lambda: asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096))
"""
    found = dict(await (await walled.open()).attempts(script))
    assert found.pop("reads") == "ENOSYS"
    assert found.pop("option") == "done"
    assert found == dict.fromkeys(found, "EPERM")
    assert len(found) == 6
