"""Workspaces with submodules, and with pointers of LFS: a whole provisioner and real origins."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.origin_host import opened
from tests.fakes.provisioner_room import chunked
from tests.https_git import HttpsGitServer
from workspace_provisioner.origins import with_origins
from workspace_provisioner.sources import Changes, Source
from workspace_provisioner.trees.layer_files import read_note


def add_submodule(
    client: GitClient, https: HttpsGitServer, name: str, url: str, sub: GitClient
) -> str:
    """Record a submodule in a client's next commit, without cloning it; returns the commit."""
    repository = https.root / f"{name}.git"
    if not repository.exists():
        run_git(https.root, "clone", "-q", "--bare", str(sub.path), repository.name)
    client.git("config", "-f", ".gitmodules", f"submodule.{name}.path", f"libs/{name}")
    client.git("config", "-f", ".gitmodules", f"submodule.{name}.url", url)
    client.git("add", ".gitmodules")
    entry = f"160000,{sub.head()},libs/{name}"
    client.git("update-index", "--add", "--cacheinfo", entry)
    client.git("commit", "-q", "-m", f"submodule {name}")
    return client.head()


@pytest.fixture
def nested(tmp_path: Path, https: HttpsGitServer, laptop: GitClient) -> tuple[GitClient, GitClient]:
    """The laptop with a submodule that has one itself; returns both."""
    inner = GitClient(tmp_path / "inner")
    inner.write("deep/file", b"inner\n")
    inner.commit()
    outer = GitClient(tmp_path / "outer")
    outer.write("outer.txt", b"outer\n")
    outer.commit()
    add_submodule(outer, https, "inner", "../inner.git", inner)
    add_submodule(laptop, https, "outer", "../outer.git", outer)
    return outer, inner


def with_submodules(client: GitClient, https: HttpsGitServer) -> Source:
    origin = https.url("project.git")
    return with_origins(client.source(), upstream=None, submodules=True, origin=origin)


@pytest.mark.asyncio
async def test_submodules_are_reported_and_fetched_when_asked(
    tmp_path: Path, https: HttpsGitServer, laptop: GitClient, nested: tuple[GitClient, GitClient]
) -> None:
    outer, inner = nested
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        plain = await host.make("plain", laptop.source())
        assert plain.has_submodules
        assert os_listing(host.tree(plain) / "libs/outer") == []
        assert https.requests == []
        made = await host.make("whole", with_submodules(laptop, https))
        tree = host.tree(made)
        assert (tree / "libs/outer/outer.txt").read_bytes() == b"outer\n"
        assert (tree / "libs/outer/libs/inner/deep/file").read_bytes() == b"inner\n"
        for path, client in (("libs/outer", outer), ("libs/outer/libs/inner", inner)):
            assert run_git(tree / path, "rev-parse", "HEAD").decode().strip() == client.head()
            assert run_git(tree / path, "status", "--porcelain") == b""
            assert not list((tree / path).glob("**/hooks"))
        assert run_git(tree, "status", "--porcelain") == b""
        lines = run_git(tree, "submodule", "status", "--recursive").decode().splitlines()
        assert [line.split()[1] for line in lines] == ["libs/outer", "libs/outer/libs/inner"]
        assert {line[0] for line in lines} == {" "}
        note = read_note(host.core.layout.layers / made.workspace_id)
        assert note is not None
        borrowed = {each.read_text().strip() for each in tree.glob(".git/**/info/alternates")}
        assert {str(each) for each in note.stores} == borrowed
        assert len(borrowed) == 3
        # The next launch of these commits fetches nothing.
        count = len(https.requests)
        await host.make("more", with_submodules(laptop, https))
        assert len(https.requests) == count


def os_listing(path: Path) -> list[str]:
    return [each.name for each in path.iterdir()] if path.exists() else []


@pytest.mark.asyncio
async def test_submodules_in_a_layer_over_a_template(
    tmp_path: Path, https: HttpsGitServer, laptop: GitClient, nested: tuple[GitClient, GitClient]
) -> None:
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        made = await host.make("whole", with_submodules(laptop, https), overlay=True)
        if made.rung not in ("overlay", "overlay_delta"):
            pytest.skip("overlays cannot be mounted here")
        upper = host.tree(made)
        assert (upper / "libs/outer/outer.txt").read_bytes() == b"outer\n"
        assert b"submodule" in (upper / ".git/config").read_bytes()
        other = await host.make("plain", laptop.source(), overlay=True)
        assert not (host.tree(other) / "libs").exists()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("../none.git", "origin_unreachable"),
        ("https://inside.test/x.git", "origin_denied"),
        ("file:///etc", "origin_invalid"),
        ("../../../../x", "origin_invalid"),
        ("../private.git", "origin_unauthorized"),
        ("../outer.git", "origin_commit_missing"),
    ],
)
async def test_a_submodule_that_cannot_be_had_is_fatal(
    tmp_path: Path, https: HttpsGitServer, laptop: GitClient, url: str, cause: str
) -> None:
    sub = GitClient(tmp_path / "sub")
    sub.write("a", b"a")
    sub.commit()
    run_git(https.root, "clone", "-q", "--bare", str(sub.path), "outer.git")
    sub.write("a", b"never pushed")
    sub.commit()
    https.logins["/private.git"] = ("ada", "word")
    add_submodule(laptop, https, "outer", url, sub)
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        with pytest.raises(FairleadError) as raised:
            await host.ask("a", with_submodules(laptop, https))
        assert (raised.value.reason, raised.value.fields["cause"]) == (
            "submodule_unavailable", cause,
        )  # fmt: skip
        assert os_listing(host.core.layout.trees) == []
        assert (await host.make("plain", laptop.source())).has_submodules


