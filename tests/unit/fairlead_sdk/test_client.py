"""Requests to the front door: errors as classes, repeats only where they are safe."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fairlead_sdk import errors
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import FairleadError, MeshUnavailable, error_from_problem
from tests.fakes.scripted_door import Answer, Script, ScriptedTransport, problem


async def no_sleep(seconds: float) -> None:
    assert 0 < seconds < 1


@pytest.fixture
def script() -> Script:
    return Script()


@pytest_asyncio.fixture
async def door(script: Script) -> AsyncIterator[FrontDoor]:
    transport = ScriptedTransport(script)
    async with FrontDoor(
        url="http://door", api_key="secret", transport=transport, sleep=no_sleep
    ) as found:
        yield found


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "invalid_body", errors.InvalidArgument),
        (401, "unauthenticated", errors.Unauthenticated),
        (403, "permission_denied", errors.PermissionDenied),
        (404, "launch_not_found", errors.LaunchNotFound),
        (404, "sandbox_not_found", errors.SandboxNotFound),
        (409, "idempotency_conflict", errors.IdempotencyConflict),
        (409, "launch_not_held", errors.LaunchNotHeld),
        (409, "execution_ended", errors.FailedPrecondition),
        (410, "cursor_gone", errors.CursorGone),
        (413, "body_too_large", errors.ResourceExhausted),
        (429, "quota", errors.QuotaExceeded),
        (500, "internal", errors.Internal),
        (503, "redis_unavailable", errors.Unavailable),
        (504, "deadline_exceeded", errors.DeadlineExceeded),
        (418, "teapot", errors.InvalidArgument),
        (599, "odd", errors.Internal),
    ],
)
def test_a_reason_becomes_a_class(status: int, reason: str, kind: type[FairleadError]) -> None:
    found = error_from_problem(
        status,
        {"reason": reason, "detail": "D.", "remedy": "R.", "trace_id": "t", "field": "x", "n": 1},
    )
    assert type(found) is kind
    assert (found.message, found.reason, found.remedy, found.trace_id) == ("D.", reason, "R.", "t")
    assert found.fields == {"field": "x", "n": "1"}


@pytest.mark.asyncio
async def test_a_mutation_is_repeated_with_the_same_key(script: Script, door: FrontDoor) -> None:
    script.on("POST", "/v1/x", problem(503, "busy"), Answer(breaks=True), Answer(document={"a": 1}))
    assert await door.post("/v1/x", {"b": 2}) == {"a": 1}
    asked = script.asked("POST", "/v1/x")
    assert len(asked) == 3
    assert len({one.headers["idempotency-key"] for one in asked}) == 1
    assert {one.headers["authorization"] for one in asked} == {"Bearer secret"}
    assert {one.body for one in asked} == {b'{"b":2}'}


@pytest.mark.asyncio
async def test_two_mutations_have_two_keys(script: Script, door: FrontDoor) -> None:
    script.on("POST", "/v1/x", Answer(document={}))
    await door.post("/v1/x")
    await door.post("/v1/x")
    assert len({one.headers["idempotency-key"] for one in script.received}) == 2


@pytest.mark.parametrize("status", [400, 404, 409, 500])
@pytest.mark.asyncio
async def test_a_refusal_is_not_repeated(status: int, script: Script, door: FrontDoor) -> None:
    script.on("GET", "/v1/x", problem(status, "no"))
    with pytest.raises(FairleadError):
        await door.get("/v1/x")
    assert len(script.received) == 1


@pytest.mark.asyncio
async def test_a_mesh_that_stays_away_is_given_up(script: Script, door: FrontDoor) -> None:
    script.on("GET", "/v1/x", Answer(breaks=True))
    with pytest.raises(MeshUnavailable) as caught:
        await door.get("/v1/x")
    assert caught.value.reason == "connection_lost"
    assert len(script.received) == 3


@pytest.mark.asyncio
async def test_an_answer_that_is_not_ours_is_named(script: Script, door: FrontDoor) -> None:
    script.on("GET", "/v1/x", Answer(lines=[{"a": 1}, {"b": 2}]))
    with pytest.raises(FairleadError) as caught:
        await door.get("/v1/x")
    assert caught.value.reason == "answer_malformed"
