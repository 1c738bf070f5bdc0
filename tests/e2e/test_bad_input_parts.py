"""A part that is not there gets a typed error on every surface, and everything works once it is
back.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.launch.v1 import launch_pb2 as launch
from fairlead.session.v1 import session_pb2 as session
from fairlead_sdk.launches import LaunchRequest
from tests.e2e import bad_input_surfaces as surface
from tests.e2e.aftermath import is_bare, redis_of
from tests.e2e.bad_input_rows import (
    OFFER,
    TRUE,
    Absent,
    Row,
    Words,
    fresh,
    get,
    launching,
    post,
    rpc,
    verb,
)
from tests.e2e.bad_input_surfaces import Scene
from tests.e2e.mesh_client import MeshClient, await_answer, reading, with_offer
from tests.e2e.running_stack import DEVSTACK, ROOT, places, running_stack
from tests.fakes.local_repository import LocalRepository

pytestmark = [pytest.mark.slow, pytest.mark.own_stack]

NOBODY = "nobody is there to answer."


def away(reason: str) -> Row:
    """Return the row of a launch while a part is away."""
    return launching(TRUE, reason, kind=surface.AWAY)


LIST = Row(
    reason="redis_unavailable",
    kind=surface.AWAY,
    rest=get("/v1/launches"),
    grpc=rpc("launches", "ListLaunches", launch.ListLaunchesRequest()),
    cli=verb("ps"),
)
OPEN = Row(
    reason="gateway_unavailable",
    kind=surface.AWAY,
    rest=lambda scene: post("/v1/sessions", {"launch_id": scene.held_id})(scene),
    grpc=rpc(
        "sessions",
        "OpenSession",
        lambda scene: session.OpenSessionRequest(
            launch_id=scene.held_id, mode=session.SESSION_MODE_COMPLETE, idempotency_key=fresh()
        ),
    ),
    cli=verb("forward", "{held}", "80"),
)
UNREACHED = Row(
    reason="mesh_unreachable",
    kind=surface.AWAY,
    rest=Absent(f"REST: {NOBODY}"),
    grpc=Absent(f"gRPC: {NOBODY}"),
    cli=Words(lambda scene: ["launch", scene.local, "--", "true"]),
)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A stack whose parts may be killed."""
    folder = tmp_path_factory.mktemp("parts")
    LocalRepository.make(folder / "local").commit()
    with (
        places() as where,
        running_stack(where) as stack,
        MeshClient(stack=stack) as mesh,
        reading(folder / "local") as repository,
    ):
        yield Scene(stack=stack, mesh=mesh, repository=repository, folder=folder)


@contextmanager
def without(scene: Scene, part: str) -> Iterator[None]:
    """Kill a part, which nobody starts again before the end of the block; then see it back."""
    supervisor = scene.stack.supervisor.pid
    pid = scene.stack.pids[part]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        yield
    finally:
        os.kill(supervisor, signal.SIGCONT)

    def works() -> bool:
        launch_id = scene.mesh.launch(scene.repository, with_offer(TRUE, OFFER))
        return scene.mesh.see_through(scene.repository, launch_id)[-1].type == "exited"

    await_answer(works)


def on_every_surface(scene: Scene, row: Row) -> None:
    """Ask a row wherever it makes sense."""
    told = []
    if not isinstance(row.rest, Absent):
        told.append(surface.by_rest(row.rest(scene), row.kind))
    if not isinstance(row.grpc, Absent):
        ask = row.grpc
        told.append(surface.by_grpc(lambda: ask(scene), row.kind))
    assert isinstance(row.cli, Words)
    told.append(surface.by_cli(scene, row.cli.words(scene), row.cli.environment, row.kind))
    assert [refusal.reason for refusal in told] == [row.reason] * len(told)


@pytest.mark.parametrize("room", ["workspace-provisioner", "sandbox-worker"])
def test_a_room_of_the_host_is_away(scene: Scene, room: str) -> None:
    kind = {"workspace-provisioner": "workspace", "sandbox-worker": "sandbox"}[room]
    with without(scene, room), redis_of(scene.stack) as redis:
        # A machine may be so slow that the lease ends before every surface was asked.
        leased = list(redis.scan_iter(f"fairlead:host:*:{kind}"))
        assert all(redis.persist(key) for key in leased)
        on_every_surface(scene, away(f"{room.replace('-', '_')}_unavailable"))
        if leased:  # else it had ended before it was looked for
            redis.delete(*leased)
        await_answer(lambda: not scene.mesh.get("/v1/hosts")["hosts"])
        on_every_surface(scene, away("no_host"))
    is_bare(scene.stack)


def test_the_gateway_is_away(scene: Scene) -> None:
    launch_id = scene.mesh.launch(scene.repository, LaunchRequest(keep=True))
    for event in scene.mesh.events(launch_id):
        if event.type == "miss":
            scene.mesh.upload(scene.repository, event.text("upload_token"))
        if event.type == "provisioned":
            break
    held = replace(scene, held=scene.mesh.record(launch_id))
    offered = replace(
        launching(with_offer(TRUE, OFFER), OPEN.reason, kind=surface.AWAY), cli=OPEN.cli
    )
    with without(scene, "relay-gateway"):
        await_answer(lambda: not scene.mesh.get("/v1/gateways")["gateways"])
        on_every_surface(held, OPEN)
        on_every_surface(held, offered)
    scene.mesh.cancel(launch_id)
    is_bare(scene.stack)


def test_signalling_is_away(scene: Scene) -> None:
    with without(scene, "signalling"):
        on_every_surface(scene, UNREACHED)
    is_bare(scene.stack)


def test_redis_is_away(scene: Scene) -> None:
    with without(scene, "redis"):
        on_every_surface(scene, LIST)
        on_every_surface(scene, away("redis_unavailable"))
    is_bare(scene.stack)


def test_a_stack_on_a_redis_that_is_not_there_says_so(tmp_path: Path) -> None:
    dead = tmp_path / "dead.sock"
    with places() as where:
        where.extra = {"FAIRLEAD_REDIS_URL": f"unix://{dead}"}
        said = subprocess.run(
            [*DEVSTACK, "up"],
            env=where.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert said.returncode == surface.UNAVAILABLE, said
        assert "Traceback" not in said.stderr
        first, remedy, *_ = said.stderr.splitlines()
        assert first.startswith("devstack: ")
        assert str(dead) in first
        assert remedy.strip()
        assert not where.leftovers()
