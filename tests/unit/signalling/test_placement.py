"""Where launches go, and what registrations make a host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from signalling.host import Host
from signalling.launch_errors import HostsReserved, IsolationUnavailable, NoHost
from signalling.placement import Placer
from signalling.redis_hosts import joined
from signalling.snapshot import Source
from tests.fakes.mesh import HOST, OTHER_HOST, FakeDirectory, FakeHosts
from tests.fakes.virtual_time import run

SOURCE = Source(project="p", commit="c", digest="d")


def place(
    *hosts: Host,
    isolation: str = "",
    held: dict[tuple[str, str], set[str]] | None = None,
    reserved: dict[str, int] | None = None,
    tenant: str = "default",
) -> str:
    directory = FakeDirectory()
    directory.held = held or {}
    placer = Placer(hosts=FakeHosts(*hosts), directory=directory)
    return run(placer.place(tenant, SOURCE, isolation, reserved or {})).host_id


def test_the_less_loaded_host_is_taken() -> None:
    assert place(HOST, OTHER_HOST) == HOST.host_id
    assert place(replace(HOST, sandboxes=1), OTHER_HOST) == OTHER_HOST.host_id
    some, less = (
        replace(HOST, sandboxes=5, capacity=10),
        replace(OTHER_HOST, sandboxes=6, capacity=20),
    )
    assert place(some, less) == less.host_id


def test_launches_under_way_count() -> None:
    assert place(HOST, OTHER_HOST, reserved={HOST.host_id: 1}) == OTHER_HOST.host_id


@pytest.mark.parametrize("name", ["c", "d"])
def test_a_host_that_holds_the_snapshot_comes_first(name: str) -> None:
    held = {("default", name): {OTHER_HOST.host_id}}
    assert place(HOST, replace(OTHER_HOST, sandboxes=9), held=held) == OTHER_HOST.host_id
    assert place(HOST, OTHER_HOST, held={("other", name): {OTHER_HOST.host_id}}) == HOST.host_id


def test_full_and_draining_hosts_are_not_taken() -> None:
    full = replace(HOST, sandboxes=3, capacity=3)
    assert place(full, OTHER_HOST) == OTHER_HOST.host_id
    assert place(replace(HOST, draining=True), OTHER_HOST) == OTHER_HOST.host_id
    with pytest.raises(NoHost, match="full"):
        place(full)
    for hosts in ((), (replace(HOST, draining=True),)):
        with pytest.raises(NoHost, match="registered"):
            place(*hosts)


def test_the_isolation_that_was_asked_for_is_needed() -> None:
    walled = replace(OTHER_HOST, isolation=("walled", "process"))
    assert place(HOST, walled, isolation="walled") == walled.host_id
    with pytest.raises(IsolationUnavailable) as raised:
        place(HOST, walled, isolation="microvm")
    assert "process, walled" in raised.value.remedy


def test_a_host_without_walls_is_left_to_its_tenant() -> None:
    plain = replace(HOST, process_tenant="first")
    walled = replace(OTHER_HOST, isolation=("walled", "process"), process_tenant="first")
    assert place(plain, walled, tenant="first") == plain.host_id
    assert place(plain, walled, tenant="second") == walled.host_id
    with pytest.raises(IsolationUnavailable) as lacking:
        place(plain, walled, isolation="process", tenant="second")
    assert "one of: walled." in lacking.value.remedy
    with pytest.raises(HostsReserved):
        place(plain, tenant="second")


def test_only_a_host_with_both_halves_counts() -> None:
    workspace = {"address": "unix:/w", "epoch": "1"}
    sandbox = {
        "address": "unix:/s",
        "isolation": "walled, process",
        "capacity": "8",
        "sandboxes": "2",
    }
    hosts = joined(
        {
            "fairlead:host:hst_b:workspace": workspace,
            "fairlead:host:hst_b:sandbox": sandbox,
            "fairlead:host:hst_c:workspace": workspace,
            "fairlead:host:hst_d:sandbox": sandbox,
            "fairlead:host:hst_a:workspace": workspace | {"draining": "1"},
            "fairlead:host:hst_a:sandbox": {"address": "unix:/s", "capacity": "junk"},
            "fairlead:host:hst_e:workspace": {},
            "fairlead:host:hst_e:sandbox": sandbox,
            "fairlead:host:odd": workspace,
        }
    )
    assert list(hosts) == ["hst_a", "hst_b"]
    assert hosts["hst_a"].draining
    assert hosts["hst_a"].capacity == 0
    assert hosts["hst_b"] == Host(
        "hst_b", "unix:/w", "unix:/s", ("walled", "process"), sandboxes=2, capacity=8
    )
