"""Bad input gets a typed error with a sentence and a remedy on every surface, the right status,
and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead_sdk.launches import LaunchRequest
from tests.e2e import bad_input_surfaces as surface
from tests.e2e.aftermath import is_bare, leftovers
from tests.e2e.bad_input_rows import TRUE, Absent, Grpc, Rest, Row, Usage, Words, fresh
from tests.e2e.bad_input_surfaces import Scene
from tests.e2e.bad_input_table import ROWS
from tests.e2e.mesh_client import MeshClient, reading
from tests.e2e.running_stack import RunningStack, eventually
from tests.fakes.local_repository import LocalRepository

pytestmark = [pytest.mark.slow, pytest.mark.own_stack]

HOLD = LaunchRequest(keep=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user stands: a repository, and what is none."""
    top = tmp_path_factory.mktemp("bad-input")
    local = LocalRepository.make(top / "local")
    local.write("plain.sh", b"#!/bin/sh\n")
    local.commit()
    LocalRepository.make(top / "empty")
    (top / "plain").mkdir()
    (top / "a-file").write_bytes(b"")
    return top


@pytest.fixture(scope="module")
def scene(stack: RunningStack, folder: Path) -> Iterator[Scene]:
    """The shared stack with one held launch, which has a session."""
    with MeshClient(stack=stack) as mesh, reading(folder / "local") as repository:
        mesh.see_through(repository, mesh.launch(repository, TRUE))
        key = fresh()
        scene = Scene(stack=stack, mesh=mesh, repository=repository, folder=folder)
        held = mesh.post("/v1/launches", scene.body(HOLD), key=key)
        mesh.follow(str(held["launch_id"]), until="provisioned")
        opened = mesh.post("/v1/sessions", {"launch_id": held["launch_id"]})
        yield Scene(
            stack=stack,
            mesh=mesh,
            repository=repository,
            folder=folder,
            held=mesh.record(str(held["launch_id"])),
            held_key=key,
            session_id=str(opened["session_id"]),
        )
        mesh.cancel(str(held["launch_id"]))
        is_bare(stack)


@pytest.fixture(scope="module")
def before(scene: Scene) -> set[str]:
    """What the held launch has."""
    return named(scene)


def named(scene: Scene) -> set[str]:
    """Name what there is; the record of the held launch may still be on its way to Redis."""
    return {each.partition(" is ")[0] for each in leftovers(scene.stack)}


def asked(name: str) -> list[object]:
    """Return the rows that make sense on a surface, with their names."""
    return [
        pytest.param(row, id=title)
        for title, row in ROWS.items()
        if not isinstance(getattr(row, name), Absent)
    ]


def nothing_came_of_it(scene: Scene, before: set[str]) -> None:
    """Nothing is there that was not before; what is in the trash goes in its own time and is seen
    to at the end.
    """
    left: list[str] = []

    def is_clean() -> bool:
        found = named(scene) - before
        left[:] = sorted(each for each in found if "/.trash/" not in each)
        return not left

    assert eventually(is_clean), left


@pytest.mark.parametrize("row", asked("rest"))
def test_rest_refuses(scene: Scene, before: set[str], row: Row) -> None:
    ask: Rest | Absent = row.rest
    assert not isinstance(ask, Absent)
    assert surface.by_rest(ask(scene), row.kind).reason == row.reason
    nothing_came_of_it(scene, before)


@pytest.mark.parametrize("row", asked("grpc"))
def test_grpc_refuses(scene: Scene, before: set[str], row: Row) -> None:
    ask: Grpc | Absent = row.grpc
    assert not isinstance(ask, Absent)
    assert surface.by_grpc(lambda: ask(scene), row.kind).reason == (row.grpc_reason or row.reason)
    nothing_came_of_it(scene, before)


@pytest.mark.parametrize("row", asked("cli"))
def test_the_command_line_refuses(scene: Scene, before: set[str], row: Row) -> None:
    match row.cli:
        case Usage(words):
            surface.usage_error(scene, words(scene))
        case Words(words, reason, environment):
            refusal = surface.by_cli(scene, words(scene), environment, row.kind)
            assert refusal.reason == (reason or row.reason)
    nothing_came_of_it(scene, before)


def test_what_a_surface_leaves_out_it_leaves_out_for_a_reason() -> None:
    absent = [
        each
        for row in ROWS.values()
        for each in (row.rest, row.grpc, row.cli)
        if isinstance(each, Absent)
    ]
    assert all(each.why.startswith(("REST: ", "gRPC: ", "CLI: ")) for each in absent)
    assert all(each.why.endswith(".") for each in absent)


@pytest.mark.parametrize("branch", ["a;b", "`id`$(id)ü/&|'\"<$IFS>"])
def test_a_branch_that_only_a_shell_would_fear_is_just_a_name(
    scene: Scene, before: set[str], branch: str
) -> None:
    show = ("git", "symbolic-ref", "--short", "HEAD")
    done = scene.cli("launch", scene.local, f"--branch={branch}", "--", *show)
    assert (done.returncode, done.stdout) == (0, f"{branch}\n"), done
    nothing_came_of_it(scene, before)
