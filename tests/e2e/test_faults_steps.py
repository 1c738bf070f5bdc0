"""Each step of a launch fails in turn, for every cause that can be made from outside: one typed
terminal event names the step, and nothing is left.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from fairlead.launch.v1 import launch_pb2
from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from fairlead_sdk.launches import LaunchRequest
from fairlead_sdk.repository import Repository
from tests.e2e.aftermath import host_root, is_bare, redis_of, worker_channel
from tests.e2e.endings import Failure, failure_of, make_offer
from tests.e2e.mesh_client import (
    MeshClient,
    Problem,
    await_answer,
    command,
    output,
    reading,
    with_offer,
)
from tests.e2e.running_stack import RunningStack, eventually, places, running_stack
from tests.fakes.local_repository import LocalRepository

pytestmark = [pytest.mark.slow, pytest.mark.own_stack]

SANDBOXES = 3
TRUE = command("true")


@pytest.fixture(scope="module")
def hurt() -> Iterator[RunningStack]:
    """A stack with little patience and little room."""
    with places() as where:
        where.extra = {
            "FAIRLEAD_SIGNALLING_UPLOAD_TIMEOUT_SECONDS": "3",
            "FAIRLEAD_SIGNALLING_OFFER_TIMEOUT_SECONDS": "1",
            "FAIRLEAD_SANDBOX_MOST_SANDBOXES": str(SANDBOXES),
            "FAIRLEAD_WORKSPACE_MAX_PACK_BYTES": "2000000",
        }
        with running_stack(where) as running:
            yield running


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalRepository:
    made = LocalRepository.make(tmp_path_factory.mktemp("local") / "repository")
    made.write("hello.txt", b"hello\n")
    made.write("plain.sh", b"#!/bin/sh\n")
    made.write("lost.py", b"#!/nowhere/at/all\n")
    os.chmod(made.path / "lost.py", 0o755)  # noqa: S103 - it must be executable
    os.symlink("/etc", made.path / "outside")
    made.commit()
    return made


@pytest.fixture(scope="module")
def mesh(hurt: RunningStack, local: LocalRepository) -> Iterator[MeshClient]:
    """A client of the stack, whose host holds the repository already."""
    with MeshClient(stack=hurt) as client, reading(local.path) as repository:
        launch_id = client.launch(repository, TRUE)
        assert client.see_through(repository, launch_id)[-1].type == "exited"
        yield client


@pytest.fixture
def repository(mesh: MeshClient, local: LocalRepository) -> Iterator[Repository]:
    with reading(local.path) as found:
        yield found


@contextmanager
def replaced_by_a_file(path: Path) -> Iterator[None]:
    """Let there be a file where the room has a directory."""
    away = path.with_name(f"{path.name}.away")
    path.mkdir(mode=0o700, exist_ok=True)
    path.rename(away)
    path.write_bytes(b"")
    try:
        yield
    finally:
        path.unlink()
        away.rename(path)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process hang for the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def full_of_sandboxes(stack: RunningStack) -> Iterator[None]:
    """Take every place on the host, so that signalling does not know it yet."""
    with redis_of(stack) as redis:
        key = next(redis.scan_iter("fairlead:host:*:sandbox"))
        # The host says how full it is every 5 s, for 15 s: not just before it does so again.
        assert eventually(lambda: redis.pttl(key) > 10_700)
    with worker_channel(stack, "sandbox.sock") as (channel, metadata):
        stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        keys = [uuid.uuid4().hex for _ in range(SANDBOXES)]
        for key in keys:
            stub.CreateSandbox(
                sandbox_pb2.CreateSandboxRequest(tenant="other", idempotency_key=key),
                metadata=metadata,
            )
        try:
            yield
        finally:
            for key in keys:
                stub.ReleaseSandbox(
                    sandbox_pb2.ReleaseSandboxRequest(tenant="other", idempotency_key=key),
                    metadata=metadata,
                )


Fault = Callable[[RunningStack], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cause, the launch that meets it, and what it must be told as."""

    request: LaunchRequest = TRUE
    fault: Fault = lambda stack: nullcontext()
    step: str
    reason: str


def directory(name: str) -> Fault:
    return lambda stack: replaced_by_a_file(host_root(stack) / name)


