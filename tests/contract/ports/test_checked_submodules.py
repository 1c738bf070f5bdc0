"""A checked release looks into submodules too, and reads their git directories as hostile files."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.ports.test_submodule_workspaces import add_submodule, with_submodules
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.mounted_layers import run_inside
from tests.fakes.origin_host import Host, opened
from tests.https_git import HttpsGitServer
from workspace_provisioner.workspace_errors import WorkspaceDirty, WorkspaceUnpushed
from workspace_provisioner.workspaces import Workspace

pytestmark = pytest.mark.asyncio

OUTER = "libs/outer"
INNER = "libs/outer/libs/inner"


@pytest_asyncio.fixture
async def host(tmp_path: Path, https: HttpsGitServer, laptop: GitClient) -> AsyncIterator[Host]:
    inner = GitClient(tmp_path / "inner")
    inner.write("deep/file", b"inner\n")
    inner.commit()
    outer = GitClient(tmp_path / "outer")
    outer.write("outer.txt", b"outer\n")
    outer.commit()
    add_submodule(outer, https, "inner", "../inner.git", inner)
    add_submodule(laptop, https, "outer", "../outer.git", outer)
    async with opened(tmp_path, https) as opened_host:
        await opened_host.upload(laptop)
        yield opened_host


async def released(host: Host, made: Workspace) -> bool:
    return await host.core.provisioner.release(
        made.tenant, workspace_id=made.workspace_id, checked=True
    )


async def refused(
    host: Host,
    made: Workspace,
    error: type[WorkspaceDirty] | type[WorkspaceUnpushed],
    submodule: str,
) -> None:
    with pytest.raises(error) as caught:
        await released(host, made)
    assert caught.value.fields["submodule"] == submodule
    assert submodule in caught.value.message
    assert host.tree(made).exists()


async def test_what_is_as_it_was_made_goes(
    host: Host, https: HttpsGitServer, laptop: GitClient
) -> None:
    made = await host.make("k", with_submodules(laptop, https))
    assert await released(host, made)
    plain = await host.make("plain", laptop.source())
    assert await released(host, plain)


@pytest.mark.parametrize("path", [OUTER, INNER])
@pytest.mark.parametrize("change", ["changed", "untracked", "staged", "moved"])
async def test_uncommitted_work_in_a_submodule_is_kept(
    host: Host, https: HttpsGitServer, laptop: GitClient, path: str, change: str
) -> None:
    made = await host.make("k", with_submodules(laptop, https))
    sub = host.tree(made) / path
    tracked = next(sub.rglob("*.txt"), sub / "deep/file")
    before = tracked.read_bytes()
    match change:
        case "changed":
            tracked.write_bytes(b"other\n")
        case "untracked":
            (sub / "fresh").write_bytes(b"fresh")
        case "staged":
            tracked.write_bytes(b"in the index alone\n")
            run_git(sub, "add", "-A")
            tracked.write_bytes(before)
        case "moved":
            run_git(sub, "commit", "-q", "--allow-empty", "-m", "another commit than recorded")
    await refused(host, made, WorkspaceDirty, path)
    assert await host.core.provisioner.release("ada", workspace_id=made.workspace_id)


@pytest.mark.parametrize("path", [OUTER, INNER])
async def test_unpushed_work_in_a_submodule_is_kept(
    host: Host, https: HttpsGitServer, laptop: GitClient, path: str
) -> None:
    made = await host.make("k", with_submodules(laptop, https))
    sub = host.tree(made) / path
    head = run_git(sub, "rev-parse", "HEAD").decode().strip()
    (sub / "own").write_bytes(b"own\n")
    run_git(sub, "add", "own")
    run_git(sub, "commit", "-q", "-m", "own")
    run_git(sub, "branch", "work")
    run_git(sub, "checkout", "-q", head)
    await refused(host, made, WorkspaceUnpushed, path)
    # Or it is in the stash.
    run_git(sub, "branch", "-q", "-D", "work")
    (sub / "fresh").write_bytes(b"fresh\n")
    run_git(sub, "stash", "-u")
    await refused(host, made, WorkspaceUnpushed, path)
    run_git(sub, "stash", "drop")
    assert await released(host, made)


async def test_what_went_to_a_remote_of_the_submodule_is_elsewhere(
    host: Host, https: HttpsGitServer, laptop: GitClient, tmp_path: Path
) -> None:
    made = await host.make("k", with_submodules(laptop, https))
    sub = host.tree(made) / INNER
    head = run_git(sub, "rev-parse", "HEAD").decode().strip()
    run_git(sub, "commit", "-q", "--allow-empty", "-m", "own")
    run_git(tmp_path, "init", "-q", "--bare", "fork.git")
    run_git(sub, "remote", "add", "fork", str(tmp_path / "fork.git"))
    run_git(sub, "push", "-q", "fork", "HEAD:refs/heads/work")
    run_git(sub, "fetch", "-q", "fork")
    run_git(sub, "checkout", "-q", head)
    assert await released(host, made)


async def test_a_submodule_that_is_not_checked_out_any_more_is_looked_at(
    host: Host, https: HttpsGitServer, laptop: GitClient
) -> None:
    made = await host.make("k", with_submodules(laptop, https))
    tree = host.tree(made)
    head = run_git(tree / OUTER, "rev-parse", "HEAD").decode().strip()
    run_git(tree / OUTER, "commit", "-q", "--allow-empty", "-m", "own")
    run_git(tree / OUTER, "branch", "work")
    run_git(tree / OUTER, "checkout", "-q", head)
    run_git(tree, "submodule", "deinit", "-q", "-f", OUTER)
    await refused(host, made, WorkspaceUnpushed, OUTER)
    module = tree / ".git/modules/outer"
    run_git(module, "update-ref", "-d", "refs/heads/work", env={"GIT_DIR": str(module)})
    assert await released(host, made)


async def test_files_in_the_place_of_a_submodule_without_git_are_kept(
    host: Host, laptop: GitClient
) -> None:
    made = await host.make("k", laptop.source())
    place = host.tree(made) / OUTER
    place.mkdir(parents=True, exist_ok=True)
    (place / "only-here").write_bytes(b"x")
    await refused(host, made, WorkspaceDirty, OUTER)
    (place / "only-here").unlink()
    place.rmdir()
    place.write_bytes(b"a file of that name")
    await refused(host, made, WorkspaceDirty, OUTER)
    place.unlink()
    assert await released(host, made)


async def test_a_submodule_that_was_cloned_inside_is_looked_at(
    host: Host, laptop: GitClient, tmp_path: Path
) -> None:
    made = await host.make("k", laptop.source())
    place = host.tree(made) / OUTER
    shutil.rmtree(place, ignore_errors=True)
    run_git(tmp_path, "clone", "-q", str(tmp_path / "outer"), str(place))
    recorded = run_git(host.tree(made), "ls-tree", "HEAD", OUTER).split()[2].decode()
    run_git(place, "checkout", "-q", recorded)
    run_git(place, "submodule", "deinit", "-q", "--all")
    (place / "own").write_bytes(b"own\n")
    await refused(host, made, WorkspaceDirty, OUTER)
    (place / "own").unlink()
    run_git(place, "branch", "-q", "work", recorded)
    assert await released(host, made)


async def test_submodules_in_a_layer_are_looked_at(
    host: Host, https: HttpsGitServer, laptop: GitClient
) -> None:
    layout = host.core.layout
    made = await host.make("k", with_submodules(laptop, https), overlay=True)
    if not (layout.layers / made.workspace_id).exists():
        pytest.skip("overlays cannot be mounted here")
    run_inside(layout, made.workspace_id, f"echo own > {INNER}/own")
    await refused(host, made, WorkspaceDirty, INNER)
    run_inside(
        layout,
        made.workspace_id,
        f"rm {INNER}/own; cd {OUTER}; git branch work; git commit -q --allow-empty -m own\n"
        "git branch kept; git checkout -q work",
    )
    await refused(host, made, WorkspaceUnpushed, OUTER)
    run_inside(layout, made.workspace_id, f"cd {OUTER}; git branch -q -D kept")
    assert await released(host, made)


async def test_a_hostile_submodule_shows_and_runs_nothing(
    host: Host, https: HttpsGitServer, laptop: GitClient, tmp_path: Path
) -> None:
    made = await host.make("k", with_submodules(laptop, https))
    tree = host.tree(made)
    module = tree / ".git/modules/outer"
    touched = tmp_path / "touched"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {touched}\n")
    program.chmod(0o755)
    config = (module / "config").read_text()
    (module / "config").write_text(
        f"{config}[core]\n\tfsmonitor = {program}\n\thooksPath = {tmp_path}\n"
        f'[filter "x"]\n\tclean = {program}\n'
    )
    (tree / OUTER / ".gitattributes").write_bytes(b"* filter=x\n")
    await refused(host, made, WorkspaceDirty, OUTER)
    (tree / OUTER / ".gitattributes").unlink()
    link = (tree / OUTER / ".git").read_bytes()
    elsewhere = tmp_path / "outer/.git"
    for said in (f"gitdir: {elsewhere}\n", "gitdir: ../../../../outer/.git\n", "gitdir:", "x"):
        (tree / OUTER / ".git").write_text(said)
        await refused(host, made, WorkspaceUnpushed, OUTER)
    (tree / OUTER / ".git").unlink()
    os.symlink(elsewhere, tree / OUTER / ".git")
    await refused(host, made, WorkspaceUnpushed, OUTER)
    (tree / OUTER / ".git").unlink()
    (tree / OUTER / ".git").write_bytes(link)
    head = (module / "HEAD").read_bytes()
    for broken in (b"ref: refs/heads/../../x\n", b"", b"0" * 39):
        (module / "HEAD").write_bytes(broken)
        await refused(host, made, WorkspaceUnpushed, OUTER)
    (module / "HEAD").write_bytes(head)
    assert await released(host, made)
    assert not touched.exists()
