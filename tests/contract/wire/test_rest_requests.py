"""REST requests that are answered, and the table of those that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chassis.errors import Unavailable
from chassis.redis_client import RedisUnavailable
from signalling.batch_rest_api import BatchAnswer
from tests.contract.wire.front_door import LAUNCH, Door, assert_problem, make_door
from tests.fakes.front_door import SANDBOX, UPLOAD_TOKEN
from tests.fakes.sessions import OFFER

pytestmark = pytest.mark.asyncio
ONE_MIB = 1024 * 1024


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return make_door(tmp_path)


async def test_a_launch_is_accepted_and_found_again(door: Door) -> None:
    async with door.client() as client:
        made = await client.post("/v1/launches", json=LAUNCH, headers={"Idempotency-Key": "k"})
        assert made.status_code == 201
        launch = made.json()
        assert made.headers["location"] == f"/v1/launches/{launch['launch_id']}"
        assert launch["state"] == "running"
        assert launch["arguments"] == ["pytest", "-q"]
        again = await client.post("/v1/launches", json=LAUNCH | {"idempotency_key": "k"})
        assert again.json() == launch
        other = await client.post(
            "/v1/launches", json=LAUNCH | {"keep": True}, headers={"Idempotency-Key": "k"}
        )
        assert_problem(other, 409, "idempotency_conflict")
        for path in ("", "/cancel", "/renew"):
            method = client.get if path == "" else client.post
            found = await method(f"/v1/launches/{launch['launch_id']}{path}")
            assert found.status_code == 200
            assert found.json()["launch_id"] == launch["launch_id"]
        listed = (await client.get("/v1/launches", params={"page_size": 1})).json()
        assert [item["launch_id"] for item in listed["launches"]] == [launch["launch_id"]]
        assert listed["next_page_token"] == ""
        trace = (await client.get(f"/v1/launches/{launch['launch_id']}/trace")).json()
        assert [span["name"] for span in trace["spans"]] == ["launch.run"]


async def test_what_is_another_tenants_is_not_found(door: Door) -> None:
    async with door.client() as client, door.client(door.other_key) as stranger:
        launch_id = (await client.post("/v1/launches", json=LAUNCH)).json()["launch_id"]
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
            refused = await stranger.request(method, f"/v1/launches/{launch_id}{path}")
            assert_problem(refused, 404, "launch_not_found")
        assert (await stranger.get("/v1/launches")).json()["launches"] == []


async def test_an_execution_takes_stdin_and_signals(door: Door) -> None:
    async with door.client() as client:
        body = {"arguments": ["cat"], "stdin": True, "timeout": 1.5, "environment": {"A": "b"}}
        made = await client.post(f"/v1/sandboxes/{SANDBOX}/executions", json=body)
        assert made.status_code == 201
        path = made.headers["location"]
        assert (await client.get(path)).json() == made.json()
        taken = await client.post(
            f"{path}/stdin", json={"offset": 0, "content": "AP8=", "close": True}
        )
        assert taken.json() == {"offset": 2}
        assert door.executions.stdin == b"\x00\xff"
        assert (await client.post(f"{path}/signal", json={"signal": 15})).status_code == 200


async def test_a_batch_gives_one_outcome_for_each(door: Door) -> None:
    async with door.client() as client:
        body = {
            "items": [
                {"command": {"arguments": ["true"], "on_full": "block", "grace": 0}},
                {"file": {"read": {"path": "a%FF"}}},
                {"file": {"remove": {"path": "b"}}},
            ]
        }
        answer = await client.post(f"/v1/sandboxes/{SANDBOX}/batch", json=body)
        assert answer.status_code == 200
        BatchAnswer.model_validate_json(answer.text)
        ran, read, removed = answer.json()["outcomes"]
        assert (ran["state"], ran["stdout"], ran["failure"]) == ("succeeded", "AA==", None)
        assert ran["execution"]["exit"]["peak_memory_bytes"] == 0
        assert read["file"] == {"stat": None, "content": "Yf8="}
        assert removed["failure"]["reason"] == "file_not_found"
        rows: list[dict[str, object]] = [
            {},
            {"command": {"arguments": ["true"]}, "file": {"read": {"path": "a"}}},
            {"file": {}},
            {"file": {"read": {"path": "a"}, "remove": {"path": "a"}}},
        ]
        for item in rows:
            refused = await client.post(f"/v1/sandboxes/{SANDBOX}/batch", json={"items": [item]})
            assert_problem(refused, 400, "batch_invalid")


async def test_sessions_hosts_and_gateways(door: Door) -> None:
    async with door.client() as client:
        made = await client.post("/v1/sessions", json={"launch_id": "lch_" + "a" * 26})
        assert made.status_code == 201
        path = made.headers["location"]
        assert made.json()["mode"] == "complete"
        answered = await client.post(f"{path}/offer", json={"offer": OFFER})
        assert answered.json()["answer"].startswith("v=0")
        assert answered.json()["session"]["session_id"] == made.json()["session_id"]
        assert (await client.delete(path)).status_code == 200
        hosts = (await client.get("/v1/hosts")).json()["hosts"]
        assert hosts[0]["isolation"] == ["process"]
        assert "address" not in str(hosts)
        gateways = (await client.get("/v1/gateways")).json()["gateways"]
        assert gateways[0]["channels"] == 2


async def test_an_upload_is_streamed_past_the_limit_of_bodies(door: Door) -> None:
    pack = b"PACK\n" + bytes(3 * ONE_MIB)

    async def body() -> AsyncIterator[bytes]:
        yield b'{"tips": [{"ref": "refs/heads/main", '
        yield b'"commit": "' + b"a" * 40 + b'"}]}\nPA'
        yield pack[2:]

    async with door.client() as client:
        made = await client.post(
            "/v1/snapshots",
            params={"upload": UPLOAD_TOKEN},
            content=body(),
            headers={"Content-Type": "application/x-fairlead-pack"},
        )
        assert made.status_code == 201
        assert made.json()["received_bytes"] == len(pack)
        assert door.uploads.received == pack
        assert door.uploads.tips[0].ref == "refs/heads/main"
        for content in (b"no newline", b"[]\nPACK", b'{"tips": [{}]}\n', b"x" * (2 * ONE_MIB)):
            refused = await client.post("/v1/snapshots?upload=token", content=content)
            assert_problem(refused, 400, "upload_invalid")
        assert_problem(
            await client.post("/v1/snapshots?upload=used", content=b'{"tips": []}\n'),
            404,
            "upload_token_invalid",
        )


@pytest.mark.parametrize(
    ("authorization", "reason"),
    [
        (None, "key_missing"),
        ("Bearer ", "key_missing"),
        ("Bearer flk_" + "x" * 43, "key_invalid"),
        ("Basic dXNlcjpwYXNz", "key_invalid"),
    ],
)
async def test_without_a_good_key_nothing_below_v1(
    door: Door, authorization: str | None, reason: str
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with door.client("") as client:
        for path in ("/v1/launches", "/v1/nothing"):
            refused = await client.get(path, headers=headers)
            assert_problem(refused, 401, reason)
            assert refused.headers["www-authenticate"] == "Bearer"
            assert "FAIRLEAD_API_KEY" in refused.json()["remedy"]
        for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
            assert (await client.get(path, headers=headers)).status_code == 200


SOURCE = LAUNCH["source"]
BAD_BODIES = [
    (b'{"source": ', "malformed_json"),
    (b"\xff\xfe", "malformed_json"),
    (b"", "invalid_body"),
    (b"[]", "invalid_body"),
    (b"null", "invalid_body"),
    ({}, "source_required"),
    (LAUNCH | {"unknown": 1}, "invalid_body"),
    (LAUNCH | {"keep": "yes"}, "invalid_body"),
    (LAUNCH | {"keep": 1}, "invalid_body"),
    (LAUNCH | {"source": {"commit": "a" * 40}}, "invalid_body"),
    (LAUNCH | {"command": {"arguments": "true"}}, "invalid_body"),
    (LAUNCH | {"command": {"arguments": [1]}}, "invalid_body"),
    (LAUNCH | {"command": {"arguments": []}}, "command_invalid"),
    (LAUNCH | {"command": {"arguments": ["a\0b"]}}, "command_invalid"),
    (LAUNCH | {"command": {"arguments": ["x"], "directory": "../.."}}, "directory_invalid"),
    (LAUNCH | {"command": {"arguments": ["x"], "timeout": 0}}, "timeout_invalid"),
    (LAUNCH | {"command": {"arguments": ["x"], "environment": {"A B": ""}}}, "environment_invalid"),
    (LAUNCH | {"branch": "a..b"}, "branch_invalid"),
    (LAUNCH | {"branch": "$(reboot)~"}, "branch_invalid"),
    (LAUNCH | {"lease": 0}, "lease_invalid"),
    (LAUNCH | {"lease": 1e308}, "invalid_body"),
    (b'{"source": {"project": "p", "commit": "c"}, "lease": NaN}', "invalid_body"),
    (LAUNCH | {"offer": "hello"}, "sdp_invalid"),
    (LAUNCH | {"source": {"project": "", "commit": "a" * 40}}, "project_invalid"),
    (LAUNCH | {"source": {"project": "p", "commit": "main"}}, "commit_invalid"),
    (
        LAUNCH | {"source": {"project": "p", "commit": "a" * 40, "object_format": "md5"}},
        "object_format_invalid",
    ),
    (
        LAUNCH
        | {
            "source": {
                "project": "p",
                "commit": "a" * 40,
                "changes": {"tree": "b" * 40, "pack": "!"},
            }
        },
        "invalid_body",
    ),
    (b'{"source": {"project": "\\ud800", "commit": "' + b"a" * 40 + b'"}}', "project_invalid"),
]


@pytest.mark.parametrize(("body", "reason"), BAD_BODIES)
async def test_bad_bodies(door: Door, body: bytes | dict[str, object], reason: str) -> None:
    async with door.client() as client:
        if isinstance(body, bytes):
            refused = await client.post(
                "/v1/launches", content=body, headers={"Content-Type": "application/json"}
            )
        else:
            refused = await client.post("/v1/launches", json=body)
        assert_problem(refused, 400, reason)


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/nothing", 404, "route_not_found"),
        ("GET", "/v1/nothing", 404, "route_not_found"),
        ("GET", "/v1/launches/", 404, "route_not_found"),
        ("PUT", "/v1/launches", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/v1/launches/lch_unknown", 404, "launch_not_found"),
        ("GET", "/v1/launches/..%2f..", 404, "route_not_found"),
        ("GET", "/v1/launches?page_size=101", 400, "page_size_invalid"),
        ("GET", "/v1/launches?page_size=many", 400, "invalid_parameter"),
        ("POST", "/v1/launches/lch_unknown/cancel", 404, "launch_not_found"),
        ("GET", "/v1/executions/exe_unknown", 404, "execution_not_found"),
        ("GET", "/v1/executions/exe_unknown/output?cursor=-1", 400, "cursor_invalid"),
        ("GET", "/v1/executions/exe_unknown/output?cursor=x", 400, "cursor_invalid"),
        ("GET", "/v1/sessions/ses_unknown", 404, "session_not_found"),
        ("DELETE", "/v1/sessions/ses_unknown", 404, "session_not_found"),
        ("POST", "/v1/snapshots", 400, "invalid_parameter"),
    ],
)
async def test_bad_requests(door: Door, method: str, path: str, status: int, reason: str) -> None:
    async with door.client() as client:
        assert_problem(await client.request(method, path), status, reason)


async def test_keys_of_header_and_body_may_not_differ(door: Door) -> None:
    async with door.client() as client:
        refused = await client.post(
            "/v1/launches",
            json=LAUNCH | {"idempotency_key": "one"},
            headers={"Idempotency-Key": "two"},
        )
        assert_problem(refused, 400, "idempotency_keys_differ")
        refused = await client.post(
            "/v1/launches", json=LAUNCH, headers={"Idempotency-Key": "x" * 256}
        )
        assert_problem(refused, 400, "idempotency_key_invalid")


async def test_an_announced_large_body_is_refused(door: Door) -> None:
    async with door.client() as client:
        refused = await client.post("/v1/launches", content=bytes(ONE_MIB + 1))
        assert_problem(refused, 413, "body_too_large")
        assert refused.headers["connection"] == "close"
        accepted = await client.post("/v1/launches", content=b" " * 768 * 1024)
        assert_problem(accepted, 400, "invalid_body")


async def test_an_endless_body_is_refused_without_reading_it_all(door: Door) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 4096 * ONE_MIB:
            sent += ONE_MIB
            yield bytes(ONE_MIB)

    async with door.client() as client:
        refused = await client.post("/v1/launches", content=body())
        assert_problem(refused, 413, "body_too_large")
    assert sent < 200 * ONE_MIB


async def test_request_ids_are_echoed_or_made(door: Door) -> None:
    async with door.client() as client:
        for given in ("abc-123", "x" * 200, "a b", "é"):
            answer = await client.get("/healthz", headers={b"X-Request-ID": given.encode()})
            echoed = answer.headers["x-request-id"]
            assert (echoed == given) is (given == "abc-123")
            assert echoed


async def test_readiness_names_what_is_away(door: Door) -> None:
    async with door.client("") as client:
        assert (await client.get("/readyz")).json() == {"status": "ok"}
        door.check.raising = RedisUnavailable()
        refused = await client.get("/readyz")
        assert_problem(refused, 503, "not_ready")
        assert refused.json()["failing"] == "redis"
        assert refused.headers["retry-after"] == "1"
        assert (await client.get("/healthz")).status_code == 200


async def test_what_nobody_expected_is_500_without_internals(door: Door) -> None:
    door.launches.raising = ValueError("secret internals")
    async with door.client() as client:
        refused = await client.get("/v1/launches")
        assert_problem(refused, 500, "internal")
        assert "secret" not in refused.text
        assert len(refused.json()["trace_id"]) == 32


async def test_a_neighbour_that_is_away_is_503(door: Door) -> None:
    door.launches.raising = Unavailable("The sandbox-worker is away.", reason="worker_unavailable")
    async with door.client() as client:
        refused = await client.post("/v1/launches", json=LAUNCH)
        assert_problem(refused, 503, "worker_unavailable")


async def test_spans_link_to_the_callers_trace_and_stay_out_of_it(door: Door) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with door.client() as client:
        await client.get("/healthz")
        answer = await client.get(
            "/v1/launches/lch_x", headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
        )
        await client.get("/v1/nothing")
    first, second = door.spans.get_finished_spans()
    assert first.name == "rest.GET /v1/launches/{launch_id}"
    assert first.context is not None
    assert f"{first.context.trace_id:032x}" != trace_id
    assert first.parent is None
    ids = f"{first.context.trace_id:032x}-{first.context.span_id:016x}"
    assert answer.headers["traceresponse"].startswith(f"00-{ids}-")
    assert [f"{link.context.trace_id:032x}" for link in first.links] == [trace_id]
    assert dict(first.attributes or {})["http.response.status_code"] == 404
    assert second.name == "rest.GET unmatched"
