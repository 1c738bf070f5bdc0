from __future__ import annotations

import json
from pathlib import Path

import pytest

from devstack.ports import PortReservation
from devstack.rooms import Places, Plan, Room, SpanDestination, dialled, plan_rooms

PLACES = Places(
    runtime=Path("/run/x"),
    state=Path("/state"),
    host=Path("/state/host"),
    secret=Path("/state/secret"),
    api_key=Path("/state/api-key"),
)
SPANS = SpanDestination(url="http://127.0.0.1:4", write_token="w")


class CountingPorts(PortReservation):
    """Every port is free."""

    def pick(self, preferred: int) -> int:
        return preferred


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIRLEAD_SIGNALLING_HTTP_BIND", "FAIRLEAD_URL", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def planned(spans: SpanDestination | None = SPANS) -> Plan:
    return plan_rooms(7300)(PLACES, CountingPorts(), "unix:///run/x/redis.sock", spans)


def room(plan: Plan, name: str) -> Room:
    return next(room for room in plan.rooms if room.name == name)


def test_defaults_are_the_documented_ports_and_private_sockets() -> None:
    plan = planned()
    assert (plan.url, plan.dialled_grpc, plan.gateway) == (
        "http://127.0.0.1:7300",
        "127.0.0.1:7301",
        "127.0.0.1:7310",
    )
    internal = room(plan, "signalling").environment["FAIRLEAD_SIGNALLING_INTERNAL_BIND"]
    assert internal.startswith("unix:/run/x/")
    assert room(plan, "relay-gateway").environment["FAIRLEAD_RELAY_SIGNALLING"] == internal
    assert plan.environment["FAIRLEAD_REDIS_URL"] == "unix:///run/x/redis.sock"


def test_the_worker_is_told_where_the_mesh_listens() -> None:
    environment = room(planned(), "sandbox-worker").environment
    found = environment["FAIRLEAD_SANDBOX_MESH_ADDRESSES"].split(",")
    ports = (7300, 7301, 7310, 7311)
    assert {*(f"127.0.0.1:{port}" for port in ports), SPANS.url} <= set(found)


def test_what_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_SIGNALLING_HTTP_BIND", "0.0.0.0:9000")
    monkeypatch.setenv("FAIRLEAD_HOST_ROOT", "/elsewhere")
    plan = planned()
    assert plan.url == "http://127.0.0.1:9000"
    bind = room(plan, "signalling").environment["FAIRLEAD_SIGNALLING_HTTP_BIND"]
    assert bind == "0.0.0.0:9000"
    assert plan.environment["FAIRLEAD_HOST_ROOT"] == "/elsewhere"


def test_spans_go_to_the_store_with_the_token_that_only_writes() -> None:
    plan = planned()
    assert plan.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == SPANS.url
    assert plan.environment["OTEL_EXPORTER_OTLP_HEADERS"] == "authorization=Bearer%20w"
    assert room(plan, "signalling").environment["FAIRLEAD_SIGNALLING_SPAN_STORE"] == SPANS.url


def test_a_collector_of_the_users_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    plan = planned(spans=None)
    assert plan.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in plan.environment
    assert room(plan, "signalling").environment["FAIRLEAD_SIGNALLING_SPAN_STORE"] == ""


def test_rooms_are_not_told_the_users_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_API_KEY", "hush")
    plan = planned()
    everything = json.dumps([dict(plan.environment), *(dict(r.environment) for r in plan.rooms)])
    assert "hush" not in everything


@pytest.mark.parametrize(
    ("bind", "dial"),
    [
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:1", "127.0.0.1:1"),
        (":1", "127.0.0.1:1"),
        ("10.0.0.1:1", "10.0.0.1:1"),
    ],
)
def test_an_address_to_dial(bind: str, dial: str) -> None:
    assert dialled(bind) == dial
