"""Break-outs towards files: of the host, of neighbours, past links that change, into programs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead_walls.survey import Survey
from sandbox_worker.ports import Tree
from tests.fakes.cells import OWN_PLACES, PRELUDE, PYTHON, Cells, process_cells, walled_cells

pytestmark = pytest.mark.asyncio

_SECRET = "nightingale-7261"


@pytest_asyncio.fixture
async def walled(walls: Survey) -> AsyncIterator[Cells]:
    async with walled_cells(walls) as cells:
        yield cells


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[Cells]:
    async with process_cells(tmp_path) as cells:
        yield cells


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(_SECRET)
    return path


def make_tree(root: Path, name: str) -> Tree:
    path = root / "trees" / name
    path.mkdir(parents=True)
    (path / "file").write_text(name)
    return Tree(path=path)


_READ = """
for path in sys.argv[1:]:
    attempt(path, lambda: open(path, "rb").read())
"""


async def test_the_host_is_not_to_be_found_by_walking_up(walled: Cells, secret: Path) -> None:
    """Nor by a directory that is moved away under a walk, nor by a descriptor of the root."""
    script = """
import threading
os.makedirs("/tmp/a/b/c")
stop = threading.Event()
def move():
    while not stop.is_set():
        os.rename("/tmp/a/b/c", "/tmp/c")
        os.rename("/tmp/c", "/tmp/a/b/c")
mover = threading.Thread(target=move)
mover.start()
roots = set()
for _ in range(2000):
    try:
        deep = os.open("/tmp/a/b/c", os.O_PATH)
    except FileNotFoundError:
        continue
    top = os.open("../../../../../../../../..", os.O_PATH, dir_fd=deep)
    roots.add(os.fstat(top)[1:3])
    os.close(deep)
    os.close(top)
stop.set()
mover.join()
found["roots"] = str(len(roots | {os.stat("/")[1:3]}))
found["entries"] = " ".join(sorted(os.listdir("/")))
"""
    found = await (await walled.open()).attempts(script)
    assert found["roots"] == "1"
    shown = {"bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "mnt", "proc", "run"}
    shown |= {"sbin", "tmp", "usr", "var", "workspace"}
    assert set(found["entries"].split()) <= shown


async def test_links_that_change_lead_nowhere_else(walled: Cells, secret: Path) -> None:
    """A directory of the workspace is swapped for a link to the host's while programs start in
    it, and while files are read through it.
    """
    cell = await walled.open()
    tree = make_tree(secret.parent, "own")
    await cell.enclosure.bind(tree)
    await cell.output("mkdir", "place")
    flipping = f"""
import os
os.symlink({str(secret.parent)!r}, "link")
print("ready", flush=True)
while True:
    os.rename("place", "away")
    os.rename("link", "place")
    os.rename("place", "link")
    os.rename("away", "place")
"""
    flipper = await cell.start(PYTHON, "-c", flipping)
    await flipper.read()
    look = "cat place/secret place/../../secret 2>/dev/null; pwd"
    for _ in range(10):
        said = await cell.output("sh", "-c", look)
        assert said == "/workspace\n"
    reading = """
seen = set()
for _ in range(3000):
    try:
        seen.add(open("/workspace/place/secret").read())
    except OSError as error:
        seen.add(name(error.errno))
found["seen"] = " ".join(sorted(seen))
"""
    found = await cell.attempts(reading)
    assert set(found["seen"].split()) <= {"ENOENT"}
    assert flipper.end is None
    flipper.close()


async def test_another_s_workspace_and_private_files_are_not_there(
    walled: Cells, tmp_path: Path
) -> None:
    own, other = make_tree(tmp_path, "own"), make_tree(tmp_path, "other")
    cell, neighbour = await walled.open(), await walled.open()
    await cell.enclosure.bind(own)
    await neighbour.enclosure.bind(other)
    places = [f"{place}/x" for place in OWN_PLACES]
    await neighbour.output("sh", "-c", f"for path in {' '.join(places)}; do echo it > $path; done")
    found = await cell.attempts(_READ, *places, str(other.path / "file"), str(own.path / "file"))
    assert set(found.values()) == {"ENOENT"}
    assert await cell.output("cat", "/workspace/file") == "own"
    assert (other.path / "x").read_text() == "it\n"
    assert (other.path / "x").stat().st_uid == os.getuid(), "the host's own can remove it"


async def test_programs_of_the_machine_cannot_be_overwritten(walled: Cells) -> None:
    """Tried on tier 0 it would take them from everybody where the worker is root."""
    script = """
def overwrite(path):
    os.close(os.open(path, os.O_WRONLY))
for path in ("/proc/self/exe", "/proc/1/exe", sys.executable, "/usr/bin/env", "/bin/sh",
             "/usr/lib/os-release", "/etc/passwd", "/etc/ld.so.cache"):
    attempt(path, lambda: overwrite(path))
    attempt(f"beside {path}", lambda: os.rename("/tmp/own", path))
attempt("made in /usr/bin", lambda: open("/usr/bin/made", "w").close())
attempt("made in /etc", lambda: open("/etc/ld.so.preload", "w").close())
attempt("made in /", lambda: open("/made", "w").close())
attempt("made in /dev", lambda: open("/dev/made", "w").close())
attempt("linked", lambda: os.link("/usr/bin/env", "/tmp/env"))
"""
    found = await (await walled.open()).attempts(f"open('/tmp/own', 'w').close()\n{script}")
    assert set(found.values()) <= {
        "EROFS",
        "EACCES",
        "EPERM",
        "ETXTBSY",
        "EXDEV",
        "ENOENT",
        "EBUSY",
    }


async def test_a_program_that_waits_to_be_replaced_by_its_init_does_not_get_its_file(
    walled: Cells,
) -> None:
    """The file that an init runs is opened for writing by what it starts, while it starts (the way
    out of CVE-2019-5736).
    """
    script = """
import threading, time
wanted = time.monotonic() + 1
outcomes = set()
while time.monotonic() < wanted:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                os.close(os.open(f"/proc/{entry}/exe", os.O_WRONLY))
                outcomes.add("done")
            except OSError as error:
                outcomes.add(name(error.errno))
found["opened"] = "done" if "done" in outcomes else "never"
"""
    cell = await walled.open()
    watcher = await cell.start(PYTHON, "-c", f"{PRELUDE}{script}\ntell()")
    while watcher.end is None:
        await cell.output("true")
    assert b"never" in b"".join(piece.content for piece in await watcher.read())
    watcher.close()


async def test_only_its_own_places_can_be_written(walled: Cells, tmp_path: Path) -> None:
    cell = await walled.open()
    await cell.enclosure.bind(make_tree(tmp_path, "own"))
    script = """
writable = []
for folder, folders, _ in os.walk("/"):
    if folder.startswith(("/proc", "/usr")):
        folders.clear()
        continue
    try:
        os.close(os.open(f"{folder}/.tried", os.O_CREAT | os.O_WRONLY, 0o600))
        os.unlink(f"{folder}/.tried")
        writable.append(folder)
    except OSError:
        pass
found["writable"] = " ".join(sorted(writable))
"""
    found = await cell.attempts(script)
    assert found["writable"].split() == list(OWN_PLACES)
