"""What one key may make the front door do: sizes, numbers of parts and of faults, and rates."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status
from opentelemetry.sdk.trace import TracerProvider

from chassis.rpc_server import serve_grpc
from signalling.api_keys import ApiKeys
from signalling.auth_grpc_api import KeyCheck
from signalling.edge_rest_api import MOST_PARTS
from signalling.open_calls import OpenCalls
from signalling.rate_limits import RateLimits
from signalling.rest_api import BODY_BYTES
from tests.contract.wire.front_door import LAUNCH, assert_problem, make_door

pytestmark = pytest.mark.asyncio
JSON = {"Content-Type": "application/json"}


def still(*, burst: float) -> RateLimits:
    """So many requests, and no time passes."""
    return RateLimits(per_second=10, burst=burst, monotonic=lambda: 0.0)


async def test_a_route_takes_what_it_needs_and_no_more(tmp_path: Path) -> None:
    door = make_door(tmp_path)
    async with door.client() as client:
        large = b'{"offer": "' + b"x" * BODY_BYTES + b'"}'
        for path in ("/v1/sessions", "/v1/launches/lch_a/renew", "/v1/sandboxes/sbx_a/files:move"):
            refused = await client.post(path, content=large, headers=JSON)
            assert_problem(refused, 413, "body_too_large")
        # A launch has its changes in it: 256 KiB in base64.
        taken = await client.post("/v1/launches", json=LAUNCH | {"offer": "x" * 500 * 1024})
        assert taken.json()["reason"] != "body_too_large"


@pytest.mark.parametrize(
    "document",
    [
        {f"unknown {number}": 1 for number in range(110_000 // 2)},
        {"command": {"arguments": ["a"], "environment": {str(n): "" for n in range(MOST_PARTS)}}},
        {"command": {"arguments": [1] * 2 * MOST_PARTS}},
        {"command": {"arguments": [[]] * 2 * MOST_PARTS}},
    ],
)
async def test_a_body_of_too_many_parts_is_refused(tmp_path: Path, document: object) -> None:
    door = make_door(tmp_path)
    content = json.dumps(document, separators=(",", ":"))[: 700 * 1024]
    async with door.client() as client:
        refused = await client.post("/v1/launches", content=content, headers=JSON)
        assert_problem(refused, 413, "body_too_complex")


async def test_commas_and_colons_in_texts_are_no_parts(tmp_path: Path) -> None:
    door = make_door(tmp_path)
    environment = {"A": ',:\\",:' * MOST_PARTS, "B": "c"}
    command = {"arguments": ["true"], "environment": environment}
    async with door.client() as client:
        made = await client.post("/v1/launches", json=LAUNCH | {"command": command})
        assert made.status_code == 201, made.text
        refused = await client.post(
            "/v1/launches", content=b'{"a": "' + b",:" * MOST_PARTS, headers=JSON
        )
        assert_problem(refused, 400, "malformed_json")


@pytest.mark.parametrize("path", ["/v1/launches", "/v1/sessions"])
async def test_one_unknown_member_of_many_is_named(tmp_path: Path, path: str) -> None:
    door = make_door(tmp_path)
    async with door.client() as client:
        refused = await client.post(path, json={f"unknown {n}": n for n in range(2000)})
        assert_problem(refused, 400, "invalid_body")
        assert refused.json()["field"] == "unknown 0"
        nested = await client.post(path, content=b"[" * 60_000, headers=JSON)
        assert_problem(nested, 400, "malformed_json")


async def test_of_many_faults_only_the_number_is_reported(tmp_path: Path) -> None:
    door = make_door(tmp_path)
    async with door.client() as client:
        for faults in (3, 3000):
            command = {"arguments": [1] * faults}
            refused = await client.post("/v1/launches", json=LAUNCH | {"command": command})
            assert_problem(refused, 400, "invalid_body")
            field, detail = refused.json()["field"], refused.json()["detail"]
            if faults == 3:
                assert field == "command.arguments.0"
            else:
                assert field == "command"
                assert "3000 faults" in detail


async def test_a_body_is_validated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is refused, on routes that FastAPI does not serve."""
    parsed: list[object] = []
    loads = json.loads

    def noted(text: str | bytes) -> object:
        parsed.append(text)
        return loads(text)

    door = make_door(tmp_path)
    async with door.client() as client:
        await client.get("/v1/launches")  # which reads the keys
        monkeypatch.setattr(json, "loads", noted)
        await client.post("/v1/sessions", content=b'{"target": 1}', headers=JSON)
        monkeypatch.undo()
    assert parsed == [b'{"target": 1}']


async def test_a_key_that_asks_too_often_is_told_when_to_come_again(tmp_path: Path) -> None:
    door = make_door(tmp_path, limits=still(burst=3))
    async with door.client() as client, door.client(door.other_key) as other:
        for left in (2, 1, 0):
            answer = await client.get("/v1/launches")
            assert answer.status_code == 200
            assert answer.headers["ratelimit-policy"] == '"key";q=3;w=1'
            assert answer.headers["ratelimit"] == f'"key";r={left};t=1'
        refused = await client.get("/v1/launches")
        assert_problem(refused, 429, "rate_limited")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["ratelimit"].startswith('"key";r=0')
        assert "connection" not in refused.headers
        refused = await client.post("/v1/launches", content=bytes(100_000))
        assert refused.headers["connection"] == "close"
        assert (await other.get("/v1/launches")).status_code == 200
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/openapi.json")).status_code == 200


@pytest.mark.parametrize(
    ("content", "status"),
    [(b'{"a":1}' + b" " * 60_000, 400), (b"[" + b"[]," * 20_000, 413), (bytes(800 * 1024), 413)],
)
async def test_large_bodies_that_are_refused_cost_more(
    tmp_path: Path, content: bytes, status: int
) -> None:
    door = make_door(tmp_path, limits=still(burst=100))
    async with door.client() as client:
        refused = await client.post("/v1/launches", content=content, headers=JSON)
        assert refused.status_code == status
        assert_problem(await client.get("/v1/launches"), 429, "rate_limited")


async def test_grpc_has_the_same_limits_and_no_reflection_without_a_key(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    limits = still(burst=2)
    headers = [("authorization", f"Bearer {keys.add('default')}")]
    async with (
        serve_grpc(
            bind="127.0.0.1:0",
            register=lambda server: None,
            services=[],
            tracer_provider=TracerProvider(),
            interceptors=[KeyCheck(keys=keys, calls=OpenCalls(), limits=limits)],
            grace_seconds=0,
        ) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):

        async def ask(metadata: list[tuple[str, str]]) -> int:
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            call: grpc.aio.StreamStreamMultiCallable[
                reflection_pb2.ServerReflectionRequest, bytes
            ] = channel.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            )
            return len([each async for each in call(iter([question]), metadata=metadata)])

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask([])
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await ask(headers) == 1
        assert await ask(headers) == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(headers)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
    assert status is not None
    info = RetryInfo()
    assert [each.Unpack(info) for each in status.details] == [False, True]
    assert info.retry_delay.ToTimedelta().total_seconds() == 0.1
