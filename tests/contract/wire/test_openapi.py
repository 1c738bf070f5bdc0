"""The OpenAPI document: it is exact, and no request that it allows or forbids gets a 500."""

from __future__ import annotations

import asyncio
import re

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from fairlead_limits import table
from signalling.openapi_texts import EXAMPLES as BODIES
from tests.contract.wire.front_door import Door, assert_problem, make_door

EXAMPLES = 5
BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@schemathesis.serializer("application/x-fairlead-pack")
def pack(context: schemathesis.SerializationContext, value: object) -> bytes:
    """Send a generated upload as it is."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Door:
    return make_door(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def document(door: Door) -> dict[str, object]:
    async def fetch() -> dict[str, object]:
        async with door.client() as client:
            found: dict[str, object] = (await client.get("/openapi.json")).json()
            return found

    return asyncio.run(fetch())


def operations(document: dict[str, object]) -> list[tuple[str, str, dict[str, object]]]:
    paths = document["paths"]
    assert isinstance(paths, dict)
    return [
        (method, path, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


def test_it_lists_exactly_what_works(document: dict[str, object]) -> None:
    assert sorted(f"{method.upper()} {path}" for method, path, _ in operations(document)) == [
        "DELETE /v1/sandboxes/{sandbox_id}",
        "DELETE /v1/sandboxes/{sandbox_id}/files/{path}",
        "DELETE /v1/sessions/{session_id}",
        "DELETE /v1/workspaces/{workspace_id}",
        "GET /healthz",
        "GET /readyz",
        "GET /v1/executions/{execution_id}",
        "GET /v1/executions/{execution_id}/output",
        "GET /v1/gateways",
        "GET /v1/hosts",
        "GET /v1/launches",
        "GET /v1/launches/{launch_id}",
        "GET /v1/launches/{launch_id}/events",
        "GET /v1/launches/{launch_id}/trace",
        "GET /v1/sandboxes",
        "GET /v1/sandboxes/{sandbox_id}",
        "GET /v1/sandboxes/{sandbox_id}/executions",
        "GET /v1/sandboxes/{sandbox_id}/files/{path}",
        "GET /v1/sandboxes/{sandbox_id}/network",
        "GET /v1/sessions",
        "GET /v1/sessions/{session_id}",
        "GET /v1/sessions/{session_id}/events",
        "GET /v1/workspaces",
        "GET /v1/workspaces/{workspace_id}",
        "POST /v1/executions/{execution_id}/resize",
        "POST /v1/executions/{execution_id}/signal",
        "POST /v1/executions/{execution_id}/stdin",
        "POST /v1/launches",
        "POST /v1/launches/{launch_id}/cancel",
        "POST /v1/launches/{launch_id}/renew",
        "POST /v1/sandboxes",
        "POST /v1/sandboxes/{sandbox_id}/batch",
        "POST /v1/sandboxes/{sandbox_id}/executions",
        "POST /v1/sandboxes/{sandbox_id}/files:list",
        "POST /v1/sandboxes/{sandbox_id}/files:mkdir",
        "POST /v1/sandboxes/{sandbox_id}/files:move",
        "POST /v1/sandboxes/{sandbox_id}/files:stat",
        "POST /v1/sandboxes/{sandbox_id}/files:watch",
        "POST /v1/sandboxes/{sandbox_id}/renew",
        "POST /v1/sessions",
        "POST /v1/sessions/{session_id}/candidates",
        "POST /v1/sessions/{session_id}/offer",
        "POST /v1/sessions/{session_id}/restart",
        "POST /v1/snapshots",
        "POST /v1/workspaces",
        "POST /v1/workspaces/{workspace_id}/fork",
        "POST /v1/workspaces/{workspace_id}/rename",
        "POST /v1/workspaces/{workspace_id}/renew",
        "PUT /v1/sandboxes/{sandbox_id}/files/{path}",
        "PUT /v1/sandboxes/{sandbox_id}/network",
    ]


def test_every_error_is_a_problem_document(document: dict[str, object]) -> None:
    for method, path, operation in operations(document):
        responses = operation["responses"]
        assert isinstance(responses, dict)
        for status, response in responses.items():
            if int(status) >= 400:
                content = response["content"]
                assert list(content) == ["application/problem+json"], (method, path, status)
                reference = content["application/problem+json"]["schema"]["$ref"]
                assert reference == "#/components/schemas/Problem"
        assert "422" not in responses
        if path.startswith("/v1/"):
            assert {"400", "401", "500", "503"} <= set(responses), (method, path)
            assert operation["security"]
        if method != "get":
            parameters = operation["parameters"]
            assert isinstance(parameters, list)
            assert any(item["name"] == "Idempotency-Key" for item in parameters), (method, path)


def test_every_reference_leads_somewhere(document: dict[str, object]) -> None:
    components = document["components"]
    assert isinstance(components, dict)
    found: set[str] = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                found.add(value["$ref"].removeprefix("#/components/schemas/"))
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(document)
    assert found <= set(components["schemas"])
    assert {"EventAnswer", "OutputLine", "Problem"} <= found


def test_the_docs_page_lists_the_operations_and_loads_nothing(
    door: Door, document: dict[str, object]
) -> None:
    async def fetch() -> httpx2.Response:
        async with door.client() as client:
            return await client.get("/docs")

    answer = asyncio.run(fetch())
    for _, path, _ in operations(document):
        assert f'data-path="{path}"' in answer.text
    assert not re.search(r"(src|href)=[^>]*//|@import|url\(", answer.text)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy


def schemas_of(document: dict[str, object]) -> dict[str, dict[str, object]]:
    components = document["components"]
    assert isinstance(components, dict)
    found: dict[str, dict[str, object]] = components["schemas"]
    return found


def test_everything_is_described(document: dict[str, object]) -> None:
    lacking = [
        f"{name}.{field}"
        for name, schema in schemas_of(document).items()
        for field, described in (schema.get("properties") or {}).items()  # type: ignore[attr-defined]
        if not described.get("description")
    ]
    for method, path, operation in operations(document):
        lacking += [
            f"{method} {path} {item['name']}"
            for item in operation.get("parameters", ())  # type: ignore[attr-defined]
            if not item.get("description")
        ]
        assert operation["description"]
    assert lacking == []
    info = document["info"]
    assert isinstance(info, dict)
    for name in ("/terminal", "/objects", "/watch", "fairlead.key.", "1 MiB"):
        assert name in info["description"]


def test_operations_have_names_for_generators(document: dict[str, object]) -> None:
    found = {
        str(each["operationId"]): (method, path) for method, path, each in operations(document)
    }
    assert found["createLaunch"] == ("post", "/v1/launches")
    assert found["listSandboxes"] == ("get", "/v1/sandboxes")
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]*)*", name) for name in found), found
    assert len(found) == len(operations(document))


def test_every_body_has_an_example_that_is_taken(document: dict[str, object]) -> None:
    schemas = schemas_of(document)
    for method, path, operation in operations(document):
        match operation.get("requestBody"):
            case {"content": {"application/json": {"schema": dict(schema)}}}:
                reference = schema.get("$ref") or schema["anyOf"][0]["$ref"]
                name = str(reference).rpartition("/")[2]
                assert schemas[name].get("examples"), (method, path, name)
    assert set(BODIES) <= set(schemas)
    for name, body in BODIES.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema_rs.validator_for(schema).validate(body)


def test_the_idempotency_key_has_a_format(document: dict[str, object]) -> None:
    for _, _, operation in operations(document):
        for item in operation.get("parameters", ()):  # type: ignore[attr-defined]
            if item["name"] == "Idempotency-Key":
                assert item["schema"]["pattern"] == table.IDEMPOTENCY_KEY.schema["pattern"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v1/launches", "GET, POST"),
        ("DELETE", "/v1/sandboxes/sbx_a/network", "GET, PUT"),
        ("POST", "/v1/sandboxes/sbx_a", "DELETE, GET"),
        ("DELETE", "/healthz", "GET"),
    ],
)
def test_allow_names_all_methods_of_a_path(
    door: Door, method: str, path: str, allowed: str
) -> None:
    async def fetch() -> httpx2.Response:
        async with door.client() as client:
            return await client.request(method, path)

    answer = asyncio.run(fetch())
    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path",
    ["/v1/launches?page=1", "/v1/hosts?x=", "/v1/sandboxes?page_size=1&Page_size=2", "/healthz?a"],
)
def test_parameters_that_no_route_knows_are_refused(door: Door, path: str) -> None:
    async def fetch() -> httpx2.Response:
        async with door.client() as client:
            return await client.get(path)

    assert_problem(asyncio.run(fetch()), 400, "query_unknown")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_gets_a_500_and_answers_conform(
    door: Door, document: dict[str, object], mode: GenerationMode
) -> None:
    rejected = ["400", "401", "403", "404", "409", "413", "415", "429"]
    of_checks = {"negative_data_rejection": {"expected-statuses": rejected}}
    config = schemathesis.Config.from_dict({"checks": of_checks})
    schema = schemathesis.openapi.from_dict(document, config=config)
    schema.app = door.app
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        negative_data_rejection,
        missing_required_header,
        unsupported_method,
        ignored_auth,
    ]
    tried = 0

    def attempt(case: schemathesis.Case) -> None:  # type: ignore[type-arg]
        nonlocal tried
        tried += 1
        case.call_and_validate(headers={"Authorization": f"Bearer {door.key}"}, checks=checks)

    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        takes_nothing = not (operation.definition.raw.get("parameters") or operation.body)
        if mode is GenerationMode.NEGATIVE and takes_nothing:
            continue  # there is nothing to get wrong
        BOUNDED(given(case=operation.as_strategy(generation_mode=mode))(attempt))()
    assert tried > EXAMPLES