@pytest.mark.asyncio
@pytest.mark.parametrize("overlay", [False, True])
async def test_changes_cannot_lead_a_submodule_out_of_the_workspace(
    tmp_path: Path, https: HttpsGitServer, laptop: GitClient, overlay: bool
) -> None:
    sub = GitClient(tmp_path / "sub")
    sub.write("planted", b"x")
    sub.commit()
    add_submodule(laptop, https, "outer", "../outer.git", sub)
    outside = tmp_path / "outside"
    outside.mkdir()
    (laptop.path / "libs").symlink_to(outside)
    source = replace(with_submodules(laptop, https), changes=laptop.dirty())
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        with pytest.raises(FairleadError) as raised:
            await host.ask("a", source, overlay=overlay)
        assert raised.value.fields["cause"] == "path_taken"
        assert os_listing(outside) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("taken", ["file", "gone", "link"])
async def test_a_submodule_takes_no_place_that_changes_have(
    tmp_path: Path, https: HttpsGitServer, laptop: GitClient, *, large: bool, taken: str
) -> None:
    """Also where the changes are in a layer that workspaces share."""
    sub = GitClient(tmp_path / "sub")
    sub.write("code", b"of the submodule")
    sub.commit()
    add_submodule(laptop, https, "outer", "../outer.git", sub)
    if taken == "file":
        laptop.write("libs/outer/code", b"the client's own")
    elif taken == "link":
        (laptop.path / "libs").symlink_to("src")
    laptop.write("content", os.urandom(2 * 1024 * 1024 if large else 2))
    index = {"GIT_INDEX_FILE": str(laptop.path / ".git/changes-index")}
    for words in (["read-tree", "HEAD"], ["rm", "-q", "--cached", "libs/outer"], ["add", "-A"]):
        laptop.git(*words, env=index)
    tree = laptop.git("write-tree", env=index).decode().strip()
    changes = Changes(tree, b"")
    async with opened(tmp_path, https) as host:
        uploaded = replace(laptop.source(), changes=changes)
        pack = laptop.pack([laptop.head(), tree])
        await host.core.importer.receive(uploaded, (), chunked(pack))
        source = replace(with_submodules(laptop, https), changes=changes)
        with pytest.raises(FairleadError) as raised:
            await host.ask("a", source, overlay=True)
        assert raised.value.fields["cause"] == "path_taken"


@pytest.mark.asyncio
async def test_an_unreadable_gitmodules_is_an_error(
    tmp_path: Path, https: HttpsGitServer, laptop: GitClient
) -> None:
    laptop.write(".gitmodules", b"[submodule \x01\n")
    laptop.commit()
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        for number, source in enumerate((laptop.source(), with_submodules(laptop, https))):
            with pytest.raises(FairleadError) as raised:
                await host.ask(f"k{number}", source)
            assert raised.value.reason == "submodules_invalid"


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["directory", "link"])
async def test_a_gitmodules_that_is_no_file_does_not_even_come_in(
    tmp_path: Path, https: HttpsGitServer, laptop: GitClient, kind: str
) -> None:
    if kind == "directory":
        laptop.write(".gitmodules/file", b"x\n")
        laptop.commit()
    else:  # git's porcelain refuses to make one
        oid = laptop.git("hash-object", "-w", "--stdin", given=b"mine").decode().strip()
        entries = laptop.git("ls-tree", "HEAD") + f"120000 blob {oid}\t.gitmodules\n".encode()
        tree = laptop.git("mktree", given=entries).decode().strip()
        made = laptop.git("commit-tree", tree, "-p", "HEAD", "-m", "a link").decode().strip()
        laptop.git("update-ref", "HEAD", made)
    async with opened(tmp_path, https) as host:
        with pytest.raises(FairleadError) as raised:
            await host.upload(laptop)
        assert raised.value.reason == "pack_invalid"


@pytest.mark.asyncio
async def test_lfs_pointers_are_counted(
    tmp_path: Path, https: HttpsGitServer, laptop: GitClient
) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n"
    laptop.write(".gitattributes", b"*.bin filter=lfs diff=lfs merge=lfs -text\n")
    laptop.write("a.bin", pointer)
    laptop.write("sub/b.bin", pointer.replace(b"size 5", b"size 6"))
    laptop.write("c.bin", b"version something else\n")
    laptop.commit()
    async with opened(tmp_path, https) as host:
        await host.upload(laptop)
        assert (await host.make("a", laptop.source())).lfs_pointers == 2
        assert (await host.make("b", laptop.source())).lfs_pointers == 2
