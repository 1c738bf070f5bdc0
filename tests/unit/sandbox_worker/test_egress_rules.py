"""Allow lists against a model of their words, and addresses against every way to write one."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chassis.allow_list import (
    DEFAULT_PORTS,
    AllowEntryInvalid,
    parse_allow_list,
    parse_entry,
    parse_host,
)
from chassis.errors import FairleadError
from chassis.public_addresses import is_public, meant
from fairlead_limits.table import ALLOW_ENTRIES
from sandbox_worker.network.address_rules import AddressRules
from sandbox_worker.network.decision import Reason

_LABEL = st.text("ab-_9", min_size=1, max_size=3).filter(
    lambda each: each[0] != "-" and each[-1] != "-"
)
_NAME = st.lists(_LABEL, min_size=1, max_size=4).map(".".join).map(lambda name: name + ".c")
_PORT = st.sampled_from([80, 443, 22, 65535])
_ENTRY = st.tuples(st.sampled_from(["", "*.", "*"]), _NAME, st.none() | _PORT)


def _text(entry: tuple[str, str, int | None]) -> str:
    kind, name, port = entry
    where = "*" if kind == "*" else kind + name
    return where if port is None else f"{where}:{port}"


def _model(entry: tuple[str, str, int | None], host: str, port: int) -> bool:
    kind, name, at = entry
    labels, suffix = host.split("."), name.split(".")
    means = {
        "": host == name,
        "*.": len(labels) > len(suffix) and labels[-len(suffix) :] == suffix,
        "*": True,
    }[kind]
    return means and (port == at if at is not None else port in DEFAULT_PORTS)


@settings(deadline=None)
@given(st.lists(_ENTRY, max_size=5), _NAME, _PORT)
def test_a_list_allows_what_its_words_say(
    entries: list[tuple[str, str, int | None]], host: str, port: int
) -> None:
    allowed = parse_allow_list([_text(each) for each in entries])
    expected = any(_model(each, host, port) for each in entries)
    assert allowed.allows(host, port) is expected
    assert allowed.knows(host) or not expected


@settings(deadline=None)
@given(_NAME, st.sampled_from(["", "."]))
def test_spelling_does_not_matter(name: str, dot: str) -> None:
    assert parse_host(name.upper() + dot) == name
    assert parse_allow_list([name.upper() + dot]).allows(name, 443)


@settings(deadline=None)
@given(_NAME)
def test_no_name_allows_an_address(name: str) -> None:
    allowed = parse_allow_list(["*", "*." + name, name])
    assert not allowed.allows(IPv4Address("93.184.216.34"), 443)


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("93.184.216.34", "93.184.216.34", 443, True),
        ("93.184.216.0/24:5432", "93.184.216.9", 5432, True),
        ("93.184.216.0/24:5432", "93.184.216.9", 443, False),
        ("2606:2800::/32", "[2606:2800::1]", 80, True),
        ("[2606:2800::/32]:22", "[2606:2800::1]", 22, True),
        ("[2606:2800::1]", "[2606:2800:0::1]", 443, True),
        ("2606:2800::/32", "[2607::1]", 443, False),
        ("93.184.216.34", "[::ffff:93.184.216.34]", 443, False),
    ],
)
def test_literal_addresses(entry: str, host: str, port: int, allowed: bool) -> None:
    assert parse_allow_list([entry]).allows(parse_host(host), port) is allowed


@pytest.mark.parametrize(
    "entry",
    [
        "", " ", "a b", "*.", "*a.test", "a.*.test", "**", ".test", "a..test", "-a.test", "a-.test",
        "http://a.test", "a.test/", "a.test/24", "a.test:", "a.test:0", "a.test:65536", "a.test:+1",
        "a.test:80:80", "user@a.test", "grüße.test", "127.1", "0x7f000001", "2130706433", "a.1",
        "1.2.3.4/33", "1.2.3.4/8", "10.0.0.256", "01.2.3.4", "fe80::1%eth0", "[::1", "[::1]x",
        "[a.test]", "[::1]:", "1.2.3.4.5", "a\n.test", "a" * 64 + ".test", "a." * 127 + "test",
        "*:443x", "*.1", "::1:80x",
    ],
)  # fmt: skip
def test_an_entry_that_means_nothing_is_a_typed_error(entry: str) -> None:
    with pytest.raises(FairleadError) as caught:
        parse_entry(entry)
    assert caught.value.reason == "allow_entry_invalid"
    assert caught.value.remedy


def test_a_list_has_a_bound() -> None:
    parse_allow_list(["a.test"] * ALLOW_ENTRIES.count)
    with pytest.raises(FairleadError, match="at most 256") as caught:
        parse_allow_list(["a.test"] * (ALLOW_ENTRIES.count + 1))
    assert caught.value.reason == "allow_list_too_long"


@settings(deadline=None)
@given(st.text(max_size=300))
def test_whatever_is_written_is_an_entry_or_a_typed_error(text: str) -> None:
    try:
        found = parse_entry(text)
    except AllowEntryInvalid:
        return
    assert found.name or found.network or found.suffix is not None


_DENIED = [
    ip_network(each)
    for each in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )
]  # fmt: skip


def _rules(**options: object) -> AddressRules:
    own = ip_address("93.184.216.34")
    opened = [ip_network(str(each)) for each in options.get("opened", ())]  # type: ignore[attr-defined]
    return AddressRules(opened=opened, mesh_ports={7300, 6379}, is_own=lambda each: each == own)


@settings(deadline=None)
@given(
    st.sampled_from(_DENIED).flatmap(
        lambda network: st.integers(int(network[0]), int(network[-1])).map(IPv4Address)
    ),
    st.sampled_from(["{}", "::ffff:{}", "64:ff9b::{}", "::{}", "::ffff:0:{}"]),
)
def test_a_private_address_is_denied_however_it_is_written(address: IPv4Address, form: str) -> None:
    assert (
        _rules().fault(ip_address(form.format(address)), 443, is_named=True)
        is Reason.ADDRESS_PRIVATE
    )


@settings(deadline=None)
@given(
    st.sampled_from(
        [
            "2002::/16",
            "2001::/32",
            "64:ff9b:1::/48",
            "fc00::/7",
            "fe80::/10",
            "ff00::/8",
            "2001:db8::/32",
            "::/96",
            "100::/64",
        ]
    )
    .map(ip_network)
    .flatmap(lambda network: st.integers(int(network[0]), int(network[-1])).map(IPv6Address))
)
def test_special_addresses_of_version_6_are_denied(address: IPv6Address) -> None:
    # What is mapped, or behind ::/96, is denied whatever it holds.
    assert _rules().fault(address, 443, is_named=True) is Reason.ADDRESS_PRIVATE


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "168.63.129.16", "fd00:ec2::254", "100.100.100.200"]
)
def test_the_metadata_addresses_of_clouds_are_denied(address: str) -> None:
    assert _rules().fault(ip_address(address), 80, is_named=True) is Reason.ADDRESS_PRIVATE


@settings(deadline=None)
@given(st.ip_addresses())
def test_what_is_allowed_is_public_and_not_this_host(address: IPv4Address | IPv6Address) -> None:
    fault = _rules().fault(address, 443, is_named=True)
    expected = None if is_public(address) else Reason.ADDRESS_PRIVATE
    if str(address) != "93.184.216.34":
        assert fault is expected
    assert meant(address).is_global or fault is not None


@pytest.mark.parametrize("address", ["93.184.216.34", "::ffff:93.184.216.34"])
def test_the_hosts_own_public_address_is_denied(address: str) -> None:
    assert _rules().fault(ip_address(address), 443, is_named=True) is Reason.ADDRESS_OWN


def test_what_the_operator_opens_keeps_the_ports_of_the_mesh_shut() -> None:
    rules = _rules(opened=("10.1.0.0/16", "127.0.0.0/8", "93.184.216.34/32"))
    for address in ("10.1.2.3", "127.0.0.1", "::ffff:10.1.2.3", "93.184.216.34"):
        assert rules.fault(ip_address(address), 8080, is_named=True) is None
        assert rules.fault(ip_address(address), 7300, is_named=True) is Reason.MESH_PORT
        assert rules.fault(ip_address(address), 6379, is_named=True) is Reason.MESH_PORT
    assert rules.fault(ip_address("10.2.0.1"), 8080, is_named=True) is Reason.ADDRESS_PRIVATE


def test_own_addresses_and_metadata_services_are_opened_as_such() -> None:
    wide = _rules(opened=("0.0.0.0/0", "::/0"))
    for address in ("127.0.0.1", "::1", "0.0.0.0", "168.63.129.16", "fd00:ec2::254"):  # noqa: S104
        for is_named in (True, False):
            fault = wide.fault(ip_address(address), 80, is_named=is_named)
            assert fault is Reason.ADDRESS_PRIVATE
    assert wide.fault(ip_address("93.184.216.34"), 80, is_named=False) is Reason.ADDRESS_OWN
    azure = ip_address("168.63.129.16")
    exact = _rules(opened=("168.63.129.16/32",))
    assert exact.fault(azure, 80, is_named=False) is None
    assert exact.fault(azure, 80, is_named=True) is Reason.ADDRESS_PRIVATE
