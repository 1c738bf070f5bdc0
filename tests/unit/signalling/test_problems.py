"""Every kind of error as a problem document (RFC 9457)."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chassis.errors import BY_KIND, FairleadError, Kind, Unauthenticated, Unavailable
from chassis.problem import status_of
from signalling.problems import (
    PROBLEM_TYPE,
    BodyTooLarge,
    internal_response,
    problem_documents,
    problem_members,
    problem_response,
)

STATUS = {
    Kind.INVALID_ARGUMENT: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.PERMISSION_DENIED: 403,
    Kind.NOT_FOUND: 404,
    Kind.ALREADY_EXISTS: 409,
    Kind.FAILED_PRECONDITION: 409,
    Kind.OUT_OF_RANGE: 410,
    Kind.RESOURCE_EXHAUSTED: 429,
    Kind.INTERNAL: 500,
    Kind.UNAVAILABLE: 503,
    Kind.DEADLINE_EXCEEDED: 504,
}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_its_status(kind: Kind) -> None:
    error = BY_KIND[kind]("A sentence.", reason="a_reason")
    assert status_of(error) == STATUS[kind]


def test_a_body_that_is_too_large_is_413() -> None:
    assert status_of(BodyTooLarge(10)) == 413


@given(
    st.sampled_from(Kind),
    st.text(),
    st.dictionaries(st.text(), st.text()),
)
def test_any_error_becomes_a_whole_document(
    kind: Kind, message: str, fields: dict[str, str]
) -> None:
    error: FairleadError = BY_KIND[kind](message, reason="a_reason", fields=fields)
    response = problem_response(error)
    assert response.media_type == PROBLEM_TYPE
    found = json.loads(bytes(response.body))
    assert found["status"] == response.status_code
    assert found["detail"] == message
    assert found["reason"] == "a_reason"
    assert found["type"] == "urn:fairlead:problem:a_reason"


def test_fields_never_replace_the_documents_own_members() -> None:
    error = Unavailable("Away.", reason="away", fields={"status": "200", "host_id": "hst"})
    members = problem_members(error)
    assert members["status"] == 503
    assert members["host_id"] == "hst"


def test_headers_say_what_to_do() -> None:
    unavailable = problem_response(Unavailable("Away.", reason="away"))
    assert unavailable.headers["retry-after"] == "1"
    unknown = problem_response(Unauthenticated("Who?", reason="key_missing"))
    assert unknown.headers["www-authenticate"] == "Bearer"


def test_a_fault_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = internal_response(RuntimeError("/home/secret"))
    assert b"secret" not in bytes(response.body)
    assert response.status_code == 500
    assert "/home/secret" in caplog.text


def test_every_documented_status_has_a_problem() -> None:
    documents = problem_documents(404, 413)
    assert {400, 401, 404, 413, 500, 503} <= set(documents)
