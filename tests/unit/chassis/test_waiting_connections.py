"""Connections of strangers: too many end the oldest, and those of one address end their own."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from chassis.listeners import ConnectionLimits, ListenerSettings, WaitingConnections


class Connection:
    """A transport, as far as the table needs one."""

    def __init__(self, host: str | None) -> None:
        self.peer = (host, 40000) if host else ""
        self.is_open = True

    def get_extra_info(self, name: str) -> object:
        return self.peer if name == "peername" else None

    def abort(self) -> None:
        self.is_open = False


def opened(subject: WaitingConnections, *hosts: str | None) -> list[Connection]:
    made = [Connection(host) for host in hosts]
    for each in made:
        subject.add(each)
    return made


def open_hosts(connections: list[Connection]) -> list[int]:
    return [number for number, each in enumerate(connections) if each.is_open]


def test_the_oldest_makes_room_for_the_newest() -> None:
    subject = WaitingConnections(limits=ConnectionLimits(most=3))
    made = opened(subject, "9.0.0.1", "9.0.0.2", "9.0.0.3")
    subject.renew(made[0])
    subject.discard(made[1])
    made += opened(subject, "9.0.0.4", "9.0.0.5", None)
    assert open_hosts(made) == [1, 3, 4, 5]
    assert len(subject) == 3
    subject.end_all()
    assert open_hosts(made) == [1]
    assert len(subject) == 0


def test_an_address_ends_its_own_connections_only() -> None:
    limits = ConnectionLimits(most=100, most_each=2, trusted=(ip_network("10.0.0.0/8"),))
    subject = WaitingConnections(limits=limits)
    other = opened(subject, "9.0.0.1", "2001:db8:0:1::1")
    mapped = opened(subject, "9.0.0.2", "::ffff:9.0.0.2", "9.0.0.2")
    site = opened(subject, "2001:db8::1", "2001:db8::2", "2001:db8::ffff:3")
    proxied = opened(subject, *["10.0.0.1"] * 5, *[None] * 5)
    subject.renew(mapped[1])
    mapped += opened(subject, "9.0.0.2")
    assert open_hosts(other) == [0, 1]
    assert open_hosts(mapped) == [1, 3]
    assert open_hosts(site) == [1, 2]
    assert all(each.is_open for each in proxied)


def test_a_process_that_may_open_few_files_takes_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1000, 1000))
    monkeypatch.setenv("FAIRLEAD_TRUSTED_PROXIES", "10.0.0.0/8, 9.9.9.9")
    limits = ListenerSettings().connection_limits()
    assert limits.most == 500
    assert limits.trusted == (ip_network("10.0.0.0/8"), ip_network("9.9.9.9/32"))
