"""Workspaces in Python: made of a repository, misses answered, refusals typed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fairlead_sdk import (
    AsyncFairlead,
    BranchInUse,
    Fairlead,
    FairleadError,
    HostLacksObjects,
    InvalidArgument,
    NameInvalid,
    QuotaExceeded,
    RepositoryError,
    StoreLocked,
    WorkspaceDirty,
    WorkspaceExists,
    WorkspaceNotFound,
    WorkspaceReleased,
    WorkspaceUnpushed,
)
from tests.fakes import workspace_documents as documents
from tests.fakes.local_repository import LocalRepository
from tests.fakes.scripted_door import Answer, Script, ScriptedTransport, problem
from tests.fakes.workspace_documents import PATH, TOKEN, WORKSPACE_ID

WORKSPACES = "/v1/workspaces"


@pytest.fixture
def script() -> Script:
    return Script().on("POST", WORKSPACES, Answer(status=201, document=documents.workspace()))


@pytest.fixture
def repository(tmp_path: Path) -> LocalRepository:
    made = LocalRepository.make(tmp_path / "work")
    made.write("file", b"content\n")
    made.commit()
    return made


def client(script: Script) -> AsyncFairlead:
    return AsyncFairlead(url="http://door", api_key="k", transport=ScriptedTransport(script))


@pytest.mark.asyncio
async def test_a_workspace_is_made_of_a_repository(
    script: Script, repository: LocalRepository
) -> None:
    repository.write("new", b"new\n")
    async with client(script) as fairlead:
        made = await fairlead.workspaces.create(
            repository.path, name="fix", branch="try-1", lease=600
        )
    assert (made.workspace_id, made.name, made.rung) == (WORKSPACE_ID, "fix", "overlay")
    assert made.expires_at > made.created_at
    assert made.document == documents.workspace()
    (asked,) = script.asked("POST", WORKSPACES)
    assert asked.headers["idempotency-key"]
    body = asked.document
    source = body.pop("source")
    assert body == {"name": "fix", "branch": "try-1", "claim_branch": True, "lease": 600}
    assert isinstance(source, dict)
    assert source["commit"] == repository.git("rev-parse", "HEAD")
    assert source["changes"]["pack"]


@pytest.mark.asyncio
async def test_without_a_branch_none_is_claimed_and_clean_leaves_changes_at_home(
    script: Script, repository: LocalRepository
) -> None:
    repository.write("new", b"new\n")
    async with client(script) as fairlead:
        await fairlead.workspaces.create(repository.path, clean=True)
    body = script.asked("POST", WORKSPACES)[0].document
    assert list(body) == ["source"]
    assert "changes" not in body["source"]  # type: ignore[operator]


@pytest.mark.asyncio
async def test_from_trunk_asks_for_the_upstreams_tip_without_the_changes_here(
    script: Script, repository: LocalRepository
) -> None:
    repository.git("remote", "add", "origin", "https://user:secret@host/r.git")
    repository.git("update-ref", "refs/remotes/origin/main", "HEAD")
    repository.write("new", b"new\n")
    fresh = {
        "branch": "main",
        "as_of": "2026-01-02T03:04:05Z",
        "fallback": True,
        "reason": "origin_timeout",
    }
    made = Answer(status=201, document=documents.workspace(freshness=fresh))
    script.on("POST", WORKSPACES, made)
    async with client(script) as fairlead:
        workspace = await fairlead.workspaces.create(repository.path, from_="trunk")
    source = script.asked("POST", WORKSPACES)[0].document["source"]
    assert isinstance(source, dict)
    assert source["upstream"] == {"url": "https://host/r.git", "branch": "main"}
    assert "changes" not in source
    assert workspace.freshness is not None
    assert (workspace.freshness.fallback, workspace.freshness.reason) == (True, "origin_timeout")


@pytest.mark.asyncio
async def test_a_miss_is_answered_and_the_upload_gives_the_workspace(
    script: Script, repository: LocalRepository
) -> None:
    script.on("POST", WORKSPACES, documents.miss())
    script.on("POST", "/v1/snapshots", documents.uploaded(documents.workspace()))
    heard: list[int] = []
    async with client(script) as fairlead:
        made = await fairlead.workspaces.create(
            repository.path, on_upload=lambda sent, written: heard.append(sent)
        )
    assert made.workspace_id == WORKSPACE_ID
    (upload,) = script.asked("POST", "/v1/snapshots")
    assert upload.query == {"upload": TOKEN}
    line, _, pack = upload.body.partition(b"\n")
    assert json.loads(line)["tips"][0]["commit"] == repository.git("rev-parse", "HEAD")
    assert pack.startswith(b"PACK")
    assert heard[-1] == len(pack)
    assert len(script.asked("POST", WORKSPACES)) == 1


@pytest.mark.asyncio
async def test_where_the_upload_gives_none_the_same_request_is_repeated(
    script: Script, repository: LocalRepository
) -> None:
    made = Answer(status=201, document=documents.workspace())
    script.on("POST", WORKSPACES, documents.miss("missing_objects"), made)
    script.on("POST", "/v1/snapshots", documents.uploaded(None))
    async with client(script) as fairlead:
        await fairlead.workspaces.create(repository.path)
    first, second = script.asked("POST", WORKSPACES)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body


@pytest.mark.asyncio
async def test_a_host_that_lacks_objects_even_then_is_told_so(
    script: Script, repository: LocalRepository
) -> None:
    script.on("POST", WORKSPACES, documents.miss("unknown_commit", "d" * 40))
    script.on("POST", "/v1/snapshots", documents.uploaded(None))
    async with client(script) as fairlead:
        with pytest.raises(HostLacksObjects) as lacking:
            await fairlead.workspaces.create(repository.path)
    assert lacking.value.reason == "unknown_commit"
    assert (lacking.value.wanted, lacking.value.tips) == (("c" * 40,), ("d" * 40,))
    assert len(script.asked("POST", "/v1/snapshots")) == 1


@pytest.mark.asyncio
async def test_what_is_no_repository_never_reaches_the_door(script: Script, tmp_path: Path) -> None:
    async with client(script) as fairlead:
        with pytest.raises(RepositoryError):
            await fairlead.workspaces.create(tmp_path)
    assert script.received == []


REFUSALS: dict[str, tuple[int, type[FairleadError]]] = {
    "workspace_exists": (409, WorkspaceExists),
    "branch_in_use": (409, BranchInUse),
    "name_invalid": (400, NameInvalid),
    "quota": (429, QuotaExceeded),
    "workspace_released": (409, WorkspaceReleased),
    "workspace_dirty": (409, WorkspaceDirty),
    "workspace_unpushed": (409, WorkspaceUnpushed),
    "workspace_not_found": (404, WorkspaceNotFound),
    "base_locked": (503, StoreLocked),
}


@pytest.mark.asyncio
@pytest.mark.parametrize(("reason", "kind"), REFUSALS.items(), ids=REFUSALS)
async def test_each_refusal_has_its_class(
    script: Script, reason: str, kind: tuple[int, type[FairleadError]]
) -> None:
    status, error = kind
    script.on("DELETE", PATH, problem(status, reason))
    async with client(script) as fairlead:
        with pytest.raises(error) as refused:
            await fairlead.workspaces.delete(WORKSPACE_ID)
    assert refused.value.reason == reason
    assert refused.value.remedy == "Stop."


Call = Callable[[AsyncFairlead], Awaitable[object]]
CALLS: dict[str, tuple[str, str, dict[str, object], Call]] = {
    "fork": (
        "POST",
        f"{PATH}/fork",
        {"name": "copy", "branch": "x", "lease": 60},
        lambda fairlead: fairlead.workspaces.fork(WORKSPACE_ID, name="copy", branch="x", lease=60),
    ),
    "plain fork": (
        "POST",
        f"{PATH}/fork",
        {},
        lambda fairlead: fairlead.workspaces.fork(WORKSPACE_ID),
    ),
    "rename": (
        "POST",
        f"{PATH}/rename",
        {"name": "done"},
        lambda fairlead: fairlead.workspaces.rename(WORKSPACE_ID, "done"),
    ),
    "renew": (
        "POST",
        f"{PATH}/renew",
        {"lease": 60},
        lambda fairlead: fairlead.workspaces.renew(WORKSPACE_ID, lease=60),
    ),
}


@pytest.mark.asyncio
@pytest.mark.parametrize(("method", "path", "body", "call"), CALLS.values(), ids=CALLS)
async def test_a_change_is_one_request_with_a_key(
    script: Script, method: str, path: str, body: dict[str, object], call: Call
) -> None:
    script.on(method, path, Answer(document=documents.workspace()))
    async with client(script) as fairlead:
        changed = await call(fairlead)
    assert getattr(changed, "workspace_id", "") == WORKSPACE_ID
    (asked,) = script.asked(method, path)
    assert asked.document == body
    assert asked.headers["idempotency-key"]


@pytest.mark.asyncio
async def test_delete_says_whether_it_did_and_forces_when_asked(script: Script) -> None:
    script.on("DELETE", PATH, Answer(document={"released": True}), Answer(document={}))
    async with client(script) as fairlead:
        assert await fairlead.workspaces.delete(WORKSPACE_ID)
        assert not await fairlead.workspaces.delete(WORKSPACE_ID, force=True)
    assert [one.query for one in script.asked("DELETE", PATH)] == [{}, {"force": "true"}]


@pytest.mark.asyncio
async def test_a_list_tells_of_hosts_that_did_not_answer(script: Script) -> None:
    pages = [
        {"workspaces": [], "next_page_token": token, "unanswered_hosts": ["hst_a", "hst_b"]}
        for token in ("more", "")
    ]
    script.on("GET", WORKSPACES, *(Answer(document=page) for page in pages))
    told: list[str] = []
    async with client(script) as fairlead:
        assert await fairlead.workspaces.list(on_unanswered=told.append) == ()
    assert told == ["hst_a", "hst_b"]


@pytest.mark.asyncio
async def test_lists_turn_their_pages(script: Script) -> None:
    first = {"workspaces": [documents.workspace()] * 2, "next_page_token": "more"}
    last = {"workspaces": [documents.workspace(name="last")], "next_page_token": ""}
    script.on("GET", WORKSPACES, Answer(document=first), Answer(document=last))
    async with client(script) as fairlead:
        found = await fairlead.workspaces.list(limit=3)
    assert [each.name for each in found] == ["fix", "fix", "last"]
    assert [one.query for one in script.asked("GET", WORKSPACES)] == [
        {"page_size": "3"},
        {"page_size": "1", "page_token": "more"},
    ]


@pytest.mark.asyncio
async def test_get_counts_changes_when_asked(script: Script) -> None:
    script.on("GET", PATH, Answer(document=documents.workspace(changed_files=2)))
    async with client(script) as fairlead:
        assert (await fairlead.workspaces.get(WORKSPACE_ID, count_changes=True)).changed_files == 2
        await fairlead.workspaces.get(WORKSPACE_ID)
    assert [one.query for one in script.asked("GET", PATH)] == [{"count_changes": "true"}, {}]


@pytest.mark.asyncio
async def test_an_id_stays_in_its_place(script: Script) -> None:
    async with client(script) as fairlead:
        with pytest.raises(FairleadError):
            await fairlead.workspaces.get("../launches")
        with pytest.raises(InvalidArgument):
            await fairlead.workspaces.create(".", from_="elsewhere")
    assert script.received[0].path == "/v1/workspaces/../launches"


def test_the_blocking_client_has_the_same_verbs(
    script: Script, repository: LocalRepository
) -> None:
    made = Answer(document=documents.workspace())
    page = Answer(document={"workspaces": [documents.workspace()], "next_page_token": ""})
    script.on("GET", PATH, made).on("GET", WORKSPACES, page)
    script.on("DELETE", PATH, Answer(document={"released": True}))
    for verb in ("fork", "rename", "renew"):
        script.on("POST", f"{PATH}/{verb}", made)
    with Fairlead(url="http://door", api_key="k", transport=ScriptedTransport(script)) as fairlead:
        workspaces = fairlead.workspaces
        made_here = workspaces.create(repository.path, name="fix")
        assert made_here == workspaces.get(WORKSPACE_ID)
        assert workspaces.list() == (made_here,)
        assert workspaces.fork(WORKSPACE_ID, name="copy") == made_here
        assert workspaces.rename(WORKSPACE_ID, "done") == made_here
        assert workspaces.renew(WORKSPACE_ID, lease=60) == made_here
        assert workspaces.delete(WORKSPACE_ID, force=True)
