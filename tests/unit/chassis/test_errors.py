"""The kinds are a subset of the gRPC codes, and each has one class."""

from __future__ import annotations

import grpc

from chassis.errors import BY_KIND, FairleadError, Kind, NotFound


def test_each_kind_is_a_grpc_code_and_has_a_class() -> None:
    codes = {code.name for code in grpc.StatusCode}
    for kind in Kind:
        assert kind.name in codes
        assert kind.value == kind.name.lower()
        assert BY_KIND[kind].kind is kind
    assert BY_KIND.keys() == set(Kind)


def test_an_error_is_a_sentence_with_facts() -> None:
    fields = {"a": "b"}
    error = NotFound("It is not there.", reason="thing_not_found", fields=fields)
    fields["a"] = "changed"
    assert isinstance(error, FairleadError)
    assert (str(error), error.reason, error.remedy, error.fields) == (
        "It is not there.",
        "thing_not_found",
        "",
        {"a": "b"},
    )
