"""Programs of every day behind the walls."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.ids import random_id
from fairlead_walls.survey import Survey
from sandbox_worker.execution import Stream, TerminalSize
from sandbox_worker.isolation.wall_survey import survey_walls
from sandbox_worker.ports import ProgramOrder, Tree
from tests.fakes.cells import PYTHON, Cell, walled_cells
from tests.fakes.walled import PATH

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def cell(walls: Survey, tmp_path: Path) -> AsyncIterator[Cell]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with walled_cells(walls) as cells:
        made = await cells.open()
        await made.enclosure.bind(Tree(path=workspace))
        yield made


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"{program} is not installed")


async def test_python_with_threads_processes_and_a_database(cell: Cell) -> None:
    script = """
import asyncio, multiprocessing, sqlite3, subprocess, threading
from multiprocessing import shared_memory
def square(value):
    return value * value
def fill(which):
    which.append(1)
if __name__ == "__main__":
    done = []
    threads = [threading.Thread(target=fill, args=(done,)) for _ in range(8)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    with multiprocessing.Pool(2) as pool:
        squares = pool.map(square, range(5))
    async def child():
        process = await asyncio.create_subprocess_exec("echo", "child", stdout=-1)
        return (await process.communicate())[0]
    memory = shared_memory.SharedMemory(create=True, size=64)
    memory.close()
    memory.unlink()
    with sqlite3.connect("numbers.db") as base:
        base.execute("pragma journal_mode=wal")
        base.execute("create table numbers (value)")
        base.executemany("insert into numbers values (?)", [(each,) for each in squares])
        total = base.execute("select sum(value) from numbers").fetchone()[0]
    print(len(done), squares, asyncio.run(child()), total)
"""
    await cell.output(PYTHON, "-c", f"open('program.py', 'w').write({script!r})")
    assert await cell.output(PYTHON, "program.py") == "8 [0, 1, 4, 9, 16] b'child\\n' 30\n"


async def test_a_server_on_its_own_loopback(cell: Cell) -> None:
    script = """
import socket, urllib.request, http.server, threading
for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
    class Server(http.server.ThreadingHTTPServer):
        address_family = family
    server = Server((host, 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    shown = f"[{host}]" if ":" in host else host
    with urllib.request.urlopen(f"http://{shown}:{server.server_port}/") as answer:
        print(answer.status)
print(socket.gethostbyname("localhost"), socket.gethostname())
"""
    said = await cell.output(PYTHON, "-c", script)
    assert said.splitlines() == ["200", "200", "127.0.0.1 sandbox"]


async def test_node_with_workers_and_children(cell: Cell) -> None:
    needs("node")
    script = """
const { Worker } = require('worker_threads')
const worker = new Worker('require("worker_threads").parentPort.postMessage(6 * 7)', { eval: true })
worker.on('message', (value) => {
  const child = require('child_process').execFileSync('echo', ['child']).toString().trim()
  require('fs').promises.readFile('/etc/passwd').then(() =>
    console.log(value, child))
})
"""
    assert await cell.output("node", "-e", script) == "42 child\n"


async def test_git_with_a_history(cell: Cell) -> None:
    needs("git")
    script = """
git init -q . && git config user.name a && git config user.email b
echo one > file && git add file && git commit -q -m one
git checkout -q -b other && git mv file moved && git commit -q -am two
git gc -q && git fsck --strict 2>&1 && git log --oneline | wc -l && git worktree add -q ../tmp/tree
"""
    assert (await cell.output("sh", "-ec", script)).splitlines()[0] == "2"


async def test_a_compiler_and_what_it_made(cell: Cell) -> None:
    needs("gcc", "make")
    script = """
printf '#include <pthread.h>\\n#include <stdio.h>\\nvoid *f(void *x) { return x; }\\n' > a.c
printf 'int main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0);' >> a.c
printf ' puts("made"); return 0; }\\n' >> a.c
printf 'a: a.c\\n\\t@$(CC) -o a a.c -pthread\\n' > Makefile
make -s -j2 && ./a && cp a /tmp/a && /tmp/a && cp a ~/a && ~/a
"""
    assert await cell.output("sh", "-ec", script) == "made\n" * 3


async def test_what_would_run_as_its_owner_is_refused_and_all_else_goes_on(cell: Cell) -> None:
    """The filter of system calls refuses set-user-id bits; programs take that as an error."""
    needs("git", "tar", "install", "prlimit")
    script = """
mkdir tree && echo echo ran > tree/program && chmod 755 tree/program
cp -p "$(command -v su || command -v mount)" own && test ! -u own
install -m 4755 tree/program installed 2>&1 | grep -q "Operation not permitted"
chmod u+s tree/program 2>&1 | grep -q "Operation not permitted"
install -m 755 tree/program installed && ./installed
tar cf tree.tar --mode=4755 tree && mkdir out && tar xf tree.tar -C out && sh out/tree/program
tar xpf tree.tar -C out 2>&1 | grep -q "Operation not permitted"
python3 -m zipfile -c a.zip tree && python3 -m zipfile -e a.zip out
(ulimit -n 64 && ulimit -n) && prlimit --nofile=32 sh -c 'ulimit -n'
"""
    assert await cell.output("sh", "-ec", script) == "ran\nran\n64\n32\n"


async def test_a_shell_with_job_control(cell: Cell) -> None:
    needs("bash")
    program = await cell.enclosure.start(
        ProgramOrder(
            execution_id=random_id("exe"),
            arguments=("bash", "--norc", "-i"),
            environment={"PS1": ""},
            directory="",
            stdin=True,
            terminal=TerminalSize(rows=24, columns=80),
        )
    )
    lines = b"stty -echo; tty; sleep 600 & jobs; kill %1; wait %1; echo end $((6 * 7)) > /dev/tty\n"
    await program.write(lines + b"exit\n")
    said = b""
    while pieces := await program.read():
        said += b"".join(piece.content for piece in pieces)
    program.close()
    assert b"/dev/pts/" in said
    assert b"Running" in said
    assert b"end 42" in said
    assert b"no job control" not in said


async def test_programs_outside_the_system_that_path_names(tmp_path: Path) -> None:
    """Those of the tests' own environment: Python, and programs in Rust and in Go."""
    place = Path(sys.executable).parent
    survey = await survey_walls(
        tmp_path, path=f"{place}:{PATH}", first_uid=0x7000_0000, uids=65_536
    )
    if not survey.stands:
        pytest.skip(survey.reason)
    async with walled_cells(survey) as cells:
        cell = await cells.open()
        script = "import pytest, ssl, sys; print(sys.prefix)"
        assert await cell.output(sys.executable, "-c", script) == f"{sys.prefix}\n"
        assert (await cell.output(f"{place}/ruff", "--version")).startswith("ruff ")
        assert (await cell.output(f"{place}/buf", "--version")).count(".") == 2


async def test_tools_that_look_at_the_system(cell: Cell) -> None:
    needs("ps")
    said = await cell.output(
        "sh", "-ec", "ps aux; id -un; df /tmp; uname -n; nproc; cat /etc/passwd"
    )
    assert "ps aux" in said
    assert "sandbox" in said.splitlines()


async def test_a_package_manager_fails_politely(cell: Cell) -> None:
    needs("apt-get")
    program = await cell.start("apt-get", "install", "-y", "hello")
    await program.ended()
    assert program.end is not None
    assert program.end.code == 100
    program.close()


async def test_standard_streams_are_opened_by_name(cell: Cell) -> None:
    script = "cat /dev/stdin > /dev/stdout; echo wrong > /dev/stderr"
    program = await cell.start("sh", "-c", script, stdin=True)
    assert await program.write(b"right\n") == 6
    program.close_stdin()
    pieces = []
    while read := await program.read():
        pieces += [(piece.stream, piece.content) for piece in read]
    program.close()
    assert pieces == [(Stream.STDOUT, b"right\n"), (Stream.STDERR, b"wrong\n")]
