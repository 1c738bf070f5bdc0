"""kill -9 at each step of preparing and taking, then a restart: nothing half, nothing lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.fakes.git_client import GitClient, run_git
from tests.fakes.mounted_layers import statuses_inside
from tests.fakes.provisioner_room import ProvisionerRoom, open_layered_room, open_room
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.templates import Template
from workspace_provisioner.trees.layer_stock import MOST_BLANKS
from workspace_provisioner.trees.template_records import read_ready
from workspace_provisioner.workspaces import Rung, Workspace

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(40):
        found.write(f"d{number % 4}/f{number}", f"line {number}\n".encode() * 20)
    found.commit()
    return found


def templates(room: ProvisionerRoom) -> dict[str, Template]:
    """The ready templates, by commit."""
    found = [read_ready(path) for path in room.layout.templates.iterdir()]
    return {each[0].commit: each[0] for each in found if each is not None}


def _key() -> ProjectKey:
    return ProjectKey("ada", "project", ObjectFormat.SHA1)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.fakes.provisioner_room import open_room
from workspace_provisioner.trees import take
from workspace_provisioner.trees.layer_stock import MOST_BLANKS
from workspace_provisioner.sources import checked_source

async def main() -> None:
    source = checked_source(
        tenant="ada", project="project", object_format="sha1", commit=sys.argv[2], branch="main",
        digest="", changes=None,
    )
    async with open_room(Path(sys.argv[1])) as room:
        left = int(sys.argv[3])
        def move(self, source, target, _move=take.Takes._move):
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            _move(self, source, target)
        take.Takes._move = move
        await room.ask("killed", source, overlay=sys.argv[4] == "overlay")
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("moves", "overlay"), [(0, "overlay"), (1, "overlay"), (0, "pool"), (1, "pool")]
)
async def test_killed_between_the_look_at_ready_and_the_rename(
    tmp_path: Path, client: GitClient, moves: int, overlay: str
) -> None:
    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        await room.trees.prepare(_key(), client.head(), depth=1)
        await room.preparations.finished()
        before = templates(room)
    await killed(KILLED, str(tmp_path / "host"), client.head(), str(moves), overlay)
    async with open_room(tmp_path / "host") as room:
        assert templates(room) == before
        assert len(os.listdir(room.layout.blanks)) <= MOST_BLANKS
        assert not room.leftovers()
        held = [each for each in room.ledger.all() if isinstance(each, Workspace)]
        assert {each.workspace_id for each in held} == await room.trees.strays()
        made, path = await room.make("killed", client.source(), overlay=overlay == "overlay")
        if room.trees.can_overlay and overlay == "overlay":
            assert statuses_inside(room.layout, made.workspace_id) == []
        else:
            assert run_git(path, "status", "--porcelain") == b""


PREPARING = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.fakes.provisioner_room import open_room
from workspace_provisioner.trees import template_files
from workspace_provisioner.trees.layer_stock import MOST_BLANKS
from workspace_provisioner.sources import ObjectFormat, ProjectKey

async def main() -> None:
    async with open_room(Path(sys.argv[1])) as room:
        publish = template_files.TemplateFiles._publish
        def killed(self, staged, template):
            if sys.argv[3] == "after":
                publish(self, staged, template)
            os.kill(os.getpid(), signal.SIGKILL)
        template_files.TemplateFiles._publish = killed
        key = ProjectKey("ada", "project", ObjectFormat.SHA1)
        await room.trees.prepare(key, sys.argv[2], depth=0)
asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_while_a_template_is_made(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("workspace_provisioner.trees.git_trees.GitTrees.prepare", _not_yet)
        async with open_layered_room(tmp_path / "host") as room:
            await room.upload(client)
            await room.preparations.finished()
            assert templates(room) == {}
    await killed(PREPARING, str(tmp_path / "host"), client.head(), moment)
    async with open_room(tmp_path / "host") as room:
        assert set(templates(room)) == ({client.head()} if moment == "after" else set())
        assert not room.leftovers()
        made, _ = await room.make("k", client.source(), overlay=True)
        assert made.rung is Rung.OVERLAY
        assert statuses_inside(room.layout, made.workspace_id) == []


async def _not_yet(*_: object, **__: object) -> None:
    return


async def killed(program: str, *arguments: str) -> None:
    """Run a program that kills itself."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, complaint = await child.communicate()
    assert child.returncode == -signal.SIGKILL, complaint.decode()
