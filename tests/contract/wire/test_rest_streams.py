"""Streams over REST: NDJSON and SSE transcripts, cursors, keep-alives, disconnects."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
from starlette.types import Message

from chassis.errors import Unavailable
from signalling.execution import OutputGap
from signalling.executions_rest_api import OutputLine
from signalling.rest_bodies import EventAnswer
from tests.contract.wire.front_door import LAUNCH, Door, assert_problem, make_door
from tests.eventually import eventually
from tests.fakes.front_door import SANDBOX

pytestmark = pytest.mark.asyncio

TYPES = [
    "snapshot",
    *["step"] * 3,
    "miss",
    "answer",
    "provisioned",
    *["output"] * 2,
    "failed",
    "cancelled",
    "exited",
]


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return make_door(tmp_path)


async def test_a_launch_streams_its_events_as_ndjson(door: Door) -> None:
    async with door.client() as client:
        answer = await client.post(
            "/v1/launches", json=LAUNCH, headers={"Accept": "application/x-ndjson"}
        )
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["location"].startswith("/v1/launches/lch_")
        events = [json.loads(line) for line in answer.text.splitlines()]
        assert [event["type"] for event in events] == TYPES
        for event in events:
            EventAnswer.model_validate_json(json.dumps(event))
            assert set(event) == {"cursor", "occurred_at", "type", event["type"]}
        output = [base64.b64decode(event["output"]["content"]) for event in events[7:9]]
        assert output == [b"hello\n", b"\x00\xff"]


async def test_events_as_sse_carry_cursor_and_type(door: Door) -> None:
    async with door.client() as client:
        path = (await client.post("/v1/launches", json=LAUNCH)).headers["location"]
        answer = await client.get(f"{path}/events", headers={"Accept": "text/event-stream"})
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = answer.text.removesuffix("\n\n").split("\n\n")
        assert len(blocks) == len(TYPES)
        for block, kind in zip(blocks, TYPES, strict=True):
            cursor, event, content = block.split("\n")
            assert event == f"event: {kind}"
            assert json.loads(content.removeprefix("data: "))["cursor"] == cursor[4:]


async def test_a_cursor_goes_on_where_it_was_left(door: Door) -> None:
    async with door.client() as client:
        path = (await client.post("/v1/launches", json=LAUNCH)).headers["location"] + "/events"
        for answer in (
            await client.get(path, params={"cursor": "9"}),
            await client.get(path, headers={"Last-Event-ID": "9"}),
        ):
            events = [json.loads(line) for line in answer.text.splitlines()]
            assert [event["type"] for event in events] == ["snapshot", "cancelled", "exited"]
        assert_problem(await client.get(path, params={"cursor": "gone"}), 410, "cursor_gone")
        assert_problem(await client.get(path, params={"cursor": "?"}), 400, "cursor_invalid")


async def test_output_streams_the_same_ways(door: Door) -> None:
    async with door.client() as client:
        made = await client.post(
            f"/v1/sandboxes/{SANDBOX}/executions", json={"arguments": ["true"]}
        )
        path = made.headers["location"] + "/output"
        lines = [json.loads(line) for line in (await client.get(path)).text.splitlines()]
        assert [line["type"] for line in lines] == ["snapshot", "output", "output", "exit"]
        assert lines[1]["sequence"] == 1
        assert lines[1]["stream"] == "stdout"
        assert base64.b64decode(lines[2]["content"]) == b"\x00\xff"
        assert lines[3]["exit"]["code"] == 0
        rest = await client.get(path, headers={"Last-Event-ID": "1", "Accept": "text/event-stream"})
        kinds = [line for line in rest.text.splitlines() if line.startswith("event: ")]
        assert kinds == ["event: snapshot", "event: output", "event: exit"]
        assert "id: 2\nevent: output" in rest.text


async def test_a_gap_is_a_line_with_a_cursor_of_its_own(door: Door) -> None:
    door.executions.gap = OutputGap(3, 7, 1000)
    async with door.client() as client:
        made = await client.post(
            f"/v1/sandboxes/{SANDBOX}/executions", json={"arguments": ["true"]}
        )
        path = made.headers["location"] + "/output"
        lines = [json.loads(line) for line in (await client.get(path)).text.splitlines()]
        for line in lines:
            OutputLine.model_validate(line)
        assert [line["type"] for line in lines][-2:] == ["gap", "exit"]
        assert lines[-2]["gap"] == {
            "first_sequence": 3,
            "last_sequence": 7,
            "bytes": 1000,
            "reason": "unknown",
        }
        rest = await client.get(path, headers={"Accept": "text/event-stream"})
        assert "id: 7\nevent: gap" in rest.text
        after = (await client.get(path, params={"cursor": "7"})).text.splitlines()
        assert [json.loads(line)["type"] for line in after] == ["snapshot", "exit"]


async def read_until(door: Door, path: str, accept: str, wanted: bytes) -> bytes:
    """Run one GET by hand, and leave as a client does once `wanted` has come."""
    seen = bytearray()
    left = asyncio.Event()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        seen.extend(message.get("body", b""))
        if wanted in seen:
            left.set()

    first = True

    async def receive_first() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": b"", "more_body": False}
        return await receive()

    headers = [
        (b"authorization", f"Bearer {door.key}".encode()),
        (b"accept", accept.encode()),
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "scheme": "http",
        "server": ("fairlead", 80),
        "client": ("127.0.0.1", 1),
    }
    await asyncio.wait_for(door.app(scope, receive_first, send), 60)
    return bytes(seen)


async def start_endless(door: Door) -> str:
    door.launches.endless = True
    async with door.client() as client:
        made = await client.post("/v1/launches", json=LAUNCH)
        return str(made.headers["location"]) + "/events"


async def test_a_client_that_leaves_ends_the_watch(door: Door) -> None:
    path = await start_endless(door)
    await read_until(door, path, "application/x-ndjson", b'"type":"cancelled"')
    assert door.launches.watching == 0


async def test_quiet_sse_streams_are_kept_alive(tmp_path: Path) -> None:
    door = make_door(tmp_path, keep_alive_seconds=0.05)
    path = await start_endless(door)
    seen = await read_until(door, path, "text/event-stream", b": keep-alive\n\n")
    assert b"event: cancelled" in seen


async def test_a_stop_ends_the_streams(door: Door) -> None:
    path = await start_endless(door)

    async def watching() -> bool:
        return door.launches.watching > 0

    reading = asyncio.create_task(read_until(door, path, "application/x-ndjson", b"never"))
    await eventually(watching)
    door.streams.close()
    assert b'"type":"cancelled"' in await reading
    assert door.launches.watching == 0


async def test_a_failure_in_mid_stream_is_the_last_line(door: Door, tmp_path: Path) -> None:
    async def failing() -> object:
        raise Unavailable("The host went away.", reason="host_lost")

    async with door.client() as client:
        path = (await client.post("/v1/launches", json=LAUNCH)).headers["location"]
        watch = door.launches.watch

        async def half(tenant: str, launch_id: str, cursor: str | None) -> object:
            async for event in watch(tenant, launch_id, cursor):
                yield event
                if event.cursor == "2":
                    await failing()

        object.__setattr__(door.launches, "watch", half)
        answer = await client.get(f"{path}/events")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert answer.status_code == 200
        assert [line["type"] for line in lines] == ["snapshot", "step", "step", "problem"]
        assert lines[-1]["problem"]["reason"] == "host_lost"
