"""What the soak would notice: a leak of each kind is planted, and it is named."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import redis
from loadtests.soak.census import Census, kept_programs, take_census
from loadtests.soak.memory import LEAST_SAMPLES, MOST_GROWTH, MemoryGrowth

from fairlead_walls import kernel_calls
from sandbox_worker.isolation.cgroup_files import own_places
from sandbox_worker.isolation.cgroup_trees import hold_tree

_WORKER = """
import os, subprocess, sys
held = []
below = None
if sys.argv[1:]:
    pipe = subprocess.PIPE
    below = subprocess.Popen([*sys.orig_argv[:-1]], stdin=pipe, stdout=pipe, text=True, bufsize=1)
for line in sys.stdin:
    where, word = line.split()
    if where == "below":
        below.stdin.write(f"here {word}\\n")
        below.stdout.readline()
    elif word == "open":
        held.append(os.open("/dev/zero", os.O_RDONLY))
    elif word == "grow":
        held.append(b"x" * (8 << 20))
    print("done", flush=True)
"""


class Worker:
    """A program that leaks when it is told to, with another one below it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, "and one below"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self.tell("here begin")
        self.tell("below begin")

    def tell(self, words: str) -> None:
        """Let it leak, or the one below it; returns when it has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{words}\n".encode())
        self._process.stdin.flush()
        assert self._process.stdout.readline()

    def end(self) -> None:
        """End both."""
        self._process.communicate()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.end()


class Scene:
    """Where a census is taken."""

    def __init__(self, *, root: Path, worker: Worker, redis_url: str) -> None:
        self.root = root
        self.worker = worker
        self.redis_url = redis_url
        self.tree = f"fairlead-test-{secrets.token_hex(6)}"
        self._expected = [each.pid for each in kept_programs(os.getpid())]
        self._expected += [each.pid for each in kept_programs(worker.pid)]

    def census(self) -> Census:
        """Count what is there now."""
        return take_census(
            root=self.root,
            tree=self.tree,
            worker=self.worker.pid,
            expected=self._expected,
            redis_url=self.redis_url,
        )

    def left(self, before: Census) -> Sequence[str]:
        """Name the kinds of what is there now and was not before; others mount as well."""
        found = [each.partition(": ") for each in self.census().more_than(before)]
        return sorted({k for k, _, name in found if k != "mounts" or str(self.root) in name})


@pytest.fixture
def scene(tmp_path: Path, worker: Worker, redis_url: str) -> Scene:
    return Scene(root=tmp_path, worker=worker, redis_url=redis_url)


@contextmanager
def processes(scene: Scene) -> Iterator[None]:
    with subprocess.Popen(["sleep", "600"]) as left:
        try:
            yield
        finally:
            left.kill()


@contextmanager
def mounts(scene: Scene) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount here")
    place = scene.root / "layers"
    kernel_calls.mount("tmpfs", str(place), 0, "size=4096")
    try:
        yield
    finally:
        kernel_calls.detach_mount(str(place))


@contextmanager
def cgroups(scene: Scene) -> Iterator[None]:
    places = own_places(
        Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )
    with ExitStack() as stack:
        for place in places:
            with suppress(OSError):
                # Held, as a worker that starts somewhere sweeps what nobody holds.
                stack.callback(os.close, hold_tree(place.path / scene.tree))
                stack.callback((place.path / scene.tree).rmdir)
                (place.path / scene.tree / "left").mkdir()
                stack.callback((place.path / scene.tree / "left").rmdir)
                break
        else:
            pytest.skip("no cgroup can be made here")
        yield


@contextmanager
def keys(scene: Scene) -> Iterator[None]:
    with redis.Redis.from_url(scene.redis_url) as client:
        client.set("fairlead:left", "1")
        yield


@contextmanager
def descriptors(scene: Scene) -> Iterator[None]:
    scene.worker.tell("here open")
    yield


@contextmanager
def files(scene: Scene) -> Iterator[None]:
    (scene.root / "left").touch()
    yield


_PLANTS = {each.__name__: each for each in (processes, mounts, cgroups, keys, descriptors, files)}


@pytest.mark.parametrize("kind", _PLANTS)
def test_what_is_left_is_named(scene: Scene, kind: str) -> None:
    (scene.root / "layers").mkdir()
    before = scene.census()
    assert scene.left(before) == []
    with _PLANTS[kind](scene):
        assert scene.left(before) == [kind]


def test_what_a_spawner_holds_counts_too(scene: Scene) -> None:
    before = scene.census()
    scene.worker.tell("below open")
    assert scene.left(before) == ["descriptors"]


def test_a_program_that_grows_is_named(worker: Worker) -> None:
    memory = MemoryGrowth()
    for grows in (False, True):
        if grows:
            assert MOST_GROWTH < 8 << 20
            worker.tell("below grow")
        for _ in range(LEAST_SAMPLES):
            memory.look(kept_programs(worker.pid))
        found = memory.grown()
        assert len(found) == grows
