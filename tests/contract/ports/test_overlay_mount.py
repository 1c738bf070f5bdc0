"""Layered workspaces, mounted in a sandbox's own mount namespace and nowhere else."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from sandbox_worker.isolation import overlay
from sandbox_worker.isolation.overlay_trial import can_mount_overlay
from sandbox_worker.isolation.process import ProcessIsolation
from sandbox_worker.ports import Enclosure, ProgramOrder, Tree
from sandbox_worker.sandbox import HOST_NETWORK, Limits
from sandbox_worker.trees import HostTrees
from tests.fakes.isolation import EveryTenant, no_cgroups
from tests.fakes.provisioner_room import open_room

pytestmark = pytest.mark.asyncio

_NOBODY = 65534
_ANOTHER_USER = 0x7000_FFFF


@pytest_asyncio.fixture(params=["own user", "another user"])
async def isolation(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[ProcessIsolation]:
    user = None
    if request.param == "another user":
        if os.geteuid() != 0:
            pytest.skip("only root can become another user")
        user = _ANOTHER_USER
    if not await can_mount_overlay(tmp_path):
        pytest.skip("overlays cannot be mounted on this machine")
    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=tmp_path / "private",
            path="/usr/bin:/bin",
            cgroups=no_cgroups(executor),
            executor=executor,
            sole_tenant=EveryTenant(),
            user=user,
        ) as running:
            yield running


def layered(host_root: Path, *lower: Path) -> str:
    """Make a workspace as the provisioner does, and return its id."""
    workspace_id = random_id("wsp")
    (host_root / "trees" / workspace_id).mkdir(parents=True)
    place = host_root / "layers" / workspace_id
    for name in ("upper", "work"):
        (place / name).mkdir(parents=True)
    (place / "mount.json").write_text(json.dumps({"lower": [str(each) for each in lower]}))
    return workspace_id


def layer(root: Path, name: str, **files: str) -> Path:
    path = root / name
    (path / "sub").mkdir(parents=True)
    for file, text in files.items():
        (path / file.replace("__", "/")).write_text(text)
    return path


async def found(host_root: Path, workspace_id: str) -> Tree:
    return await HostTrees(host_root=host_root).find(workspace_id)


async def run(enclosure: Enclosure, script: str, directory: str = "") -> str:
    program = await enclosure.start(
        ProgramOrder(
            execution_id=random_id("exe"),
            arguments=("sh", "-c", script),
            environment={},
            directory=directory,
            stdin=False,
        )
    )
    content = b""
    while pieces := await program.read():
        content += b"".join(piece.content for piece in pieces)
    program.close()
    return content.decode()


async def test_a_program_sees_the_layers_and_writes_to_the_upper_one(
    isolation: ProcessIsolation, tmp_path: Path
) -> None:
    template = layer(tmp_path, "a,b\\c", one="1", two="2", sub__three="3")
    delta = layer(tmp_path, "delta", two="new")
    workspace_id = layered(tmp_path, delta, template)
    enclosure = await isolation.enclose(random_id("sbx"), Limits(), HOST_NETWORK, tenant="t")
    tree = await found(tmp_path, workspace_id)
    for _ in range(2):
        await enclosure.bind(tree)
    assert await run(enclosure, "cat one two sub/three") == "1new3"
    assert await run(enclosure, "cat three; pwd", "sub") == f"3{tree.path}/sub\n"
    mounted = await run(enclosure, f"grep -F ' {tree.path} ' /proc/self/mountinfo")
    assert {"nosuid", "nodev"} <= set(mounted.split()[5].split(","))
    await run(enclosure, "rm one; echo changed > two; mkdir made; mv sub/three made/")
    assert await run(enclosure, "ls -R1 | tr '\\n' ' '; cat two") == (
        ".: made sub two  ./made: three  ./sub: changed\n"
    )
    assert (template / "one").read_text() == "1"
    assert (template / "sub/three").read_text() == "3"
    assert (delta / "two").read_text() == "new"
    assert os.listdir(tree.path) == []
    assert tree.layers is not None
    upper = Path(tree.layers.upper)
    # Also of what another user wrote: on the disk it is the worker's.
    assert {(upper / name).stat().st_uid for name in ("two", "made")} == {os.geteuid()}
    assert (upper / "two").read_text() == "changed\n"
    await enclosure.destroy()


async def test_siblings_over_one_template_do_not_see_each_other(
    isolation: ProcessIsolation, tmp_path: Path
) -> None:
    template = layer(tmp_path, "template", one="1")
    enclosures = [
        await isolation.enclose(random_id("sbx"), Limits(), HOST_NETWORK, tenant="t")
        for _ in range(3)
    ]
    for number, enclosure in enumerate(enclosures):
        await enclosure.bind(await found(tmp_path, layered(tmp_path, template)))
        await run(enclosure, f"echo {number} > one")
    seen = await asyncio.gather(*(run(enclosure, "cat one") for enclosure in enclosures))
    assert seen == ["0\n", "1\n", "2\n"]
    assert (template / "one").read_text() == "1"
    for enclosure in enclosures:
        await enclosure.destroy()


async def test_layers_that_are_gone_are_a_typed_refusal(
    isolation: ProcessIsolation, tmp_path: Path
) -> None:
    enclosure = await isolation.enclose(random_id("sbx"), Limits(), HOST_NETWORK, tenant="t")
    gone = await found(tmp_path, layered(tmp_path, tmp_path / "nowhere"))
    with pytest.raises(FairleadError) as caught:
        await enclosure.bind(gone)
    assert caught.value.reason == "workspace_not_mounted"
    await enclosure.bind(await found(tmp_path, layered(tmp_path, layer(tmp_path, "t", one="1"))))
    assert await run(enclosure, "cat one") == "1"
    await enclosure.destroy()


async def test_a_workspace_can_be_taken_away_while_it_is_mounted(
    isolation: ProcessIsolation, tmp_path: Path
) -> None:
    workspace_id = layered(tmp_path, layer(tmp_path, "template", one="1"))
    tree = await found(tmp_path, workspace_id)
    enclosure = await isolation.enclose(random_id("sbx"), Limits(), HOST_NETWORK, tenant="t")
    await enclosure.bind(tree)
    for name in ("trees", "layers"):
        (tmp_path / name / workspace_id).rename(tmp_path / f"trash-{name}")
    await enclosure.destroy()
    assert (tmp_path / "template" / "one").read_text() == "1"


@pytest.mark.parametrize("text", ["", "{}", '{"lower": 1}'])
async def test_a_workspace_without_readable_layers_is_not_there(tmp_path: Path, text: str) -> None:
    workspace_id = layered(tmp_path)
    assert (await found(tmp_path, workspace_id)).layers is None
    (tmp_path / "layers" / workspace_id / "mount.json").write_text(text)
    with pytest.raises(FairleadError) as caught:
        await found(tmp_path, workspace_id)
    assert caught.value.reason == "workspace_not_found"


async def test_the_provisioner_can_mount_what_the_worker_can(tmp_path: Path) -> None:
    """Its tests of layers are skipped where it cannot: a broken wall must not hide in that."""
    async with open_room(tmp_path / "host") as room:
        assert room.trees.can_overlay == await can_mount_overlay(tmp_path)


@pytest.mark.root
async def test_it_needs_no_privilege_where_the_kernel_allows_it() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody without privileges")
    source = inspect.getsource(overlay)
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, _NOBODY, _NOBODY)
        # A fork to become somebody else would let gRPC's threads speak on its standard error.
        become = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        ran = await asyncio.to_thread(
            subprocess.run,
            [*become, "/usr/bin/python3", "-I", "-S", "-c", source, place],
            capture_output=True,
            text=True,
            check=False,
        )
        left = os.listdir(place)
    if not _user_namespaces():
        assert ran.returncode == 1
        assert ran.stderr
    else:
        assert (ran.returncode, ran.stderr) == (0, "")
    assert left == []


def _user_namespaces() -> bool:
    limit = Path("/proc/sys/user/max_user_namespaces")
    return not limit.exists() or limit.read_text().strip() != "0"
