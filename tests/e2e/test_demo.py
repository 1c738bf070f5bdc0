"""What `make demo` runs: a launch shown twice, then nothing left; the launch's exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.running_stack import DEVSTACK, ROOT, Places, eventually
from tests.eventually import SECONDS
from tests.fakes.unprivileged import expect_passes

pytestmark = pytest.mark.slow

GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "small"
    path.mkdir()
    (path / "hello.py").write_text("print('hello')\n" * 3)
    for arguments in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "Begin")):
        subprocess.run([*GIT, *arguments], cwd=path, check=True)
    (path / "hello.py").write_text("print('changed')\n")
    (path / "untracked.txt").write_text("along\n")
    return path


def demo(where: Places, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEVSTACK, "demo", *arguments],
        env=where.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@contextmanager
def started_demo(where: Places, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a demo as the leader of a process group, as a shell on a terminal does."""
    with (where.root / "demo.log").open("wb") as log:
        process = subprocess.Popen(
            [*DEVSTACK, "demo", *arguments],
            env=where.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def said(where: Places) -> str:
    return (where.root / "demo.log").read_text()


@pytest.mark.root
def test_an_ordinary_user_is_shown_the_tour() -> None:
    expect_passes(Path(__file__), chosen="leaves_nothing")


def test_a_demo_shows_the_tour_twice_and_leaves_nothing(
    own_places: Places, repository: Path
) -> None:
    answer = demo(own_places, "--repo", str(repository))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    shown = answer.stdout
    for part in ("redis", "signalling", "workspace-provisioner", "sandbox-worker", "relay-gateway"):
        assert f"● {part}" in shown
    assert shown.count("Begin") == 2
    assert shown.count(" M hello.py") == 2
    assert shown.count("?? untracked.txt") == 2
    assert shown.index("A launch of small") < shown.index("The same again, warm")
    assert "launch.run" in shown + answer.stderr
    assert "make up" in shown
    assert not own_places.state.exists()
    assert own_places.leftovers() == []


def test_the_exit_status_is_the_launchs(own_places: Places, repository: Path) -> None:
    answer = demo(own_places, "--repo", str(repository), "--cmd", "echo out; exit 7")
    assert answer.returncode == 7
    assert "out" in answer.stdout
    assert "The same again" not in answer.stdout
    assert own_places.leftovers() == []


@pytest.mark.parametrize("kind", ["missing", "plain", "empty"])
def test_what_is_no_repository_is_said_at_once(
    own_places: Places, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / kind
    if kind != "missing":
        path.mkdir()
    if kind == "empty":
        subprocess.run(["git", "init", "-q", str(path)], check=True)
    answer = demo(own_places, "--repo", str(path))
    assert answer.returncode == 69
    assert "is not a git repository with at least one commit" in answer.stdout
    assert "make demo REPO=" in answer.stdout
    assert own_places.leftovers() == []


@pytest.mark.parametrize("moment", [0.3, 1.0, 2.0])
def test_ctrl_c_while_it_starts_leaves_nothing(
    own_places: Places, repository: Path, moment: float
) -> None:
    with started_demo(own_places, "--repo", str(repository)) as process:
        time.sleep(moment)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) in {130, -signal.SIGINT}
    assert own_places.leftovers() == []


def test_ctrl_c_twice_during_the_launch_leaves_nothing(
    own_places: Places, repository: Path
) -> None:
    command = ("--cmd", "echo started; sleep 300")
    with started_demo(own_places, "--repo", str(repository), *command) as process:
        assert eventually(lambda: "\nstarted" in said(own_places)), said(own_places)
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 130
    assert own_places.leftovers() == []


def test_a_killed_demo_leaves_no_process_and_the_next_removes_its_directory(
    own_places: Places, repository: Path
) -> None:
    command = ("--cmd", "echo started; sleep 300")
    with started_demo(own_places, "--repo", str(repository), *command) as process:
        assert eventually(lambda: "\nstarted" in said(own_places)), said(own_places)
        process.kill()
        process.wait()
        assert eventually(lambda: not own_places.processes()), own_places.commands()
    for left in (own_places.root / "tmp").iterdir():
        os.utime(left, (0, 0))
    assert demo(own_places, "--repo", str(repository), "--cmd", "true").returncode == 0
    assert own_places.leftovers() == []
