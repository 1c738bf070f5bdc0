"""A miss is answered in as few bytes as the host needs, and again when an upload fails."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fairlead_sdk import uploads as module
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import FairleadError, MeshUnavailable, RepositoryError
from fairlead_sdk.launches import AsyncLaunches, LaunchRequest
from fairlead_sdk.packs import PackMaking, each_chunk, stream_pack
from fairlead_sdk.repository import Repository, read_repository
from fairlead_sdk.source import known_tips, source_document
from fairlead_sdk.uploads import Histories, MissAnswer, answer_miss, history_of
from tests.fakes import launch_documents as documents
from tests.fakes.local_repository import LocalRepository
from tests.fakes.scripted_door import Answer, Received, Script, ScriptedTransport, problem

URL = "http://door"
DONE = Answer(status=201, document={"snapshot_id": "snp_1"})


class Pauses:
    """Remembers how long was slept, and never sleeps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def script() -> Script:
    return Script().on("POST", "/v1/snapshots", DONE)


@pytest_asyncio.fixture
async def door(script: Script, pauses: Pauses) -> AsyncIterator[FrontDoor]:
    transport = ScriptedTransport(script)
    async with FrontDoor(url=URL, api_key="k", transport=transport, sleep=pauses) as opened:
        yield opened


def head_of(upload: Received) -> dict[str, object]:
    found = json.loads(upload.body.partition(b"\n")[0])
    assert isinstance(found, dict)
    return found


def pack_of(upload: Received) -> bytes:
    return upload.body.partition(b"\n")[2]


@pytest.mark.parametrize(
    "failure",
    [
        Answer(breaks=True),
        problem(503, "workspace_unavailable"),
        problem(400, "pack_invalid"),
        problem(400, "snapshot_incomplete"),
        problem(409, "upload_under_way"),
    ],
)
@pytest.mark.asyncio
async def test_a_failed_upload_is_sent_after_1_and_2_seconds_the_last_time_without_thin_packs(
    failure: Answer,
    script: Script,
    door: FrontDoor,
    pauses: Pauses,
    repository: LocalRepository,
) -> None:
    old = repository.git("rev-parse", "HEAD~1")
    found = read_repository(repository.path)
    script.on("POST", "/v1/snapshots", failure, failure, DONE)
    assert await answer_miss(door, found, token="t", tips=[old]) == {"snapshot_id": "snp_1"}
    first, second, last = script.asked("POST", "/v1/snapshots")
    assert pauses.seconds == [1.0, 2.0]
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body
    assert last.headers["idempotency-key"] != first.headers["idempotency-key"]
    counts = [int.from_bytes(pack_of(one)[8:12], "big") for one in (first, last)]
    reached = repository.git("rev-list", "--objects", "HEAD").splitlines()
    assert counts[0] < counts[1] == len(reached)


@pytest.mark.asyncio
async def test_what_fails_three_times_is_raised(
    script: Script, door: FrontDoor, repository: LocalRepository
) -> None:
    script.on("POST", "/v1/snapshots", Answer(breaks=True))
    with pytest.raises(MeshUnavailable):
        await answer_miss(door, read_repository(repository.path), token="t", tips=[])
    assert len(script.received) == 3


@pytest.mark.asyncio
async def test_an_upload_whose_answer_was_lost_is_not_an_error(
    script: Script, door: FrontDoor, repository: LocalRepository
) -> None:
    gone = problem(404, "upload_token_invalid")
    script.on("POST", "/v1/snapshots", Answer(breaks=True), gone)
    assert await answer_miss(door, read_repository(repository.path), token="t", tips=[]) == {}
    script.on("POST", "/v1/snapshots", gone)
    with pytest.raises(FairleadError) as caught:
        await answer_miss(door, read_repository(repository.path), token="t", tips=[])
    assert caught.value.reason == "upload_token_invalid"


@pytest.mark.asyncio
async def test_missing_objects_are_a_typed_error_and_not_tried_again(
    script: Script, door: FrontDoor, pauses: Pauses, repository: LocalRepository
) -> None:
    found = read_repository(repository.path)
    blob = repository.git("rev-parse", "HEAD:source/main.py")
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(RepositoryError) as caught:
        await answer_miss(door, found, token="t", tips=[])
    assert caught.value.reason == "client_objects_missing"
    assert "git fsck" in caught.value.remedy
    assert pauses.seconds == []


