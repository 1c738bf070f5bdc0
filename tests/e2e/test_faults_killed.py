"""Rooms are killed, or told to stop, while a launch needs them: it ends in one typed event or goes
on, and once everything is back nothing is left.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psutil
import pytest

from fairlead_sdk.launches import LaunchRequest
from fairlead_sdk.packs import stream_pack
from fairlead_sdk.repository import Repository
from tests.e2e.aftermath import is_bare, redis_of
from tests.e2e.endings import Failure, ending_of, failure_of, make_offer
from tests.e2e.mesh_client import (
    Event,
    MeshClient,
    Problem,
    await_answer,
    command,
    output,
    reading,
    with_offer,
)
from tests.e2e.programs import PYTHON, numbered, talk, talker
from tests.e2e.running_stack import RunningStack, eventually, places, running_stack
from tests.fakes.local_repository import LocalRepository

pytestmark = [pytest.mark.slow, pytest.mark.own_stack]

SLEEP = command("sleep", "60")
PROJECTS = numbered("killed")


@pytest.fixture(scope="module")
def hurt() -> Iterator[RunningStack]:
    """A stack whose rooms drain for a while when they are told to stop."""
    with places() as where:
        where.extra = {
            "FAIRLEAD_DRAIN_SECONDS": "4",
            "FAIRLEAD_SIGNALLING_OFFER_TIMEOUT_SECONDS": "3",
            "FAIRLEAD_SIGNALLING_GATEWAY_HEARTBEAT_SECONDS": "1",
        }
        with running_stack(where) as running:
            yield running


@pytest.fixture
def mesh(hurt: RunningStack) -> Iterator[MeshClient]:
    with MeshClient(stack=hurt) as client:
        yield client


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalRepository:
    made = LocalRepository.make(tmp_path_factory.mktemp("local") / "repository")
    made.write("hello.txt", b"hello\n")
    made.write("random.bin", os.urandom(3_000_000))
    made.commit()
    return made


@pytest.fixture
def repository(hurt: RunningStack, local: LocalRepository) -> Iterator[Repository]:
    """The repository, which the host holds already; everything is in place at start and end."""
    with reading(local.path) as found:
        await_launch(hurt, found)
        yield found
        await_launch(hurt, found)
        is_bare(hurt)


def await_launch(stack: RunningStack, repository: Repository) -> None:
    """Wait until a launch works, with an answer from a gateway."""
    with MeshClient(stack=stack) as mesh:

        def works() -> bool:
            offered = with_offer(command("cat", "hello.txt"), make_offer())
            events = mesh.see_through(repository, mesh.launch(repository, offered))
            return output(events) == b"hello\n"

        await_answer(works)


def kill(stack: RunningStack, room: str) -> None:
    """Kill a room with SIGKILL and wait until there is another process in its place."""
    pid = stack.pids[room]
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: stack.pids[room] != pid)


@contextmanager
def hanging(stack: RunningStack, room: str) -> Iterator[int]:
    """Let a room hang; when it was not killed in the block it goes on afterwards."""
    pid = stack.pids[room]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def until_started(mesh: MeshClient, launch_id: str, step: str) -> None:
    for event in mesh.events(launch_id):
        if event.type == "step" and event.text("step") == step:
            return
    raise AssertionError(f"{step} has not started")


@pytest.mark.parametrize(
    ("room", "request_", "expected"),
    [
        (
            "workspace-provisioner",
            SLEEP,
            Failure(step="workspace", reason="workspace_provisioner_unavailable"),
        ),
        ("sandbox-worker", SLEEP, Failure(step="sandbox", reason="sandbox_worker_unavailable")),
        (
            "relay-gateway",
            with_offer(SLEEP, make_offer()),
            Failure(step="channel", reason="gateway_not_ready"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_room_that_is_killed_in_its_step_fails_it(
    hurt: RunningStack,
    mesh: MeshClient,
    repository: Repository,
    room: str,
    request_: LaunchRequest,
    expected: Failure,
) -> None:
    with hanging(hurt, room):
        launch_id = mesh.launch(repository, request_)
        until_started(mesh, launch_id, expected.step)
        kill(hurt, room)
    mesh.follow(launch_id)
    assert failure_of(mesh, launch_id) == expected


def test_a_killed_provisioner_in_mid_upload_costs_one_more_upload(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    launch_id = mesh.launch(repository, command("cat", "hello.txt"), project=next(PROJECTS))
    token = mesh.follow(launch_id, until="miss")[-1].text("upload_token")
    pack = b"".join(stream_pack(repository, tips=repository.tips))
    killed = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b'{"tips": []}\n'
        yield pack[: len(pack) // 2]
        kill(hurt, "workspace-provisioner")
        killed.set()
        yield pack[len(pack) // 2 :]

    refused = mesh.http.post("/v1/snapshots", params={"upload": token}, content=pieces())
    assert refused.status_code == 503
    # Which of the two depends on whether gRPC was writing when the host went away.
    assert refused.json()["reason"] in {"workspace_provisioner_unavailable", "upload_interrupted"}
    assert refused.json()["remedy"]
    assert killed.is_set()

    def uploaded() -> bool:
        mesh.upload(repository, token)
        return True

    await_answer(uploaded)
    events = mesh.follow(launch_id)
    assert output(events) == b"hello\n"
    assert ending_of(mesh, launch_id).type == "exited"


def test_a_killed_provisioner_does_not_disturb_a_command(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    """Its workspace is given back by the provisioner that comes after it."""
    launch_id = mesh.launch(repository, command("sh", "-c", "echo one; exec sleep 60"))
    seen = mesh.follow(launch_id, until="output")
    pid = hurt.pids["workspace-provisioner"]
    with hanging(hurt, "workspace-provisioner"):
        os.kill(pid, signal.SIGKILL)
        execution = str(mesh.record(launch_id)["execution_id"])
        mesh.post(f"/v1/executions/{execution}/signal", {"signal": 15})
        ending = mesh.follow(launch_id)[-1]
    assert seen[-1].content == b"one\n"
    assert ending.type == "exited"
    assert ending_of(mesh, launch_id).text("exit", "reason") == "signalled"


def test_a_killed_worker_loses_the_run_and_nothing_else(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    stubborn = "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nos.fork()\nos.setsid\n"
    program = f"{stubborn}print('up', flush=True)\ntime.sleep(600)"
    launch_id = mesh.launch(repository, command(*PYTHON, program))
    mesh.follow(launch_id, until="output")
    worker = psutil.Process(hurt.pids["sandbox-worker"])
    programs = worker.children(recursive=True)
    assert len(programs) >= 4  # spawner, init, the program and its child
    kill(hurt, "sandbox-worker")
    assert mesh.follow(launch_id)[-1].type == "failed"
    assert failure_of(mesh, launch_id) == Failure(step="execution", reason="host_lost")
    gone, alive = psutil.wait_procs(programs, timeout=5)
    assert alive == []
    assert len(gone) == len(programs)


def test_a_killed_worker_takes_the_sandbox_of_a_launch_that_holds_one(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    """The launch goes on holding its workspace; what wants the sandbox is refused, once the next
    worker answers.
    """
    launch_id = mesh.launch(repository, LaunchRequest())
    mesh.follow(launch_id, until="provisioned")
    sandbox_id = str(mesh.record(launch_id)["sandbox_id"])
    kill(hurt, "sandbox-worker")

    def is_refused() -> bool:
        with pytest.raises(Problem) as refused:
            mesh.post(f"/v1/sandboxes/{sandbox_id}/executions", {"arguments": ["true"]})
        return refused.value.reason == "sandbox_not_found"

    assert eventually(is_refused)
    assert mesh.record(launch_id)["state"] == "provisioned"
    mesh.cancel(launch_id)
    assert ending_of(mesh, launch_id).text("reason") == "requested"


def test_killed_signalling_fails_the_launch_whose_steps_it_was_at(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    with hanging(hurt, "workspace-provisioner"):
        launch_id = mesh.launch(repository, SLEEP)
        until_started(mesh, launch_id, "workspace")
        kill(hurt, "signalling")
    await_answer(lambda: mesh.record(launch_id)["state"] == "failed")
    assert failure_of(mesh, launch_id) == Failure(step="", reason="signalling_restarted")


def test_killed_signalling_goes_on_holding_what_is_held(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    launch_id = mesh.launch(repository, LaunchRequest())
    mesh.follow(launch_id, until="provisioned")
    with redis_of(hurt) as redis:
        place = f"fairlead:launch:default:{launch_id}"
        assert eventually(lambda: '"provisioned"' in (redis.hget(place, "record") or ""))
    kill(hurt, "signalling")
    await_answer(lambda: mesh.record(launch_id)["state"] == "provisioned")
    assert mesh.record(launch_id)["released_at"] is None
    mesh.cancel(launch_id)
    assert ending_of(mesh, launch_id).text("reason") == "requested"


def terminate(stack: RunningStack, room: str) -> int:
    """Tell a room to stop, as a deployment does; returns its process id."""
    pid = stack.pids[room]
    os.kill(pid, signal.SIGTERM)
    return pid


def test_a_worker_that_is_told_to_stop_lets_the_command_end(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    launch_id = mesh.launch(repository, command(*talker(60, 0.02)))
    mesh.follow(launch_id, until="output")
    pid = terminate(hurt, "sandbox-worker")
    events = mesh.follow(launch_id)
    assert output(events) == talk("stdout", 60)
    assert output(events, "stderr") == talk("stderr", 60)
    assert events[-1].type == "exited"
    assert events[-1].detail["exit"] == mesh.record(launch_id)["exit"]
    assert eventually(lambda: hurt.pids["sandbox-worker"] != pid)


def test_signalling_that_is_told_to_stop_hands_its_watchers_on(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    launch_id = mesh.launch(repository, command(*talker(100, 0.02)))
    gathered: list[Event] = []
    stream = mesh.events(launch_id)
    for event in stream:
        gathered.append(event)
        if event.type == "output" and len(gathered) > 20:
            break
    pid = terminate(hurt, "signalling")
    # What signalling still has for this watcher, then the end of the stream.
    with suppress(Problem):
        gathered += list(stream)
    assert gathered[-1].type == "output"
    assert eventually(lambda: hurt.pids["signalling"] != pid)

    def goes_on() -> bool:
        gathered.extend(list(mesh.events(launch_id, cursor=gathered[-1].cursor))[1:])
        return gathered[-1].type == "exited"

    await_answer(goes_on)
    assert output(gathered) == talk("stdout", 100)
    assert output(gathered, "stderr") == talk("stderr", 100)


def test_a_provisioner_that_is_told_to_stop_ends_its_checkouts(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    pid = hurt.pids["workspace-provisioner"]
    with ThreadPoolExecutor(4) as pool, hanging(hurt, "workspace-provisioner"):
        launches = list(pool.map(lambda _: mesh.launch(repository, SLEEP), range(4)))
        for launch_id in launches:
            until_started(mesh, launch_id, "workspace")
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        assert eventually(lambda: hurt.pids["workspace-provisioner"] != pid)
        for launch_id in launches:
            for event in mesh.events(launch_id):
                if event.type == "failed" or event.text("step") == "execution":
                    break
            if event.type == "failed":
                assert failure_of(mesh, launch_id).step == "workspace"
            else:
                mesh.cancel(launch_id)
