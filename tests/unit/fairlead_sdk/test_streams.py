"""Events of a launch: each exactly once, whatever happens to the connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from fairlead_sdk import streams
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import (
    CursorGone,
    FairleadError,
    LaunchNotFound,
    MeshUnavailable,
    StreamLost,
    Unauthenticated,
    Unavailable,
)
from fairlead_sdk.events import LaunchEvent, LaunchSnapshot, LaunchStopped
from fairlead_sdk.launches import AsyncLaunches, LaunchRequest
from fairlead_sdk.records import Failure, OutputRecord
from fairlead_sdk.repository import read_repository
from tests.fakes import launch_documents as documents
from tests.fakes.local_repository import LocalRepository
from tests.fakes.scripted_door import Answer, Script, ScriptedTransport, problem

EVENTS = f"/v1/launches/{documents.LAUNCH_ID}/events"


class Pauses:
    """Remembers how long was slept, and never sleeps."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@asynccontextmanager
async def launches_of(script: Script, pauses: Pauses) -> AsyncIterator[AsyncLaunches]:
    transport = ScriptedTransport(script)
    async with FrontDoor(
        url="http://door", api_key="key", transport=transport, sleep=pauses
    ) as door:
        yield AsyncLaunches(door=door)


async def watched(script: Script, pauses: Pauses, cursor: str = "") -> list[LaunchEvent]:
    async with launches_of(script, pauses) as launches:
        events = launches.events(documents.LAUNCH_ID, cursor=cursor)
        return [event async for event in events]


def contents(events: list[LaunchEvent]) -> list[bytes]:
    happenings = (event.happening for event in events)
    return [found.content for found in happenings if isinstance(found, OutputRecord)]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest_asyncio.fixture
async def launches(script: Script, pauses: Pauses) -> AsyncIterator[AsyncLaunches]:
    async with launches_of(script, pauses) as found:
        yield found


@pytest.mark.asyncio
async def test_a_broken_stream_goes_on_after_its_cursor(script: Script, pauses: Pauses) -> None:
    script.on(
        "GET",
        EVENTS,
        Answer(
            lines=[
                documents.snapshot(),
                documents.step("1", "workspace"),
                documents.output("2", 1, b"a"),
            ],
            breaks=True,
        ),
        Answer(lines=[documents.snapshot("2", state="running"), documents.output("3", 2, b"b")]),
        Answer(lines=[documents.snapshot("3", state="exited"), documents.exited("4")]),
    )
    events = await watched(script, pauses)
    assert contents(events) == [b"a", b"b"]
    assert [event.cursor for event in events] == ["0", "1", "2", "3", "4"]
    assert events[-1].is_terminal
    assert [one.query for one in script.asked("GET", EVENTS)] == [
        {},
        {"cursor": "2"},
        {"cursor": "3"},
    ]
    assert pauses.seconds == [0.05, 0.05], "progress makes the pauses short again"


@pytest.mark.asyncio
async def test_output_that_is_sent_twice_is_given_once(script: Script, pauses: Pauses) -> None:
    first = [documents.snapshot(), documents.output("1", 1, b"a"), documents.output("2", 2, b"b")]
    again = [documents.snapshot(), documents.output("2", 2, b"b"), documents.output("3", 3, b"c")]
    script.on(
        "GET",
        EVENTS,
        Answer(lines=first, breaks=True),
        Answer(lines=[*again, documents.exited()]),
    )
    assert contents(await watched(script, pauses)) == [b"a", b"b", b"c"]


@pytest.mark.asyncio
async def test_events_of_a_newer_server_are_passed_over(script: Script, pauses: Pauses) -> None:
    novel = documents.event("1", "teleported", {"where": "there"})
    script.on("GET", EVENTS, Answer(lines=[documents.snapshot(), novel, documents.exited()]))
    events = await watched(script, pauses)
    assert [event.document["type"] for event in events] == ["snapshot", "exited"]


@pytest.mark.asyncio
async def test_a_stream_that_stays_broken_is_given_up(script: Script, pauses: Pauses) -> None:
    script.on("GET", EVENTS, Answer(lines=[documents.snapshot()], breaks=True), Answer(breaks=True))
    with pytest.raises(StreamLost) as caught:
        await watched(script, pauses)
    assert caught.value.reason == "stream_lost"
    assert tuple(pauses.seconds) == streams.PAUSES


@pytest.mark.asyncio
async def test_a_drained_front_door_is_come_back_to(script: Script, pauses: Pauses) -> None:
    script.on(
        "GET",
        EVENTS,
        Answer(lines=[documents.snapshot()]),
        problem(503, "draining"),
        Answer(lines=[documents.snapshot(), documents.exited()]),
    )
    assert len(await watched(script, pauses)) == 2


