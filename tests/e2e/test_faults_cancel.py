"""A launch cancelled at any moment leaves nothing: by a call and by Ctrl-C at the client."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fairlead_sdk.repository import Repository
from tests.e2e.aftermath import is_bare
from tests.e2e.endings import ending_of, make_offer
from tests.e2e.mesh_client import MeshClient, command, reading, with_offer
from tests.e2e.programs import PYTHON, numbered
from tests.e2e.running_stack import RunningStack, eventually
from tests.eventually import SECONDS
from tests.fakes.local_repository import LocalRepository

pytestmark = [pytest.mark.slow, pytest.mark.own_stack]

FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))
PROJECTS = numbered("cancelled")
MOMENTS = 12

FAMILY = r"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
print("up", flush=True)
time.sleep(600)
"""
"""Has descendants that have left its session and its parent, and is deaf to SIGTERM."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalRepository:
    made = LocalRepository.make(tmp_path_factory.mktemp("local") / "repository")
    for number in range(60):
        made.write(f"file{number}.txt", b"x" * 2000)
    made.commit()
    made.write("untracked.txt", b"along\n")
    return made


@pytest.fixture
def repository(local: LocalRepository) -> Iterator[Repository]:
    with reading(local.path) as found:
        yield found


@pytest.mark.parametrize("is_cold", [True, False], ids=["cold", "warm"])
def test_cancelled_at_any_moment_it_leaves_nothing(
    stack: RunningStack, repository: Repository, is_cold: bool
) -> None:
    """Cancelled after a random part of the time that the whole takes: about 0.2 s."""
    request = with_offer(command(*PYTHON, FAMILY), make_offer())
    chance = random.Random(7)  # noqa: S311 - not a secret
    seen = set()
    with MeshClient(stack=stack) as mesh, MeshClient(stack=stack) as uploader:
        for number in range(MOMENTS):
            project = next(PROJECTS) if is_cold else "always-the-same"
            launch_id = mesh.launch(repository, request, project=project)
            ends = time.monotonic() + chance.uniform(0, 0.25) * number / MOMENTS
            uploads(uploader, repository, launch_id, ends)
            cancelled = mesh.cancel(launch_id)
            assert cancelled["state"] == "cancelled"
            assert cancelled["released_at"]
            assert mesh.cancel(launch_id) == cancelled
            assert ending_of(mesh, launch_id).text("reason") == "requested"
            seen.add(bool(cancelled["execution_id"]))
    is_bare(stack)


def uploads(mesh: MeshClient, repository: Repository, launch_id: str, ends: float) -> None:
    """Answer a miss, and let the time pass until `ends` is there."""
    for event in mesh.events(launch_id):
        if event.type == "miss" and time.monotonic() < ends:
            mesh.upload(repository, event.text("upload_token"))
        if time.monotonic() >= ends or event.text("step") == "channel":
            break
    time.sleep(max(0.0, ends - time.monotonic()))


def test_cancelled_while_its_upload_is_under_way(
    stack: RunningStack, repository: Repository
) -> None:
    with MeshClient(stack=stack) as mesh, MeshClient(stack=stack) as other:
        launch_id = mesh.launch(repository, command("true"), project=next(PROJECTS))
        token = mesh.follow(launch_id, until="miss")[-1].text("upload_token")

        def pieces() -> Iterator[bytes]:
            yield b'{"tips": []}\nPACK'
            assert other.cancel(launch_id)["state"] == "cancelled"
            yield b"\0" * 100

        refused = mesh.http.post("/v1/snapshots", params={"upload": token}, content=pieces())
        assert refused.status_code == 404
        assert refused.json()["reason"] == "upload_token_invalid"
    is_bare(stack)


@pytest.mark.parametrize("moment", ["at the start", "in the steps", "in mid-output"])
def test_ctrl_c_in_the_client_ends_the_launch(
    stack: RunningStack, local: LocalRepository, tmp_path: Path, moment: str
) -> None:
    told = tmp_path / "told"
    with MeshClient(stack=stack) as mesh, told.open("wb") as stderr:
        before = newest(mesh)
        client = subprocess.Popen(
            [FAIRLEAD, "launch", str(local.path), "--", *PYTHON, FAMILY],
            env=stack.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert client.stdout is not None
        match moment:
            case "at the start":
                # It has begun to read the repository, if not more.
                program = psutil.Process(client.pid)
                assert eventually(lambda: bool(program.children()) or newest(mesh) != before)
            case "in the steps":
                assert eventually(lambda: newest(mesh) != before)
            case _:
                assert client.stdout.readline() == b"up\n"
        client.send_signal(signal.SIGINT)
        client.communicate(timeout=SECONDS)
        assert client.returncode == 130, told.read_text()
        launch_id = newest(mesh)
        if launch_id != before:
            # Before the command runs the launch is cancelled, after that the command interrupted.
            endings = {"in the steps": {"cancelled", "exited"}, "in mid-output": {"exited"}}
            assert ending_of(mesh, launch_id).type in endings.get(moment, {"cancelled"})
        else:
            assert moment == "at the start"
    is_bare(stack)


_STUBBORN = """
trap 'echo interrupted' INT
trap 'echo terminated' TERM
echo up
while :; do sleep 0.05; done
"""


def test_a_command_that_heeds_neither_sigint_nor_sigterm_is_killed(
    stack: RunningStack, local: LocalRepository
) -> None:
    with subprocess.Popen(
        [FAIRLEAD, "launch", str(local.path), "--", "sh", "-c", _STUBBORN],
        env=stack.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"up\n"
        client.send_signal(signal.SIGINT)
        assert client.stdout.read() == b"interrupted\nterminated\n"
        assert client.wait(15) == 128 + signal.SIGKILL
    is_bare(stack)


def test_a_second_ctrl_c_cancels_at_once(stack: RunningStack, local: LocalRepository) -> None:
    with (
        MeshClient(stack=stack) as mesh,
        subprocess.Popen(
            [FAIRLEAD, "launch", str(local.path), "--", "sh", "-c", _STUBBORN],
            env=stack.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        ) as client,
    ):
        assert client.stdout is not None
        for line in (b"up\n", b"interrupted\n"):
            assert client.stdout.readline() == line
            client.send_signal(signal.SIGINT)
        assert client.wait(15) == 130
        assert ending_of(mesh, newest(mesh)).type == "cancelled"
    is_bare(stack)


@pytest.mark.parametrize("options", [[], ["-n"]])
def test_what_is_piped_in_reaches_the_command(
    stack: RunningStack, local: LocalRepository, options: list[str]
) -> None:
    sent = os.urandom(3_000_000)
    ended = subprocess.run(
        [FAIRLEAD, "launch", str(local.path), *options, "--", "cat"],
        env=stack.environment,
        input=sent,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (b"" if options else sent)
    unread = subprocess.run(
        [FAIRLEAD, "launch", str(local.path), *options, "--", "echo", "hi"],
        env=stack.environment,
        input=sent,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (unread.returncode, unread.stdout) == (0, b"hi\n")


def newest(mesh: MeshClient) -> str:
    """Return the id of the newest launch."""
    launches = mesh.get("/v1/launches?page_size=1")["launches"]
    assert isinstance(launches, list)
    first = launches[0] if launches else None
    return str(first["launch_id"]) if isinstance(first, dict) else ""


def test_a_client_that_is_lost_cancels_nothing(stack: RunningStack, local: LocalRepository) -> None:
    client = subprocess.Popen(
        [FAIRLEAD, "launch", str(local.path), "--", "sh", "-c", "echo up; exec sleep 1"],
        env=stack.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"up\n"
    client.kill()
    client.stdout.close()
    client.wait()
    with MeshClient(stack=stack) as mesh:
        assert ending_of(mesh, newest(mesh)).type == "exited"
    is_bare(stack)