CASES = {
    "workspace: trees is a file": Case(
        fault=directory("trees"), step="workspace", reason="storage_unavailable"
    ),
    "workspace: blanks is a file": Case(
        fault=directory("workspaces/.blanks"), step="workspace", reason="storage_unavailable"
    ),
    "workspace: layers is a file": Case(
        fault=directory("layers"), step="workspace", reason="storage_unavailable"
    ),
    "workspace: records is a file": Case(
        fault=directory("workspaces/.records"), step="workspace", reason="storage_unavailable"
    ),
    "workspace: stores is a file": Case(
        fault=directory("workspaces/default"), step="workspace", reason="storage_unavailable"
    ),
    "sandbox: records is a file": Case(
        fault=directory("sandboxes/records"), step="sandbox", reason="storage_unavailable"
    ),
    "channel: the gateway hangs": Case(
        request=with_offer(command("sleep", "60"), make_offer()),
        fault=lambda stack: stopped(stack.pids["relay-gateway"]),
        step="channel",
        reason="gateway_timeout",
    ),
    "channel: the gateway refuses": Case(
        request=with_offer(
            command("sleep", "60"), re.sub("a=sctp-port:.*", "a=sctp-port:x\r", make_offer())
        ),
        step="channel",
        reason="offer_refused",
    ),
    "execution: journals is a file": Case(
        fault=directory("sandboxes/journals"), step="execution", reason="storage_unavailable"
    ),
    "execution: no such program": Case(
        request=command("no-such-program"), step="execution", reason="command_not_found"
    ),
    "execution: not executable": Case(
        request=command("./plain.sh"), step="execution", reason="command_not_executable"
    ),
    "execution: no such interpreter": Case(
        request=command("./lost.py"), step="execution", reason="command_not_executable"
    ),
    "execution: no such directory": Case(
        request=command("true", directory="nowhere"),
        step="execution",
        reason="directory_not_found",
    ),
    "execution: a directory outside": Case(
        request=command("true", directory="outside"), step="execution", reason="directory_outside"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_failed_step_is_named_and_leaves_nothing(
    hurt: RunningStack, mesh: MeshClient, repository: Repository, case: Case
) -> None:
    with case.fault(hurt):
        launch_id = mesh.launch(repository, case.request)
        events = mesh.follow(launch_id)
        assert failure_of(mesh, launch_id) == Failure(step=case.step, reason=case.reason)
    steps = {(event.text("step"), event.text("state")) for event in events if event.type == "step"}
    assert (case.step, "failed") in steps
    for step in ("workspace", "sandbox", "channel", "execution"):
        if (step, "done") in steps:
            assert (step, "undone") in steps
    is_bare(hurt)
    works_again(mesh, repository)
    is_bare(hurt)


def works_again(mesh: MeshClient, repository: Repository) -> None:
    """Launch once more, as if nothing had been."""
    launch_id = mesh.launch(repository, command("cat", "hello.txt"))
    assert output(mesh.see_through(repository, launch_id)) == b"hello\n"


def test_nobody_uploads(hurt: RunningStack, mesh: MeshClient, repository: Repository) -> None:
    launch_id = mesh.launch(repository, TRUE, project="nobody-uploads")
    mesh.follow(launch_id)
    assert failure_of(mesh, launch_id) == Failure(step="workspace", reason="upload_timeout")
    is_bare(hurt)


def test_what_is_no_pack_is_refused_and_the_token_stays_good(
    hurt: RunningStack, mesh: MeshClient, repository: Repository, tmp_path: Path
) -> None:
    large = LocalRepository.make(tmp_path / "large")
    large.write("random.bin", os.urandom(3_000_000))
    large.commit()
    launch_id = mesh.launch(repository, TRUE, project="no-pack")
    miss = mesh.follow(launch_id, until="miss")[-1]
    token = miss.text("upload_token")
    expected = {
        b"no pack at all": "pack_invalid",
        b"": "snapshot_incomplete",
        large.git_bytes("pack-objects", "--revs", "--stdout", stdin=b"HEAD\n"): "pack_too_large",
    }
    for pack, reason in expected.items():
        with pytest.raises(Problem) as refused:
            mesh.upload(repository, token, pack=pack)
        assert refused.value.reason == reason
        assert refused.value.document["remedy"]
    mesh.upload(repository, token)
    assert mesh.follow(launch_id)[-1].type == "exited"
    with pytest.raises(Problem) as used:
        mesh.upload(repository, token)
    assert used.value.reason == "upload_token_invalid"
    is_bare(hurt)


def test_a_damaged_store_is_a_miss_that_an_upload_heals(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    objects = [
        path
        for path in (host_root(hurt) / "workspaces" / "default").glob("*.git/objects/*/*")
        if path.is_file()
    ]
    assert objects
    for path in objects:
        path.chmod(0o600)
        path.write_bytes(b"damaged")
    launch_id = mesh.launch(repository, command("cat", "hello.txt"))
    events = mesh.see_through(repository, launch_id)
    assert [event.text("reason") for event in events if event.type == "miss"] == ["missing_objects"]
    assert output(events) == b"hello\n"
    is_bare(hurt)


@pytest.mark.parametrize("room", ["workspace-provisioner", "sandbox-worker"])
def test_a_room_that_hangs_does_not_hinder_a_cancel_once_it_wakes(
    hurt: RunningStack, mesh: MeshClient, repository: Repository, room: str
) -> None:
    pid = hurt.pids[room]
    with stopped(pid):
        launch_id = mesh.launch(repository, TRUE)
        seen = mesh.follow(launch_id, until="step")
        assert seen[-1].text("state") == "started"
        with MeshClient(stack=hurt) as other:
            call = other.launches.CancelLaunch.future(
                launch_pb2.CancelLaunchRequest(launch_id=launch_id),
                metadata=other.metadata,
                timeout=30,
            )
            with pytest.raises(grpc.FutureTimeoutError):
                call.result(timeout=0.3)
            os.kill(pid, signal.SIGCONT)
            assert call.result().launch.HasField("released_at")
    assert mesh.record(launch_id)["state"] == "cancelled"
    is_bare(hurt)


def test_a_full_host_fails_the_step_then_refuses_then_takes_again(
    hurt: RunningStack, mesh: MeshClient, repository: Repository
) -> None:
    with full_of_sandboxes(hurt), redis_of(hurt) as redis:
        launch_id = mesh.launch(repository, TRUE)
        mesh.follow(launch_id)
        assert failure_of(mesh, launch_id) == Failure(step="sandbox", reason="host_full")
        refusals: list[Problem] = []

        def is_refused() -> bool:
            try:
                mesh.follow(mesh.launch(repository, TRUE))
            except Problem as problem:
                refusals.append(problem)
            return bool(refusals)

        assert eventually(is_refused)
        before = set(redis.scan_iter("fairlead:launch:*"))
        assert is_refused()
        assert set(redis.scan_iter("fairlead:launch:*")) == before
        for refusal in refusals:
            assert (refusal.status, refusal.reason) == (503, "no_host")
            assert refusal.document["remedy"]
    is_bare(hurt)
    await_answer(lambda: bool(mesh.launch(repository, TRUE)))
    is_bare(hurt)
