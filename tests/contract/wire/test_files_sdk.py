"""The SDK's files and `fairlead cp`, over a real HTTP connection to a front door."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.http_server import serve_http
from fairlead_sdk import (
    AsyncFairlead,
    DirectoryNotEmpty,
    Fairlead,
    FileChanged,
    FileMissing,
    FileThere,
    NoDirectory,
    NoRegularFile,
    NotFound,
    PathRefused,
)
from fairlead_sdk.blocking_files import Files
from fairlead_sdk.files import AsyncFiles
from fairlead_sdk.loop_thread import LoopThread
from tests.contract.wire.front_door import make_door
from tests.fakes.file_service import SANDBOX, OneSandbox, file_service


@dataclass(frozen=True, slots=True)
class Served:
    """A front door that answers at an address, with one sandbox."""

    url: str
    key: str
    sandbox: OneSandbox


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


async def _served(tmp_path: Path) -> AsyncGenerator[Served, None]:
    root = tmp_path / "workspace"
    root.mkdir()
    sandbox = OneSandbox(root=root)
    with tempfile.TemporaryDirectory(prefix="flw-") as sockets:
        async with file_service(sandbox, bind=f"unix:{sockets}/s") as files:
            door = make_door(tmp_path / "state", files=files)
            async with serve_http(door.app, bind="127.0.0.1:0") as server:
                yield Served(f"http://127.0.0.1:{server.port}", door.key, sandbox)


@pytest.fixture
def served(loop_thread: LoopThread, tmp_path: Path) -> Iterator[Served]:
    """It runs in a thread of its own: the blocking client and the command block this one."""
    serving = _served(tmp_path)
    yield loop_thread.run(_begun(serving))
    loop_thread.run(serving.aclose())


async def _begun(serving: AsyncGenerator[Served, None]) -> Served:
    return await anext(serving)


@pytest.fixture
def files(served: Served) -> Iterator[Files]:
    with Fairlead(url=served.url, api_key=served.key) as fairlead:
        asynchronous = AsyncFiles(door=fairlead._fairlead.door, sandbox_id=SANDBOX)
        yield Files(loop=fairlead._loop, files=asynchronous)


@pytest_asyncio.fixture
async def client(served: Served) -> AsyncIterator[AsyncFiles]:
    async with AsyncFairlead(url=served.url, api_key=served.key) as fairlead:
        yield AsyncFiles(door=fairlead.door, sandbox_id=SANDBOX)


def test_bytes(files: Files, served: Served) -> None:
    content = os.urandom(3_000_000)
    record = files.write("d/ü \N{SNOWMAN}%41.bin", content, parents=True, permissions=0o640)
    assert (record.size, record.permissions, record.kind) == (len(content), 0o640, "file")
    assert (served.sandbox.root / "d" / "ü \N{SNOWMAN}%41.bin").read_bytes() == content
    path = b"d/" + "ü \N{SNOWMAN}%41.bin".encode()
    assert record.name == path
    assert files.read(path) == content
    assert files.read_range(path, 10, 20) == content[10:30]
    assert files.read_range(path, 2_999_990) == content[-10:]
    assert files.read_range(path, -5) == content[-5:]
    assert files.read_range(path, len(content)) == b""
    files.write(b"n\xff", b"")
    assert files.read(b"n\xff") == b""
    files.write(b"\nof lines\n", b"2")
    assert files.read(b"\nof lines\n") == b"2"
    files.remove(b"\nof lines\n")
    assert [each.name for each in files.list()] == [b"d", b"n\xff"]
    assert (
        files.stat(path).modified_ns == (served.sandbox.root / os.fsdecode(path)).stat().st_mtime_ns
    )


def test_changes_and_their_errors(files: Files) -> None:
    record = files.write("f", b"one", create=True)
    with pytest.raises(FileThere):
        files.write("f", b"two", create=True)
    files.write_range("f", 1, b"X", truncate=True)
    assert files.read("f") == b"oX"
    with pytest.raises(FileChanged):
        files.write("f", b"three", if_match=record.etag)
    files.write("f", b"three", if_match=files.stat("f").etag)
    files.mkdir("d/e", parents=True)
    assert files.stat("d").is_directory
    with pytest.raises(FileThere):
        files.mkdir("d")
    with pytest.raises(FileThere):
        files.move("f", "d")
    files.move("f", "d/f")
    assert not files.exists("f")
    assert files.exists("d/f")
    with pytest.raises(NoRegularFile):
        files.read("d")
    with pytest.raises(NoDirectory):
        files.list("d/f")
    with pytest.raises(DirectoryNotEmpty):
        files.remove("d")
    files.remove("d", recursive=True)
    with pytest.raises(FileMissing):
        files.stat("d")
    for path in ("../x", "/etc/passwd", "a\0b"):
        with pytest.raises(PathRefused):
            files.read(path)


@pytest.mark.asyncio
async def test_a_watch(client: AsyncFiles, served: Served, loop_thread: LoopThread) -> None:
    async with aclosing(client.watch()) as events:
        assert (await anext(events)).change == "started"
        (served.sandbox.root / "d").mkdir()
        event = await anext(events)
        assert (event.change, event.path, event.is_directory) == ("created", b"d", True)
        await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(served.sandbox.release(), loop_thread._loop)
        )
        assert await anext(events, None) is None
    with pytest.raises(NotFound):
        await client.stat("")


def make_tree(top: Path) -> None:
    (top / "d" / "empty").mkdir(parents=True)
    (top / "d" / "run").write_bytes(b"#!/bin/sh\n")
    (top / "d" / "run").chmod(0o755)
    os.utime(top / "d" / "run", ns=(1, 1_700_000_000_123_456_789))
    (top / "big").write_bytes(os.urandom(1_000_000))
    (top / "in").symlink_to("d/run")
    (top / "out").symlink_to("/etc/passwd")


def test_trees_go_there_and_back(files: Files, served: Served, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    seen: list[int] = []
    sent = files.upload(tmp_path / "tree", "up", progress=seen.append)
    assert (sent.entries, sent.content_bytes, sent.left_out) == (5, 1_000_010, ("out",))
    assert sum(seen) > 1_000_000
    there = served.sandbox.root / "up"
    assert sorted(os.listdir(there)) == ["big", "d", "in"]
    assert (there / "d" / "run").stat().st_mtime_ns == 1_700_000_000_123_456_789
    (there / "evil").symlink_to("../../..")
    (there / "d" / ".git").mkdir()
    (there / "d" / ".git" / "config").write_text("[core]\n")
    os.mkfifo(there / "d" / os.fsdecode(b"a pipe%\n\xff"))
    got = files.download("up", tmp_path / "back")
    left_out = ("d/.git", "evil", os.fsdecode(b"d/a pipe%\n\xff"))
    assert (got.entries, got.content_bytes, got.left_out) == (5, 1_000_010, left_out)
    back = tmp_path / "back"
    assert sorted(os.listdir(back)) == ["big", "d", "in"]
    assert (back / "big").read_bytes() == (tmp_path / "tree" / "big").read_bytes()
    assert os.access(back / "d" / "run", os.X_OK)
    assert int((back / "d" / "run").stat().st_mtime) == 1_700_000_000
    assert os.readlink(back / "in") == "d/run"
    files.download("up/d/.git/config", tmp_path / "single")
    files.download("up/d/run", tmp_path / "single")
    assert (tmp_path / "single").read_bytes() == b"#!/bin/sh\n"
    assert os.access(tmp_path / "single", os.X_OK)
    files.download("up", tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == ["back", "single", "state", "tree", "workspace"]


@dataclass(frozen=True, slots=True)
class Cp:
    """Runs `fairlead cp`."""

    served: Served
    here: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fairlead_sdk", "cp", *arguments],
            cwd=self.here,
            env={
                **os.environ,
                "FAIRLEAD_URL": self.served.url,
                "FAIRLEAD_API_KEY": self.served.key,
            },
            capture_output=True,
            text=True,
            timeout=50,
        )


@pytest.fixture
def cp(served: Served, tmp_path: Path) -> Cp:
    (tmp_path / "here").mkdir()
    return Cp(served, tmp_path / "here")


def test_cp(cp: Cp, served: Served) -> None:
    there, here = served.sandbox.root, cp.here
    make_tree(here / "tree")
    (here / "f").write_bytes(b"content")
    assert cp("f", f"{SANDBOX}:g").returncode == 0
    assert (there / "g").read_bytes() == b"content"
    assert cp("f", f"{SANDBOX}:").returncode == 0
    assert (there / "f").read_bytes() == b"content"
    sent = cp("-o", "json", "tree", f"{SANDBOX}:")
    assert (sent.returncode, sent.stdout) == (
        0,
        '{"entries":5,"content_bytes":1000010,"left_out":["out"]}\n',
    )
    assert sorted(os.listdir(there / "tree")) == ["big", "d", "in"]
    assert cp("tree/d/.", f"{SANDBOX}:tree").returncode == 0
    assert "run" in os.listdir(there / "tree")
    assert cp(f"{SANDBOX}:tree/d", ".").returncode == 0
    assert sorted(os.listdir(here / "d")) == ["empty", "run"]
    assert cp(f"{SANDBOX}:tree/d/.", "named").returncode == 0
    assert sorted(os.listdir(here / "named")) == ["empty", "run"]
    assert cp(f"{SANDBOX}:g", "copy").returncode == 0
    assert (here / "copy").read_bytes() == b"content"
    assert cp(f"{SANDBOX}:", "all").returncode == 0
    assert sorted(os.listdir(here / "all")) == ["f", "g", "tree"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("a", "b"), 2, "one of SRC and DST is LAUNCH:PATH"),
        ((f"{SANDBOX}:a", f"{SANDBOX}:b"), 2, "one of SRC and DST is LAUNCH:PATH"),
        (("a",), 2, "the following arguments are required: DST"),
        (("./a:b", "c"), 2, "one of SRC and DST is LAUNCH:PATH"),
        (("nope", f"{SANDBOX}:a"), 1, "nope: there is no such file or directory."),
        ((f"{SANDBOX}:nope", "a"), 1, "There is no such file or directory in the sandbox."),
        ((f"{SANDBOX}:../x", "a"), 1, "The path leaves the workspace."),
        ((f"{SANDBOX}:f", "no/such/place"), 1, "No such file or directory."),
        (("f", f"{SANDBOX}:no/such"), 1, "There is no such file or directory in the sandbox."),
    ],
)
def test_cp_that_does_not_work(
    cp: Cp, served: Served, arguments: tuple[str, ...], status: int, said: str
) -> None:
    (cp.here / "f").write_bytes(b"f")
    (served.sandbox.root / "f").write_bytes(b"f")
    ended = cp(*arguments)
    assert (ended.returncode, said in ended.stderr) == (status, True), ended.stderr
    assert os.listdir(cp.here) == ["f"]
    assert os.listdir(served.sandbox.root) == ["f"]
