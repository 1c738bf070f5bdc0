"""Small parts of the way out of sandboxes: ports of the mesh, own addresses, settings, counting."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from pydantic import ValidationError

from chassis.mesh_ports import MESH_PORTS, ports_of
from chassis.own_addresses import is_own
from sandbox_worker.isolation.proxy_variables import proxy_variables
from sandbox_worker.network.decision import Reason
from sandbox_worker.settings import Settings
from sandbox_worker.tracing import EgressCounter


@pytest.mark.parametrize(
    ("addresses", "ports"),
    [
        ((), set()),
        (("127.0.0.1:7999", "[::]:8001"), {7999, 8001}),
        (("unix:/run/door", ""), set()),
        (("redis://redis/0",), {6379}),
        (("rediss://user:word@redis:6380/0", "unix:///run/redis"), {6380}),
    ],
)
def test_the_ports_of_the_mesh(addresses: tuple[str, ...], ports: set[int]) -> None:
    assert {7300, 7301, 7302, 7310, 7311, 7312, 7320, 7330, 4318, 16686} == MESH_PORTS
    assert ports_of(*addresses) == MESH_PORTS | ports


def test_an_address_is_own_when_this_machine_has_it() -> None:
    own = socket.gethostbyname(socket.gethostname())
    assert is_own(ip_address(own))
    assert is_own(ip_address("127.3.2.1"))
    for foreign in ("1.1.1.1", "192.0.2.77", "2606:4700:4700::1111"):
        assert not is_own(ip_address(foreign))


def test_what_cannot_be_looked_at_counts_as_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> socket.socket:
        raise OSError(24, "too many open files")

    monkeypatch.setattr("socket.socket", refuse)
    assert is_own(ip_address("1.1.1.1"))


def test_the_operator_opens_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_SANDBOX_EGRESS_ALLOW", " 10.1.0.0/16, fd00::/64 ,10.2.3.4")
    assert Settings().egress_allow == (
        ip_network("10.1.0.0/16"),
        ip_network("fd00::/64"),
        ip_network("10.2.3.4/32"),
    )
    monkeypatch.setenv("FAIRLEAD_SANDBOX_EGRESS_ALLOW", "10.1.2.3/16")
    with pytest.raises(ValidationError, match="host bits"):
        Settings()
    monkeypatch.delenv("FAIRLEAD_SANDBOX_EGRESS_ALLOW")
    assert Settings().egress_allow == ()


def test_the_mesh_says_where_else_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_SANDBOX_MESH_ADDRESSES", "127.0.0.1:7500, http://127.0.0.1:4400")
    assert ports_of(*Settings().mesh_addresses.split(",")) == MESH_PORTS | {7500, 4400}
    monkeypatch.setenv("FAIRLEAD_SANDBOX_MESH_ADDRESSES", "127.0.0.1:port")
    with pytest.raises(ValidationError, match="Port"):
        Settings()


def test_decisions_are_counted_by_reason() -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    counter = EgressCounter(meter=meters.get_meter("test"))
    for reason in (Reason.ALLOWED, Reason.ALLOWED, Reason.NOT_LISTED):
        counter.count(reason)
    measured = reader.get_metrics_data()
    assert measured is not None
    (metric,) = measured.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "fairlead.egress.decisions"
    points = [point for point in metric.data.data_points if isinstance(point, NumberDataPoint)]
    assert {str((point.attributes or {})["reason"]): point.value for point in points} == {
        "allowed": 2,
        "not_listed": 1,
    }


def test_programs_hear_of_the_proxy_by_the_names_that_they_look_for() -> None:
    found = proxy_variables(3128)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        assert found[name] == "http://127.0.0.1:3128"
    assert "127.0.0.1" in found["NO_PROXY"].split(",")
    assert found["no_proxy"] == found["NO_PROXY"]
