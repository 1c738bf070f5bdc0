"""A launch of a dirty tree arrives bit for bit, and its output survives whatever is killed on the
way: every byte exactly once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.aftermath import is_bare
from tests.e2e.mesh_client import (
    GRPC,
    NDJSON,
    SSE,
    TERMINAL,
    Event,
    MeshClient,
    await_answer,
    command,
    output,
    reading,
)
from tests.e2e.programs import MANIFEST, PYTHON, talk, talker
from tests.e2e.running_stack import RunningStack, eventually, places, running_stack
from tests.eventually import SECONDS
from tests.fakes.local_repository import LocalRepository

pytestmark = [pytest.mark.slow, pytest.mark.own_stack]

FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))
BLOCKS = 250
WHOLE = {name: talk(name, BLOCKS) for name in ("stdout", "stderr")}


@pytest.fixture(scope="module")
def hurt() -> Iterator[RunningStack]:
    """A stack whose parts get killed and come back."""
    with places() as where, running_stack(where) as running:
        yield running


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> LocalRepository:
    """A repository of 300 files whose working directory differs in every way that there is."""
    made = LocalRepository.make(tmp_path_factory.mktemp("dirty") / "repository", branch="work")
    for number in range(300):
        made.write(f"src/p{number % 17}/file{number}.txt", f"{number}\n".encode() * (number % 90))
    made.write("picture.bin", bytes(range(256)) * 64)
    made.write("run.sh", b"#!/bin/sh\n")
    made.write("link-me", b"target")
    os.symlink("link-me", made.path / "link")
    made.write(".gitignore", b"ignored/\n*.log\n")
    made.write("crlf.txt", b"one\r\ntwo\r\n")
    made.commit()
    made.write("src/p0/file0.txt", b"modified\n")
    made.write("src/p1/file1.txt", b"staged\n")
    made.git("add", "src/p1/file1.txt")
    made.write("src/p1/file1.txt", b"and changed again\n")
    (made.path / "src/p2/file2.txt").unlink()
    made.git("rm", "-q", "src/p3/file3.txt")
    made.git("mv", "src/p4/file4.txt", "src/p4/renamed.txt")
    os.chmod(made.path / "run.sh", 0o755)  # noqa: S103 - an executable file is what is tested
    (made.path / "link").unlink()
    os.symlink("src/p5", made.path / "link")
    os.symlink("nowhere/at/all", made.path / "dangling")
    made.write("new/folder/untracked.txt", b"untracked\n")
    made.write(b"new/caf\xe9.txt", b"latin-1\n")
    made.write(b"new/two\nlines.txt", b"newline\n")
    made.write("new/random.bin", os.urandom(300_000))
    made.write("new/empty")
    made.write("ignored/secret.txt", b"stays at home\n")
    made.write("trace.log", b"stays at home\n")
    return made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LocalRepository:
    made = LocalRepository.make(tmp_path_factory.mktemp("small") / "repository")
    made.write("hello.txt", b"hello\n")
    made.commit()
    return made


def launch(stack: RunningStack, path: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [FAIRLEAD, "launch", str(path), "--", *words],
        env=stack.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_a_dirty_tree_arrives_bit_for_bit(hurt: RunningStack, dirty: LocalRepository) -> None:
    here = subprocess.run([*PYTHON, MANIFEST], cwd=dirty.path, capture_output=True, check=True)
    lines = here.stdout.splitlines()
    expected = [line for line in lines if b"/ignored/" not in line and b"trace.log" not in line]
    assert len(lines) - len(expected) == 2
    assert len(expected) > 300
    before = dirty.fingerprint()
    for _ in ("cold, by upload", "warm, from what the host has"):
        there = launch(hurt, dirty.path, *PYTHON, MANIFEST)
        assert there.returncode == 0, there.stderr
        assert sorted(there.stdout.splitlines()) == sorted(expected)
    place = launch(hurt, dirty.path, "sh", "-c", "git rev-parse HEAD && git branch --show-current")
    assert place.stdout.decode().split() == [dirty.git("rev-parse", "HEAD"), "work"]
    assert dirty.fingerprint() == before
    is_bare(hurt)


class Gathered:
    """The output of one launch, put together from several streams; a repeated record is a fault."""

    def __init__(self) -> None:
        self.cursor = ""
        self.pieces: list[Event] = []
        self.terminal: list[str] = []

    def take(self, event: Event) -> None:
        """Take the next event."""
        self.cursor = event.cursor
        if event.type == "output":
            expected = self.pieces[-1].sequence + 1 if self.pieces else 1
            assert event.sequence == expected
            self.pieces.append(event)
        elif event.type in TERMINAL:
            self.terminal.append(event.type)

    def check(self) -> None:
        """Compare with what was written."""
        for stream, whole in WHOLE.items():
            assert output(self.pieces, stream) == whole
        assert self.terminal == ["exited"]


def test_a_killed_client_resumes_over_every_surface(
    hurt: RunningStack, small: LocalRepository, tmp_path: Path
) -> None:
    told = tmp_path / "events"
    with told.open("wb") as stdout:
        client = subprocess.Popen(
            [FAIRLEAD, "launch", str(small.path), "-o", "json", "--", *talker(BLOCKS, 0.01)],
            env=hurt.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
        )
        assert eventually(lambda: told.stat().st_size > 1_000_000)
        client.kill()
        assert client.wait() == -signal.SIGKILL
    gathered = Gathered()
    lines = [json.loads(line) for line in told.read_bytes().split(b"\n")[:-1]]
    launch_id = lines[0]["snapshot"]["launch_id"]
    with MeshClient(stack=hurt) as mesh:
        assert mesh.record(launch_id)["state"] == "running"
        for event in mesh.events(launch_id):
            gathered.take(event)
            if event.cursor == lines[-1]["cursor"]:
                break
        assert gathered.pieces[-1].sequence == lines[-1]["output"]["sequence"]
        turn = 0
        while not gathered.terminal:
            by = (NDJSON, SSE, GRPC)[turn % 3]
            stream = mesh.events(launch_id, cursor=gathered.cursor, by=by)
            assert next(stream).type == "snapshot"
            for number, event in enumerate(stream):
                gathered.take(event)
                if turn < 9 and number >= 3 * turn:
                    break
            turn += 1
        assert turn == 10
        gathered.check()
        for by in (NDJSON, SSE, GRPC):
            again = Gathered()
            for event in mesh.events(launch_id, by=by):
                again.take(event)
            again.check()
    logs = subprocess.run(
        [FAIRLEAD, "logs", launch_id],
        env=hurt.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert logs.stdout == WHOLE["stdout"]
    assert logs.stderr == WHOLE["stderr"]
    is_bare(hurt)


@pytest.mark.parametrize("part", ["signalling", "redis"])
def test_what_is_killed_in_mid_output_costs_no_byte(
    hurt: RunningStack, small: LocalRepository, tmp_path: Path, part: str
) -> None:
    url, before = hurt.url, hurt.pids[part]
    streams = {name: tmp_path / name for name in WHOLE}
    with streams["stdout"].open("wb") as stdout, streams["stderr"].open("wb") as stderr:
        client = subprocess.Popen(
            [FAIRLEAD, "launch", str(small.path), "--", *talker(BLOCKS, 0.01)],
            env=hurt.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        assert eventually(lambda: streams["stdout"].stat().st_size > 500_000)
        psutil.Process(before).kill()
        assert client.wait(SECONDS) == 0, streams["stderr"].read_bytes()[-1000:]
    assert streams["stdout"].read_bytes() == WHOLE["stdout"]
    assert WHOLE["stderr"] in streams["stderr"].read_bytes()
    assert eventually(lambda: hurt.pids[part] != before)
    assert hurt.url == url
    with MeshClient(stack=hurt) as mesh:

        def is_listed() -> bool:
            newest = mesh.get("/v1/launches?page_size=1")["launches"]
            assert isinstance(newest, list)
            return [each["state"] for each in newest if isinstance(each, dict)] == ["exited"]

        await_answer(is_listed)
    is_bare(hurt)


def test_a_watcher_that_reads_nothing_holds_nobody_up(
    hurt: RunningStack, small: LocalRepository
) -> None:
    blocks = 850  # 20 MiB of stdout
    room = psutil.Process(hurt.pids["signalling"])
    with MeshClient(stack=hurt) as mesh, reading(small.path) as repository:
        launch_id = mesh.launch(repository, command(*talker(blocks, 0.0)))
        stuck = {by: mesh.events(launch_id, by=by) for by in (NDJSON, SSE, GRPC)}
        for stream in stuck.values():
            assert next(stream).type == "snapshot"
        before = room.memory_info().rss
        most = before
        deadline = time.monotonic() + 20
        while mesh.record(launch_id)["state"] != "exited":
            most = max(most, room.memory_info().rss)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert most - before < 48 * 1024 * 1024
        for by, stream in stuck.items():
            events = list(stream)
            assert output(events) == talk("stdout", blocks), by
            assert output(events, "stderr") == talk("stderr", blocks), by
            assert events[-1].type == "exited"
    is_bare(hurt)
