"""Workspaces of an upstream's tip: a whole provisioner and real origins."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.origin_host import opened
from tests.fakes.provisioner_room import chunked
from tests.https_git import NAME, HttpsGitServer
from workspace_provisioner.origins import checked_upstream, with_origins
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import Miss


def push(
    team: GitClient, https: HttpsGitServer, *, branch: str = "main", force: bool = False
) -> str:
    """Let the server have the colleague's HEAD; returns it."""
    spec = f"{'+' if force else ''}HEAD:refs/heads/{branch}"
    team.git("push", "-q", str(https.root / "project.git"), spec)
    return team.head()


def from_trunk(
    client: GitClient, https: HttpsGitServer, *, branch: str = "main", max_age: float | None = None,
    tenant: str = "ada",
) -> Source:  # fmt: skip
    age = None if max_age is None else timedelta(seconds=max_age)
    upstream = checked_upstream(https.url("project.git"), branch, age)
    plain = client.source(tenant=tenant)
    return with_origins(plain, upstream=upstream, submodules=False, origin="")


@pytest.mark.asyncio
@pytest.mark.parametrize("overlay", [False, True])
async def test_an_origin_that_advanced_gives_its_tip(
    tmp_path: Path, https: HttpsGitServer, team: GitClient, laptop: GitClient, overlay: bool
) -> None:
    async with opened(tmp_path, https) as host:
        missed = await host.ask("a", from_trunk(laptop, https))
        assert isinstance(missed, Miss)
        assert missed.reason == "no_base"
        await host.upload(laptop)
        team.write("news", b"today's\n")
        tip = push_after_commit(team, https)
        made = await host.make("a", from_trunk(laptop, https), overlay=overlay)
        assert made.commit == tip
        assert made.freshness is not None
        assert (made.freshness.fallback, made.freshness.branch) == (False, "main")
        if not overlay:
            assert listing(host.tree(made)) == listing(team.path)
            assert run_git(host.tree(made), "rev-parse", "HEAD").decode().strip() == tip
            assert run_git(host.tree(made), "status", "--porcelain") == b""
        # Nothing but the difference travelled, and without the option the commit stays its own.
        assert host.core.importer is not None
        plain = await host.make("b", laptop.source(), overlay=overlay)
        assert (plain.commit, plain.freshness) == (laptop.head(), None)
        # The same key again is the same workspace, though the origin went on.
        team.write("news", b"tomorrow's\n")
        push_after_commit(team, https)
        again = await host.make("a", from_trunk(laptop, https, max_age=0), overlay=overlay)
        assert (again.workspace_id, again.commit) == (made.workspace_id, tip)


def push_after_commit(team: GitClient, https: HttpsGitServer) -> str:
    team.commit("news")
    return push(team, https)


@pytest.mark.asyncio
async def test_a_force_push_and_a_deleted_branch(
    tmp_path: Path, https: HttpsGitServer, team: GitClient, laptop: GitClient
) -> None:
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        assert (await host.make("a", from_trunk(laptop, https))).commit == team.head()
        team.git("reset", "-q", "--hard", "HEAD~10")
        team.write("other", b"history\n")
        team.commit("rewritten")
        rewritten = push(team, https, force=True)
        made = await host.make("b", from_trunk(laptop, https, max_age=0))
        assert made.commit == rewritten
        assert listing(host.tree(made)) == listing(team.path)
        run_git(https.root / "project.git", "symbolic-ref", "HEAD", "refs/heads/none")
        run_git(https.root / "project.git", "update-ref", "-d", "refs/heads/main")
        gone = await host.make("c", from_trunk(laptop, https, max_age=0))
        assert gone.commit == laptop.head()
        assert gone.freshness is not None
        assert (gone.freshness.fallback, gone.freshness.reason) == (True, "origin_branch_missing")
        assert gone.freshness.as_of is not None


@pytest.mark.asyncio
async def test_a_dead_origin_gives_the_snapshot_and_says_so_after_a_restart_too(
    tmp_path: Path, https: HttpsGitServer, team: GitClient, laptop: GitClient
) -> None:
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        before = await host.make("a", from_trunk(laptop, https))
    https.redirects["/project.git"] = f"https://other.test:{https.port}/project.git"
    async with opened(tmp_path, https) as host:
        made = await host.make("b", from_trunk(laptop, https, max_age=0))
        assert made.commit == laptop.head()
        assert made.freshness is not None
        assert made.freshness.reason == "origin_redirected"
        assert before.freshness is not None
        assert made.freshness.as_of == before.freshness.as_of
        again = await host.make("a", from_trunk(laptop, https))
        assert again.freshness == before.freshness


@pytest.mark.asyncio
async def test_a_hanging_origin_costs_its_limit_and_twenty_launches_share_the_fetch(
    tmp_path: Path, https: HttpsGitServer, team: GitClient, laptop: GitClient
) -> None:
    async with opened(tmp_path, https, wait=0.2) as host:
        await host.upload(laptop)
        https.answering.clear()
        wanted = from_trunk(laptop, https)
        made = await asyncio.gather(*(host.make(f"k{n}", wanted) for n in range(20)))
        assert {each.commit for each in made} == {laptop.head()}
        reasons = {each.freshness.reason for each in made if each.freshness}
        assert reasons == {"origin_timeout"}
        assert await asyncio.to_thread(https.waiting.wait, 30)
        assert len(https.requests) == 1
        https.answering.set()
    async with opened(tmp_path, https) as host:
        assert (await host.make("late", wanted)).commit == team.head()


@pytest.mark.asyncio
async def test_a_tenant_uses_its_own_credentials_and_learns_nothing_from_anothers(
    tmp_path: Path, https: HttpsGitServer, team: GitClient, laptop: GitClient
) -> None:
    https.logins["/project.git"] = ("ada", "secret-word")
    folder = tmp_path / "credentials"
    (folder / "ada").mkdir(parents=True)
    line = f"https://ada:secret-word@{NAME}:{https.port}\n"
    (folder / "ada" / "git-credentials").write_text(line)
    async with opened(tmp_path, https, credentials=folder) as host:
        for tenant in ("ada", "eve"):
            source = laptop.source(tenant=tenant)
            pack = laptop.pack([source.commit])
            await host.core.importer.receive(source, (), chunked(pack))
        hers = await host.make("a", from_trunk(laptop, https, tenant="ada"))
        assert hers.commit == team.head()
        theirs = await host.make("a", from_trunk(laptop, https, tenant="eve"))
        assert theirs.commit == laptop.head()
        assert theirs.freshness is not None
        assert theirs.freshness.reason == "origin_unauthorized"
        assert theirs.freshness.as_of is None
    kept = b"".join(path.read_bytes() for path in (tmp_path / "host").rglob("*") if path.is_file())
    assert b"secret-word" not in kept


@pytest.mark.asyncio
async def test_a_private_address_is_denied(
    tmp_path: Path, https: HttpsGitServer, team: GitClient, laptop: GitClient
) -> None:
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        upstream = checked_upstream(https.url("project.git", "inside.test"), "main", None)
        source = replace(laptop.source(), upstream=upstream)
        made = await host.make("a", source)
        assert made.freshness is not None
        assert made.freshness.reason == "origin_denied"
        assert https.requests == []
