"""Tags travel with a launch when they are new since the last one, and cost no git otherwise."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import Callable, Coroutine

import pytest

import fairlead_sdk.known_tags as module
from fairlead_sdk import ssh_upload
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.known_tags import (
    known_tags,
    learn_sent,
    learn_uploaded,
    read_tags,
    unsent_tags,
)
from fairlead_sdk.launches import AsyncLaunches, LaunchRequest
from fairlead_sdk.packs import tips_of
from fairlead_sdk.repository import Repository, Tip, read_repository
from fairlead_sdk.source import known_tips, source_document
from fairlead_sdk.ssh_channel import HostChannel
from fairlead_sdk.workspaces import AsyncWorkspaces, WorkspaceRequest
from tests.fakes import launch_documents as documents
from tests.fakes import workspace_documents
from tests.fakes.local_repository import LocalRepository
from tests.fakes.scripted_door import Answer, Script, ScriptedTransport

URL = "http://door"


def launched(repository: LocalRepository) -> JsonObject:
    """A launch that is served."""
    found = read_repository(repository.path, clean=True)
    source = source_document(found, url=URL)
    known_tips(found, url=URL).learn([found.commit])
    learn_sent(found, source, url=URL)
    return source


def sent(source: JsonObject) -> dict[str, str]:
    tags = source.get("tags", [])
    assert isinstance(tags, list)
    found = {}
    for each in tags:
        assert isinstance(each, dict)
        found[str(each["ref"])] = str(each["commit"])
    return found


def test_a_tag_that_is_new_or_moved_is_sent_once(repository: LocalRepository) -> None:
    repository.git("tag", "first")
    assert sent(launched(repository)) == {"refs/tags/first": repository.git("rev-parse", "HEAD")}
    assert "tags" not in launched(repository)
    repository.git("pack-refs", "--all")
    assert "tags" not in launched(repository)
    repository.git("tag", "-f", "first", "HEAD~1")
    assert sent(launched(repository)) == {"refs/tags/first": repository.git("rev-parse", "HEAD~1")}
    repository.git("tag", "-d", "first")
    assert "tags" not in launched(repository)


def test_an_annotated_tag_and_a_tagged_side_travel_in_the_pack(
    repository: LocalRepository, tmp_path_factory: pytest.TempPathFactory
) -> None:
    launched(repository)
    head = repository.git("rev-parse", "HEAD")
    host = LocalRepository.make(tmp_path_factory.mktemp("host") / "store", "--bare")
    host.git("fetch", "-q", str(repository.path), "refs/heads/main:refs/heads/main")
    repository.git("tag", "-a", "-m", "noted", "v1")
    repository.git("checkout", "-q", "--detach")
    repository.write("aside", b"x")
    side = repository.commit("aside")
    repository.git("tag", "side")
    repository.git("checkout", "-q", "main")
    source = launched(repository)
    noted = repository.git("rev-parse", "v1")
    assert sent(source) == {"refs/tags/v1": noted, "refs/tags/side": side}
    commits = source["commits"]
    assert isinstance(commits, dict)
    assert commits["against"] == [head]
    pack = base64.b64decode(str(commits["pack"]))
    host.git("index-pack", "--stdin", "--fix-thin", stdin=pack)
    host.git("rev-list", "--objects", noted, side)


def test_a_first_launch_brings_the_tags_of_its_history_against_its_commit(
    repository: LocalRepository,
) -> None:
    repository.git("tag", "-a", "-m", "noted", "v1")
    repository.git("checkout", "-q", "--detach")
    repository.write("aside", b"x")
    repository.commit("aside")
    repository.git("tag", "side")
    repository.git("checkout", "-q", "main")
    source = launched(repository)
    assert sent(source) == {"refs/tags/v1": repository.git("rev-parse", "v1")}
    commits = source["commits"]
    assert isinstance(commits, dict)
    assert commits["against"] == [repository.git("rev-parse", "HEAD")]


def test_without_a_tag_that_is_new_no_git_runs(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.git("tag", "loose")
    repository.git("tag", "-a", "-m", "noted", "packed")
    repository.git("pack-refs", "--all")
    repository.git("tag", "again")
    launched(repository)
    launched(repository)
    found = read_repository(repository.path, clean=True)

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("git was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert "tags" not in source_document(found, url=URL)


def asked_of_git(repository: LocalRepository) -> dict[str, str]:
    listed = repository.git("for-each-ref", "--format=%(objectname) %(refname)", "refs/tags")
    return {ref: name for name, _, ref in (line.partition(" ") for line in listed.splitlines())}


def test_they_are_read_as_git_reads_them(repository: LocalRepository) -> None:
    repository.git("tag", "a/deep/one")
    repository.git("tag", "-a", "-m", "noted", "v1", "HEAD~1")
    repository.git("pack-refs", "--all")
    repository.git("tag", "-f", "v1")
    repository.git("tag", "blob", "HEAD:source/main.py")
    repository.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    found = read_repository(repository.path, clean=True)
    assert read_tags(found) == asked_of_git(repository)
    repository.git("symbolic-ref", "refs/tags/alias", "refs/tags/v1")
    assert read_tags(found) == asked_of_git(repository)


def test_what_no_host_takes_is_not_looked_at_again(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(repository)
    repository.git("tag", "blob", "HEAD:source/main.py")
    assert "tags" not in launched(repository)
    monkeypatch.setattr(module, "listed_tags", None)
    assert "tags" not in launched(repository)


def numbered(repository: LocalRepository, count: int) -> Repository:
    head = repository.git("rev-parse", "HEAD")
    lines = "".join(f"create refs/tags/t{number} {head}\n" for number in range(count))
    repository.git("update-ref", "--stdin", stdin=lines.encode())
    return read_repository(repository.path, clean=True)


def test_many_tags_go_in_parts(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SENT", 10)
    launched(repository)
    numbered(repository, 25)
    parts = [sent(launched(repository)) for _ in range(4)]
    assert [len(part) for part in parts] == [10, 10, 5, 0]
    assert {ref for part in parts for ref in part} == set(asked_of_git(repository))
    monkeypatch.setattr(module, "MOST_SENT_BYTES", 30)
    found = read_repository(repository.path, clean=True)
    (tmp := known_tags(found, url="http://other")).learn({})
    assert len(unsent_tags(found, tmp)) == 2


def test_a_tag_with_much_history_of_its_own_waits_and_stops_no_other(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(repository)
    repository.git("checkout", "-q", "--detach")
    repository.write("large", os.urandom(400_000))
    repository.commit("aside")
    repository.git("tag", "aside")
    repository.git("checkout", "-q", "main")
    repository.git("tag", "-a", "-m", "noted", "v1")
    source = launched(repository)
    assert sent(source) == {"refs/tags/v1": repository.git("rev-parse", "v1")}
    assert "commits" in source
    monkeypatch.setattr(module, "listed_tags", None)
    assert "tags" not in launched(repository), "and git is not asked again"
    found = read_repository(repository.path, clean=True)
    assert "refs/tags/aside" in {tip.ref for tip in tips_of(found)}, "an upload brings it"


def test_an_upload_brings_them_all(repository: LocalRepository) -> None:
    found = numbered(repository, 3)
    known_tips(found, url=URL).learn([found.commit])
    learn_uploaded(found, tips_of(found), url=URL)
    assert "tags" not in launched(repository)
    assert Tip("refs/tags/t1", found.commit) in tips_of(found)


def test_broken_tags_stop_no_launch(repository: LocalRepository) -> None:
    launched(repository)
    (repository.path / ".git/refs/tags/broken").write_text("f" * 40 + "\n")
    assert "tags" not in launched(repository)


async def by_launch(found: Repository, *, left_out: bool) -> None:
    step = documents.event(
        "1", "step", {"step": "workspace", "state": "done", "tags_left_out": left_out}
    )
    lines = [documents.snapshot(), step, documents.exited("2")]
    script = Script().on("POST", "/v1/launches", Answer(lines=lines))
    async with FrontDoor(url=URL, api_key="k", transport=ScriptedTransport(script)) as door:
        launches = AsyncLaunches(door=door)
        async for _ in launches.start(found, await launches.describe(found, LaunchRequest())):
            pass


async def by_workspace(found: Repository, *, left_out: bool) -> None:
    made = Answer(status=201, document=workspace_documents.workspace(tags_left_out=left_out))
    script = Script().on("POST", "/v1/workspaces", made)
    async with FrontDoor(url=URL, api_key="k", transport=ScriptedTransport(script)) as door:
        await AsyncWorkspaces(door=door).materialize(found, WorkspaceRequest())


async def over_ssh(found: Repository, *, left_out: bool) -> None:
    class Host(HostChannel):
        async def ask(self, verb: str, payload: bytes = b"", /, **fields: object) -> JsonObject:
            return {"workspace": {"tags_left_out": left_out}}

    channel = Host.__new__(Host)
    await ssh_upload.materialized(
        channel, ssh_upload.WorkspaceRequest(repository=found, url=URL, fields={})
    )


@pytest.mark.parametrize("serve", [by_launch, by_workspace, over_ssh])
def test_a_tag_that_a_host_left_out_is_sent_again(
    repository: LocalRepository, serve: Callable[..., Coroutine[object, object, None]]
) -> None:
    launched(repository)
    repository.git("tag", "late")
    found = read_repository(repository.path, clean=True)
    for left_out in (True, True, False):
        assert set(sent(source_document(found, url=URL))) == {"refs/tags/late"}
        asyncio.run(serve(found, left_out=left_out))
    assert "tags" not in source_document(found, url=URL)
