"""Each attack of `tests.fakes.attacks` on each tier, with the outcome that the tier promises."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead_walls.survey import Survey
from sandbox_worker.isolation.unprivileged import cover_of
from tests.fakes.attacks import ON_THE_KERNEL, Attacks
from tests.fakes.attacks_on_others import (
    ON_A_NEIGHBOUR,
    ON_FILES,
    ON_MESSAGES,
    ON_SOCKETS,
    ON_THE_FIRST_PROCESS,
    ON_WHAT_IS_ROOTS,
)
from tests.fakes.cells import PRELUDE, PYTHON, Cells, process_cells, walled_cells
from tests.fakes.walled import PATH

pytestmark = pytest.mark.asyncio

ANOTHER_USER = 0x7000_FFFF
_WITHOUT_A_SCENE = (*ON_THE_KERNEL, ON_THE_FIRST_PROCESS)


@pytest_asyncio.fixture(params=["walled", "process"])
async def cells(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cells]:
    if request.param == "process":
        async with process_cells(tmp_path) as opened:
            yield opened
        return
    found: Survey = request.getfixturevalue("walls")
    async with walled_cells(found) as opened:
        yield opened


async def outside(place: Path, script: str, arguments: Sequence[str]) -> Mapping[str, str]:
    """Try attacks without any sandbox, as the user who runs the tests."""
    process = await asyncio.create_subprocess_exec(
        PYTHON, "-c", f"{PRELUDE}\n{script}\ntell()", *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={"PATH": PATH, "TMPDIR": str(place)},
        start_new_session=True,
    )  # fmt: skip
    told, _ = await process.communicate()
    found = json.loads(told)
    assert isinstance(found, dict)
    return found


async def try_all(
    cells: Cells,
    place: Path,
    attacks: Attacks,
    arguments: Sequence[str] = (),
    without_walls: Sequence[str] | None = None,
) -> None:
    """Try attacks in a sandbox; `without_walls` are the arguments of who tries them outside."""
    is_walled = cells.isolation.name == "walled"
    rows = attacks.rows if is_walled else attacks.harmless
    script = attacks.script(rows)
    plain: Mapping[str, str] = {}
    if not is_walled:
        others = arguments if without_walls is None else without_walls
        plain = await outside(place, script, others)
    cell = await cells.open()
    found = await cell.attempts(script, *arguments)
    promised = {
        row.name: row.walled if is_walled else row.process or {plain[row.name]} for row in rows
    }
    assert found.keys() == promised.keys()
    assert {
        name: (outcome, promised[name])
        for name, outcome in found.items()
        if outcome not in promised[name]
    } == {}
    assert await cell.output("echo", "alive") == "alive\n"


@pytest.mark.parametrize("attacks", _WITHOUT_A_SCENE, ids=lambda attacks: attacks.name)
async def test_an_attack_has_its_outcome(cells: Cells, tmp_path: Path, attacks: Attacks) -> None:
    await try_all(cells, tmp_path, attacks)


async def test_an_attack_on_a_neighbour(cells: Cells, tmp_path: Path) -> None:
    neighbour, pid = await (await cells.open()).neighbour()
    _, other = await (await cells.open()).neighbour()
    await try_all(cells, tmp_path, ON_A_NEIGHBOUR, [str(pid)], [str(other)])
    if cells.isolation.name == "walled":
        assert neighbour.end is None
        return
    await neighbour.ended()
    assert neighbour.end is not None
    assert neighbour.end.signal == signal.SIGTERM


async def test_an_attack_on_sockets_of_the_host(cells: Cells, tmp_path: Path) -> None:
    name = f"fairlead-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        port = server.getsockname()[1]
        await try_all(cells, tmp_path, ON_SOCKETS, [str(port), name])


async def test_an_attack_on_messages_of_the_host(cells: Cells, tmp_path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = os.getpid()
    segment = libc.shmget(key, 4096, 0o1600)
    assert segment >= 0
    try:
        await try_all(cells, tmp_path, ON_MESSAGES, [str(key)])
    finally:
        libc.shmctl(segment, 0, None)


async def test_an_attack_on_files_of_the_host(cells: Cells, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("nightingale-7261")
    await try_all(cells, tmp_path, ON_FILES, [str(secret), str(Path.home())])


@pytest.mark.root
@pytest.mark.parametrize("tier", ["walled", "process"])
async def test_an_attack_on_what_is_roots(
    tier: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only a worker that is root has something to lose here")
    volume = tmp_path / "host"
    (volume / "sandboxes").mkdir(parents=True)
    secret = volume / "secret"
    secret.write_text("nightingale-7261")
    secret.chmod(0o600)
    opened = (
        process_cells(volume / "sandboxes", user=ANOTHER_USER)
        if tier == "process"
        else walled_cells(request.getfixturevalue("walls"))
    )
    async with opened as cells:
        cover = cover_of(bytes(volume)).decode()
        arguments = [str(secret), str(os.getpid()), cover]
        found = await (await cells.open()).attempts(
            ON_WHAT_IS_ROOTS.script(ON_WHAT_IS_ROOTS.rows), *arguments
        )
    promised = {row.name: row.process for row in ON_WHAT_IS_ROOTS.rows}
    assert found.keys() == promised.keys()
    assert {name: got for name, got in found.items() if got not in promised[name]} == {}


async def test_what_is_not_tried_on_tier_0_would_harm_the_machine() -> None:
    """And each says how."""
    for attacks in (*_WITHOUT_A_SCENE, ON_A_NEIGHBOUR, ON_SOCKETS, ON_MESSAGES, ON_FILES):
        names = [row.name for row in attacks.rows]
        assert len(set(names)) == len(names)
        for row in attacks.rows:
            assert row.walled
            assert not (row.harm and row.process)
