"""What a repository says of programs to run is not heard, also where git could run them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.wall.git_wall import GitWall

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("file", b"content\n")
    found.commit()
    return found


@pytest_asyncio.fixture
async def git(tmp_path: Path) -> AsyncIterator[Git]:
    program = shutil.which("git")
    assert program is not None
    async with GitWall(program=program, directory=tmp_path) as wall:
        yield Git(wall=wall, seconds=20)


def place_of(client: GitClient) -> Place:
    return Place(client.path / ".git", work_tree=client.path)


async def said(git: Git, client: GitClient, *arguments: str) -> str:
    found = await git.run(*arguments, place=place_of(client))
    return found.output.decode().strip()


async def test_a_monitor_that_a_shell_could_run_is_not_run(git: Git, client: GitClient) -> None:
    """It is a line for /bin/sh, which git may execute, unlike anything in the repository."""
    sprung = client.path / "sprung"
    client.git("config", "core.fsmonitor", f"echo >{sprung}; exit 1;")
    client.write("file", b"changed\n")
    done = await git.run("add", "-A", place=place_of(client))
    assert done.succeeded, done.complaint
    assert not sprung.exists()


async def test_the_repositorys_own_settings_do_not_win(git: Git, client: GitClient) -> None:
    client.git("config", "core.hooksPath", str(client.path / "hooks"))
    client.git("config", "core.fsmonitor", "true")
    client.git("config", "core.attributesFile", str(client.path / "attributes"))
    client.git("config", "protocol.allow", "always")
    client.git("config", "protocol.file.allow", "always")
    assert await said(git, client, "rev-parse", "--git-path", "hooks/pre-commit") == (
        "/dev/null/pre-commit"
    )
    assert await said(git, client, "config", "core.fsmonitor") == "false"
    assert await said(git, client, "config", "core.attributesFile") == "/dev/null"
    assert await said(git, client, "config", "protocol.allow") == "never"


async def test_settings_of_system_and_user_are_not_read(
    git: Git, client: GitClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[fairlead]\n\tfound = yes\n")
    for variable in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(variable, str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    origins = await said(git, client, "config", "--list", "--show-scope")
    assert {line.split("\t")[0] for line in origins.splitlines()} <= {"local", "command"}


async def test_objects_are_what_their_names_say(git: Git, client: GitClient) -> None:
    """A replacement ref would show git another object under a name."""
    first = client.head()
    tree = client.git("rev-parse", f"{first}^{{tree}}").decode().strip()
    client.write("file", b"other\n")
    second = client.commit()
    client.git("replace", first, second)
    shown = await said(git, client, "rev-parse", f"{first}^{{tree}}")
    assert shown == tree
