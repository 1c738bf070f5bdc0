"""The end of an API key ends what was opened with it, whichever process ended it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chassis.rpc_channel import open_channel
from chassis.rpc_server import serve_grpc
from fairlead.session.v1 import session_pb2, session_pb2_grpc
from signalling.api_keys import ApiKeys, KeyEnded
from signalling.auth_grpc_api import KeyCheck
from signalling.caller import reset_caller, set_caller
from signalling.close_reason import CloseReason
from signalling.edge_rest_api import KeyGate
from signalling.open_calls import KeyWatch, OpenCalls
from signalling.session_grpc_api import SESSION_SERVICE, register_sessions
from tests.contract.wire.front_door import Door, make_door
from tests.eventually import SECONDS
from tests.fakes.rate_limits import no_rate_limits
from tests.fakes.session_house import HELD, make_house

pytestmark = pytest.mark.asyncio
HELD_TENANT = "default"


async def nothing(tenant: str, key_id: str) -> None:
    """End no sessions."""


class Talk:
    """One request to an application that goes on until its client leaves."""

    def __init__(self, kind: str, key: str) -> None:
        self.scope: Scope = {
            "type": kind,
            "path": "/v1/x",
            "method": "GET",
            "headers": [(b"authorization", f"Bearer {key}".encode())],
            "query_string": b"",
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self.sent: list[Message] = []
        self.begun = self.scope["entered"] = asyncio.Event()

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.begun.set()


def endless(first: Message | None) -> object:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if first is not None:
            await send(first)
        else:
            scope["entered"].set()
        await asyncio.Event().wait()

    return app


BEGINNINGS: list[tuple[str, Message | None]] = [
    ("http", None),
    (
        "http",
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"application/x-ndjson")],
        },
    ),
    (
        "http",
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"application/octet-stream")],
        },
    ),
    ("websocket", {"type": "websocket.accept", "subprotocol": None}),
]


@pytest.mark.parametrize(("kind", "first"), BEGINNINGS)
async def test_requests_streams_and_sockets_end(
    tmp_path: Path, kind: str, first: Message | None
) -> None:
    keys, calls = ApiKeys(state=tmp_path), OpenCalls()
    text, other = keys.add("one"), keys.add("one")
    inner = cast(ASGIApp, endless(first))
    gate = KeyGate(inner, keys=keys, calls=calls, limits=no_rate_limits())
    watch = KeyWatch(keys=keys, calls=calls, end_sessions=nothing)
    talk, beside = Talk(kind, text), Talk(kind, other)
    running = [
        asyncio.create_task(gate(each.scope, each.receive, each.send)) for each in (talk, beside)
    ]
    for each in (talk, beside):
        await each.begun.wait()
    watch.look()
    assert not any(task.done() for task in running)
    ApiKeys(state=tmp_path).revoke(text)
    watch.look()
    await running[0]
    assert not running[1].done()
    running[1].cancel()
    await asyncio.gather(running[1], return_exceptions=True)
    assert not calls.key_ids
    told = b"".join(str(m.get("text", "")).encode() + bytes(m.get("body", b"")) for m in talk.sent)
    if first is None:
        assert talk.sent[0]["status"] == 401
    if first is None or kind == "websocket" or b"ndjson" in str(first).encode():
        assert b"key_ended" in told
    else:  # Nobody takes the half for the whole.
        assert [each["type"] for each in talk.sent] == ["http.response.start"]
    if kind == "websocket":
        assert talk.sent[-1] == {"type": "websocket.close", "code": 4401}


async def test_a_key_that_comes_to_its_time_ends_what_is_open(tmp_path: Path) -> None:
    keys, calls = ApiKeys(state=tmp_path), OpenCalls()
    caller = keys.caller_of(f"Bearer {keys.add('one')}")
    watch = KeyWatch(keys=keys, calls=calls, end_sessions=nothing)
    async with watch.running():
        with pytest.raises(KeyEnded):
            await expired_while_held(tmp_path, calls, caller.key_id)


async def expired_while_held(state: Path, calls: OpenCalls, key_id: str) -> None:
    with calls.held(key_id):
        ApiKeys(state=state).expire(key_id, datetime.now(UTC))
        await asyncio.Event().wait()


@asynccontextmanager
async def grpc_door(
    door: Door, bind: str
) -> AsyncIterator[session_pb2_grpc.SessionServiceAsyncStub]:
    async with (
        serve_grpc(
            bind=bind,
            register=lambda server: register_sessions(server, door.parts.sessions),
            services=[SESSION_SERVICE],
            tracer_provider=TracerProvider(),
            trusts_callers=False,
            interceptors=[KeyCheck(keys=door.keys, calls=door.calls, limits=no_rate_limits())],
        ),
        open_channel(bind, tracer_provider=TracerProvider()) as channel,
    ):
        yield session_pb2_grpc.SessionServiceStub(channel)


async def test_a_stream_over_grpc_ends(tmp_path: Path, bind: str) -> None:
    house = make_house()
    await house.connect()
    session = await house.broker.open(HELD_TENANT, HELD.launch_id, "complete", None)
    door = make_door(tmp_path, sessions=house.broker)
    watch = KeyWatch(keys=door.keys, calls=door.calls, end_sessions=nothing)
    async with grpc_door(door, bind) as stub:
        call = stub.WatchSession(
            session_pb2.WatchSessionRequest(session_id=session.session_id),
            metadata=[("authorization", f"Bearer {door.key}")],
        )
        await call.read()
        assert len(door.calls.key_ids) == 1
        ApiKeys(state=tmp_path).revoke(door.key)
        watch.look()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_over_grpc_that_has_just_begun_ends(tmp_path: Path, bind: str) -> None:
    """Its key ends while gRPC writes the first response, and the headers with it."""
    keys, calls = ApiKeys(state=tmp_path), OpenCalls()
    text = keys.add("one")
    watch = KeyWatch(keys=keys, calls=calls, end_sessions=nothing)

    async def answer(request: bytes, context: object) -> AsyncIterator[bytes]:
        ApiKeys(state=tmp_path).revoke(text)
        asyncio.get_running_loop().call_soon(watch.look)
        yield b"first"
        await asyncio.Event().wait()

    method = cast(Any, grpc.unary_stream_rpc_method_handler)(answer)
    handler = grpc.method_handlers_generic_handler("test.Begun", {"Answer": method})
    async with (
        serve_grpc(
            bind=bind,
            register=lambda server: server.add_generic_rpc_handlers((handler,)),
            services=[],
            tracer_provider=TracerProvider(),
            interceptors=[KeyCheck(keys=keys, calls=calls, limits=no_rate_limits())],
        ),
        open_channel(bind, tracer_provider=TracerProvider()) as channel,
        asyncio.timeout(SECONDS),
    ):
        call = cast(Any, channel).unary_stream("/test.Begun/Answer")(
            b"", metadata=[("authorization", f"Bearer {text}")]
        )
        assert await call.read() == b"first"
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


WRITER = """
import sys
from pathlib import Path
from signalling.api_keys import ApiKeys
keys = ApiKeys(state=Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    keys.revoke(keys.add("one"))
    print("written", flush=True)
"""


async def writer(state: Path, count: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(state), str(count), stdout=asyncio.subprocess.PIPE
    )


async def test_two_processes_that_change_keys_lose_none(tmp_path: Path) -> None:
    for each in [await writer(tmp_path, 20) for _ in range(2)]:
        await each.communicate()
        assert each.returncode == 0
    found = [record for record, _ in ApiKeys(state=tmp_path).list()]
    assert len(found) == 40
    assert all(record.expires_at for record in found)


async def test_a_writer_that_is_killed_leaves_a_readable_file(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    text = keys.add("one")
    for _ in range(3):
        process = await writer(tmp_path, 10**6)
        assert process.stdout is not None
        await process.stdout.readline()
        process.kill()
        await process.wait()
        assert keys.caller_of(f"Bearer {text}").tenant == "one"
        assert keys.caller_of(f"Bearer {keys.add('two')}").tenant == "two"


async def test_sessions_of_the_key_are_closed_and_no_others(tmp_path: Path) -> None:
    house, keys = make_house(), ApiKeys(state=tmp_path)
    await house.connect()
    opened = []
    for text in (keys.add(HELD_TENANT), keys.add(HELD_TENANT)):
        token = set_caller(keys.caller_of(f"Bearer {text}"))
        opened.append(await house.broker.open(HELD_TENANT, HELD.launch_id, "complete", None))
        reset_caller(token)
    watch = KeyWatch(keys=keys, calls=OpenCalls(), end_sessions=house.book.close_of_key)
    watch.look()
    keys.revoke(opened[0].key_id)
    watch.look()
    await watch.end_sessions()
    ended, other = [await house.book.get(each.session_id) for each in opened]
    assert (ended.close_reason, other.close_reason) == (CloseReason.ADMIN_CLOSED, None)
    assert "revoked" in ended.close_detail