@pytest.mark.asyncio
async def test_last_words_in_a_stream_are_raised(script: Script, pauses: Pauses) -> None:
    words = {
        "type": "problem",
        "problem": {"status": 410, "reason": "cursor_gone", "detail": "No."},
    }
    script.on("GET", EVENTS, Answer(lines=[documents.snapshot(), words]))
    with pytest.raises(CursorGone, match="No"):
        await watched(script, pauses)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(404, "launch_not_found"), LaunchNotFound),
        (problem(410, "cursor_gone"), CursorGone),
        (problem(401, "unauthenticated"), Unauthenticated),
        (problem(503, "redis_unavailable"), Unavailable),
        (Answer(status=502, lines=[]), Unavailable),
        (Answer(breaks=True), MeshUnavailable),
    ],
)
@pytest.mark.asyncio
async def test_a_refusal_is_raised_as_what_it_is(
    answer: Answer, error: type[FairleadError], script: Script, pauses: Pauses
) -> None:
    script.on("GET", EVENTS, answer)
    with pytest.raises(error):
        await watched(script, pauses)


@pytest.mark.asyncio
async def test_a_launch_that_broke_before_its_first_event_is_asked_for_again(
    script: Script, pauses: Pauses, repository: LocalRepository, launches: AsyncLaunches
) -> None:
    script.on(
        "POST",
        "/v1/launches",
        problem(503, "no_host"),
        Answer(breaks=True),
        Answer(lines=[documents.snapshot()], breaks=True),
    ).on("GET", EVENTS, Answer(lines=[documents.snapshot(), documents.exited()]))
    found = read_repository(repository.path)
    body = await launches.describe(found, LaunchRequest())
    events = [event async for event in launches.start(found, body)]
    asked = script.asked("POST", "/v1/launches")
    assert len({one.headers["idempotency-key"] for one in asked}) == 1
    assert len({one.body for one in asked}) == 1
    assert len(asked) == 3
    assert isinstance(events[0].happening, LaunchSnapshot)
    assert events[-1].is_terminal


@pytest.mark.asyncio
async def test_a_miss_is_answered_once_with_what_is_lacking(
    script: Script, repository: LocalRepository, launches: AsyncLaunches
) -> None:
    old = repository.git("rev-parse", "HEAD~1")
    lines = [documents.snapshot(), documents.miss("1", old, "0" * 40)]
    again = [documents.snapshot("0"), *lines[1:], documents.exited()]
    script.on("POST", "/v1/launches", Answer(lines=lines, breaks=True))
    script.on("GET", EVENTS, Answer(lines=again))
    script.on("POST", "/v1/snapshots", Answer(status=201, document={"snapshot_id": "snp_1"}))
    sent: list[int] = []
    found = read_repository(repository.path)
    body = await launches.describe(found, LaunchRequest())
    async for _ in launches.start(found, body, on_upload=lambda size, written: sent.append(size)):
        await asyncio.sleep(0)
    uploads = script.asked("POST", "/v1/snapshots")
    assert [one.query for one in uploads] == [{"upload": "token"}]
    assert uploads[0].headers["content-type"] == "application/x-fairlead-pack"
    line, _, pack = uploads[0].body.partition(b"\n")
    head = repository.git("rev-parse", "HEAD")
    assert line == f'{{"tips":[{{"ref":"refs/heads/main","commit":"{head}"}}]}}'.encode()
    assert pack.startswith(b"PACK")
    assert sent[-1] == len(pack)


@pytest.mark.asyncio
async def test_a_refused_upload_ends_the_launch_with_that_error(
    script: Script, repository: LocalRepository, launches: AsyncLaunches
) -> None:
    lines = [documents.snapshot(), documents.miss()]
    script.on("POST", "/v1/launches", Answer(lines=lines, held=True))
    script.on("POST", "/v1/snapshots", problem(413, "pack_too_large"))
    found = read_repository(repository.path)
    body = await launches.describe(found, LaunchRequest())
    with pytest.raises(FairleadError) as caught:
        _ = [event async for event in launches.start(found, body)]
    assert caught.value.reason == "pack_too_large"
    assert len(script.asked("POST", "/v1/snapshots")) == 1


@pytest.mark.asyncio
async def test_a_launch_that_failed_before_its_upload_says_why_it_failed(
    script: Script, repository: LocalRepository, launches: AsyncLaunches
) -> None:
    lines = [documents.snapshot(), documents.miss(), documents.failed("2", "host_reserved")]
    script.on("POST", "/v1/launches", Answer(lines=lines))
    script.on("POST", "/v1/snapshots", problem(404, "upload_token_invalid"))
    script.on(
        "GET", f"/v1/launches/{documents.LAUNCH_ID}", Answer(document=documents.launch("failed"))
    )
    found = read_repository(repository.path)
    body = await launches.describe(found, LaunchRequest())
    events = [event async for event in launches.start(found, body)]
    assert events[-1].happening == LaunchStopped(
        Failure("execution", "host_reserved", "It is host_reserved.", "Look.")
    )
