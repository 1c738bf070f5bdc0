"""Counting the changes of a layered workspace looks at touched paths alone, and finds what a look
at everything finds; so does the check before a release.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from tests.fakes.git_client import GitClient
from tests.fakes.mounted_layers import change_everything, odd_repository, run_inside
from tests.fakes.provisioner_room import ProvisionerRoom, open_layered_room
from workspace_provisioner.git.command import Place
from workspace_provisioner.trees import touched
from workspace_provisioner.trees.touched import TouchedPaths
from workspace_provisioner.trees.unpushed import GitUnpushed, Subject
from workspace_provisioner.workspace_errors import WorkspaceDirty, WorkspaceUnpushed
from workspace_provisioner.workspaces import Workspace

pytestmark = pytest.mark.asyncio

EDITS = """
import os, random, shutil, subprocess, sys

chosen = random.Random(int(sys.argv[1]))
ODD = ["*", ":(top)x", "-n", "a b", "new\\nline", "\\udcff", "[a]", "x.log", "out"]


def places():
    found = [each for each in os.walk(".") if "/.git" not in each[0] and each[0] != "./.git"]
    return [f"{d}/{n}" for d, names, _ in found for n in names if n != ".git"], [
        f"{d}/{n}" for d, _, names in found for n in names]


def write(path, text):
    if not os.path.isdir(path):
        with open(path, "w") as file:
            file.write(text)


def git(*arguments):
    subprocess.run(("git", *arguments), check=False, capture_output=True)


for _ in range(chosen.randrange(1, 9)):
    directories, files = places()
    file, directory = chosen.choice(files), chosen.choice(directories)
    try:
        match chosen.randrange(17):
            case 0 | 1:
                os.remove(file); write(file, "changed")
            case 2:
                os.remove(file)
            case 3:
                os.utime(file, follow_symlinks=False)
            case 4:
                if not os.path.islink(file): os.chmod(file, 0o755)
            case 5:
                shutil.rmtree(directory)
            case 6:
                shutil.rmtree(directory); os.mkdir(directory); write(f"{directory}/again", "x")
            case 7:
                os.remove(file); os.mkdir(file); write(f"{file}/below", "x")
            case 8:
                shutil.rmtree(directory); write(directory, "a file")
            case 9:
                os.remove(file); os.symlink("nowhere", file)
            case 10:
                shutil.move(directory, directory + ".moved")
            case 11:
                write(f"{directory}/{chosen.choice(ODD)}", "new")
            case 12:
                os.makedirs(f"{directory}/a/b", exist_ok=True); write(f"{directory}/a/b/c.log", "x")
                write(f"{directory}/a/b/{chosen.choice(ODD)}", "new")
            case 13:
                write(f"{directory}/.gitignore", chosen.choice(["f*", "!*.log", "a/", "*"]))
            case 14:
                write(f"{directory}/.gitattributes", "* text eol=crlf\\n")
            case 15:
                git("init", "-q", directory)
            case 16:
                git("add", "-A"); git("commit", "-qm", "more")
    except (OSError, shutil.Error):
        continue  # not possible any more
"""


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = odd_repository(tmp_path / "laptop")
    found.write(".gitignore", b"*.log\nout\n")
    found.commit()
    found.write("d1/out/kept", b"tracked in a directory that is ignored\n")
    found.git("add", "-f", "d1/out/kept")
    found.git("commit", "-qm", "kept")
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_layered_room(tmp_path / "host") as opened:
        yield opened


class BothWays:
    """Has the files of each checked release compared by touched paths and by all; notes how often
    there were touched paths to tell.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limited: list[bool] = []
        self._check = GitUnpushed.check_files
        self._find = TouchedPaths.find
        monkeypatch.setattr(GitUnpushed, "check_files", self.check_files)
        monkeypatch.setattr(TouchedPaths, "find", self.find)

    @property
    def find(self) -> object:
        """Stand in for TouchedPaths.find."""

        async def find(
            own: TouchedPaths, workspace: Workspace, place: Place, tree: str
        ) -> Sequence[str] | None:
            found = await self._find(own, workspace, place, tree)
            if touched.MOST_PATHS > 0:
                self.limited.append(found is not None)
            return found

        return find

    @property
    def check_files(self) -> object:
        """Stand in for GitUnpushed.check_files."""

        async def check_files(
            own: GitUnpushed,
            subject: Subject,
            head: str,
            place: Place,
            *,
            reads: bool,
            paths: Sequence[str] | None,
        ) -> None:
            faults = []
            for each in (paths, None):
                try:
                    await self._check(own, subject, head, place, reads=reads, paths=each)
                    faults.append("")
                except FairleadError as error:
                    faults.append(error.reason)
            assert faults[0] == faults[1]
            if faults[0]:
                raise subject.dirty()

        return check_files


async def test_a_file_that_was_never_below_is_missed(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    await room.preparations.finished()
    client.write("fresh/file", b"uncommitted\n")
    dirty, _ = await room.make("k", client.source(changes=client.dirty()), overlay=True)
    # What came with the changes goes, and with it its directory: no layer says so.
    run_inside(room.layout, dirty.workspace_id, "rm -r fresh")
    assert await room.provisioner.count_changes(dirty) == 1
    run_inside(room.layout, dirty.workspace_id, "mkdir fresh; echo uncommitted > fresh/file")
    assert await room.provisioner.count_changes(dirty) == 0
    moved, _ = await room.make("k2", client.source(), overlay=True)
    script = "echo x > more; git add more; git commit -qm more; rm more"
    run_inside(room.layout, moved.workspace_id, script)
    with pytest.raises(WorkspaceDirty):
        await room.provisioner.release(moved.tenant, workspace_id=moved.workspace_id, checked=True)


@pytest.mark.slow
async def test_touched_paths_tell_what_all_paths_tell(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    plain = client.source()
    client.write("d9/f9", b"second\n")
    client.git("commit", "-qam", "second")
    await room.upload(client)
    second = client.source()
    change_everything(client)
    dirty = client.source(changes=client.dirty())
    script = tmp_path / "edits.py"
    script.write_text(EDITS)
    both, released = BothWays(monkeypatch), 0
    for number in range(36):
        source = (plain, second, dirty)[number % 3]
        made, _ = await room.make(f"k{number}", source, overlay=True)
        run_inside(room.layout, made.workspace_id, f"'{sys.executable}' '{script}' {number}")
        counted = await room.provisioner.count_changes(made)
        with monkeypatch.context() as patched:
            patched.setattr(touched, "MOST_PATHS", -1)
            assert counted == await room.provisioner.count_changes(made), number
        assert counted is not None
        try:
            await room.provisioner.release(
                tenant=made.tenant, workspace_id=made.workspace_id, checked=True
            )
            released += 1
        except (WorkspaceDirty, WorkspaceUnpushed):
            pass
    # Neither way was the only one, and some workspaces held nothing of their own.
    assert 0 < sum(both.limited) < len(both.limited)
    assert 0 < released < 36