@pytest.mark.asyncio
async def test_a_host_is_told_of_missing_objects_by_an_empty_upload(
    script: Script, door: FrontDoor, pauses: Pauses, repository: LocalRepository
) -> None:
    script.on("POST", "/v1/snapshots", problem(409, "snapshot_incomplete"))
    found = read_repository(repository.path)
    blob = repository.git("rev-parse", "HEAD:source/main.py")
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(RepositoryError) as caught:
        await answer_miss(door, found, token="t", tips=[])
    assert caught.value.reason == "client_objects_missing"
    assert pauses.seconds == []
    (upload,) = script.asked("POST", "/v1/snapshots")
    assert upload.body.partition(b"\n")[2] == b""


def made_large(repository: LocalRepository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setattr(module, "FILES_FIRST_BYTES", 100)
    repository.write("readme.txt", b"changed since\n")
    repository.commit()
    return read_repository(repository.path)


@pytest.mark.asyncio
async def test_the_first_sync_sends_the_files_and_then_the_history(
    script: Script,
    door: FrontDoor,
    repository: LocalRepository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = made_large(repository, monkeypatch)
    answer = MissAnswer(door=door, repository=found, token="t", host_tips=[])
    await answer.first()
    assert answer.has_rest
    assert known_tips(found, url=URL).lacks_history
    await answer.rest()
    files, history = script.asked("POST", "/v1/snapshots")
    assert head_of(files) == {"tips": [], "tips_only": True}
    assert head_of(history) == {"tips": [{"ref": "refs/heads/main", "commit": found.commit}]}
    assert {one.query["upload"] for one in (files, history)} == {"t"}
    listed = repository.git("rev-list", "--objects", "--no-walk", "HEAD").splitlines()
    assert int.from_bytes(pack_of(files)[8:12], "big") == len(listed)
    known = known_tips(found, url=URL)
    assert (known.commits, known.lacks_history) == ((found.commit,), False)


@pytest.mark.asyncio
async def test_a_history_that_did_not_arrive_comes_with_the_next_upload(
    script: Script,
    door: FrontDoor,
    repository: LocalRepository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = made_large(repository, monkeypatch)
    gone = problem(404, "upload_token_invalid")
    script.on("POST", "/v1/snapshots", DONE, gone, DONE)
    await answer_miss(door, found, token="t", tips=[])
    assert known_tips(found, url=URL).lacks_history
    repository.commit()
    newer = read_repository(repository.path)
    await answer_miss(door, newer, token="t", tips=[found.commit])
    files, history = script.asked("POST", "/v1/snapshots")[-2:]
    assert head_of(files) == {"tips": [], "tips_only": True}
    counts = [int.from_bytes(pack_of(one)[8:12], "big") for one in (files, history)]
    reached = repository.git("rev-list", "--objects", "HEAD").splitlines()
    assert sum(counts) - 1 >= len(reached), "nothing is borrowed but the files"
    assert not known_tips(newer, url=URL).lacks_history


@pytest.mark.asyncio
async def test_new_commits_ride_with_the_request_once_the_host_is_known_to_have_their_parent(
    script: Script, door: FrontDoor, repository: LocalRepository
) -> None:
    done = [documents.snapshot(), documents.step("1", "workspace"), documents.exited()]
    script.on("POST", "/v1/launches", Answer(lines=done))
    launches = AsyncLaunches(door=door)

    async def launched() -> dict[str, object]:
        found = read_repository(repository.path)
        body = await launches.describe(found, LaunchRequest())
        async for _ in launches.start(found, body):
            pass
        source = script.asked("POST", "/v1/launches")[-1].document["source"]
        assert isinstance(source, dict)
        return source

    assert "commits" not in await launched()
    assert "commits" not in await launched(), "it is there"
    before = repository.git("rev-parse", "HEAD")
    repository.write("readme.txt", b"newer\n")
    repository.commit()
    commits = (await launched())["commits"]
    assert isinstance(commits, dict)
    assert commits["against"] == [before]
    assert commits["pack"]
    assert "commits" not in await launched()


@pytest.mark.asyncio
async def test_what_a_host_says_that_it_has_replaces_what_was_thought(
    door: FrontDoor, repository: LocalRepository
) -> None:
    found = read_repository(repository.path)
    known_tips(found, url=URL).learn(["f" * 40])
    old = repository.git("rev-parse", "HEAD~1")
    await answer_miss(door, found, token="t", tips=[old])
    assert known_tips(found, url=URL).commits == (found.commit, old)
    assert known_tips(found, url="http://other").commits == ()


def test_what_the_client_could_not_do_is_told_to_the_host(repository: LocalRepository) -> None:
    old = repository.git("rev-parse", "HEAD~1")
    head = repository.git("rev-parse", "HEAD")
    (repository.path / ".git" / "refs" / "heads" / "broken").write_text("")
    blob = repository.git("rev-parse", "HEAD:source/main.py")
    found = read_repository(repository.path)
    assert found.digest == ""
    assert found.commit == head
    known_tips(found, url=URL).learn([old])
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    source = source_document(found, url=URL)
    assert source["noticed"] == ["client_refs_unreadable", "client_objects_missing"]


@pytest.mark.asyncio
async def test_a_history_that_is_cut_ends_cleanly_and_the_next_launch_brings_it(
    script: Script,
    door: FrontDoor,
    repository: LocalRepository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    found = made_large(repository, monkeypatch)
    miss = [documents.snapshot(), documents.miss(), documents.step("2", "workspace")]
    script.on("POST", "/v1/launches", Answer(lines=[*miss, documents.exited("3")]))
    script.on("POST", "/v1/snapshots", DONE, Answer(held=True))
    launches = AsyncLaunches(door=door)
    async for _ in launches.start(found, await launches.describe(found, LaunchRequest())):
        pass
    assert await launches.histories.settle(wait=False)
    assert not launches.histories.is_busy
    assert [task for task in asyncio.all_tasks() if "rest" in repr(task)] == []
    assert known_tips(found, url=URL).lacks_history

    script.received.clear()
    done = [documents.snapshot(), documents.step("2", "workspace"), documents.exited("3")]
    script.on("POST", "/v1/launches", Answer(lines=done)).on("POST", "/v1/snapshots", DONE)
    later = AsyncLaunches(door=door)
    again = read_repository(repository.path)
    async for _ in later.start(again, await later.describe(again, LaunchRequest())):
        pass
    assert not await later.histories.settle(wait=True)
    (history,) = script.asked("POST", "/v1/snapshots")
    assert history.query == {"upload": "token"}
    assert head_of(history) == {"tips": [{"ref": "refs/heads/main", "commit": found.commit}]}
    assert not known_tips(again, url=URL).lacks_history


@pytest.mark.asyncio
async def test_a_token_that_is_not_good_any_more_is_forgotten(
    script: Script, door: FrontDoor, repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made_large(repository, monkeypatch)
    known_tips(found, url=URL).learn_files(found.commit, token="old")
    script.on("POST", "/v1/snapshots", problem(404, "upload_token_invalid"))
    answer = history_of(door, found)
    assert answer is not None
    await answer.rest()
    assert answer.failure is not None
    assert history_of(door, found) is None
    assert known_tips(found, url=URL).lacks_history


@pytest.mark.asyncio
async def test_a_history_that_cannot_be_packed_is_told_and_not_tried_at_every_launch(
    door: FrontDoor, repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made_large(repository, monkeypatch)
    blob = repository.git("rev-parse", "HEAD~1:readme.txt")
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    answer = MissAnswer(door=door, repository=found, token="t", host_tips=[])
    await answer.first()
    histories = Histories()
    histories.begin(answer)
    assert not await histories.settle(wait=True)
    assert [error.reason for error in histories.take_failures()] == ["client_objects_missing"]
    assert histories.take_failures() == []
    assert history_of(door, found) is None


@pytest.mark.asyncio
async def test_leaving_an_upload_ends_git_at_once(repository: LocalRepository) -> None:
    repository.write("large", os.urandom(3_000_000))
    repository.commit()
    making = PackMaking()
    pack = stream_pack(read_repository(repository.path), making=making)
    chunks = each_chunk(pack, making)
    assert (await anext(chunks)).startswith(b"PACK")
    reading = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await chunks.aclose()
    assert list(pack) == []


class Listed(list[os.DirEntry[str]]):
    """A listing that is used as `os.scandir` gives it."""

    def __enter__(self) -> Listed:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def test_objects_that_git_takes_away_beside_the_count_are_not_counted(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = repository.path / ".git" / "objects"
    before = list(objects.glob("??/*"))
    assert before
    scan = os.scandir

    def packed_meanwhile(directory: str) -> Listed:
        with scan(directory) as entries:
            listed = list(entries)
        if listed and before[0].exists():
            repository.git("gc", "-q", "--prune=now")
        return Listed(listed)

    monkeypatch.setattr("os.scandir", packed_meanwhile)
    assert not module.is_large(str(objects))
    assert not before[0].exists()
