"""Which hosts a gateway dials: by its list, and by what they turn out to be."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from chassis.allow_list import parse_allow_list, parse_host
from relay_gateway.settings import Settings
from relay_gateway.target_rules import TargetDenied, TargetRules

OWN = "1.2.3.4"
METADATA = (
    "169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192",
    "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe",
    "fe80::a9fe:a9fe",
)  # fmt: skip
LIST = "db.internal:5432,*.corp:22,10.0.0.0/8:443,*:8443,[fd00::/8]:443,0.0.0.0/0:444,1.2.3.4:25"


def rules(text: str = LIST) -> TargetRules:
    allowed = parse_allow_list(Settings(targets=text).targets)  # type: ignore[arg-type]
    return TargetRules(allowed=allowed, is_own=lambda address: address == ip_address(OWN))


def outcome(subject: TargetRules, host: str, port: int, addresses: tuple[str, ...]) -> list[str]:
    named = parse_host(host)
    try:
        subject.check(named, port)
        return [str(each) for each in subject.judged(named, addresses, port)]
    except TargetDenied:
        return []


def test_nothing_is_dialled_unless_it_is_set() -> None:
    for host in ("a.test", "93.184.215.14", "127.0.0.1", "localhost"):
        for port in (22, 80, 443):
            with pytest.raises(TargetDenied):
                rules("").check(parse_host(host), port)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("db.internal", 5433),
        ("x.db.internal", 5432),
        ("corp", 22),
        ("a.corp", 80),
        ("a.test", 443),
        ("11.0.0.1", 443),
        ("[::ffff:11.0.0.1]", 443),
    ],
)
def test_what_the_list_does_not_say_is_not_even_resolved(host: str, port: int) -> None:
    with pytest.raises(TargetDenied):
        rules().check(parse_host(host), port)


@pytest.mark.parametrize(
    ("host", "port", "found", "dialled"),
    [
        # A name as it is may mean what is private, but never where clouds keep credentials.
        ("db.internal", 5432, ("10.1.2.3",), ["10.1.2.3"]),
        ("DB.internal.", 5432, ("100.64.0.1", "fd00::1"), ["100.64.0.1", "fd00::1"]),
        # ... nor this machine, nor what a relay or a translator would make of an address.
        ("db.internal", 5432, ("127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"), []),  # noqa: S104
        ("db.internal", 5432, (OWN,), []),
        ("db.internal", 5432, ("2002:a9fe:a9fe::1", "64:ff9b:1::a9fe:a9fe", "224.0.0.1"), []),
        ("db.internal", 5432, ("169.254.169.254",), []),
        (
            "db.internal",
            5432,
            ("169.254.169.254", "::ffff:169.254.169.254", "9.9.9.9"),
            ["9.9.9.9"],
        ),
        # One of many names may not.
        ("a.corp", 22, ("10.1.2.3",), []),
        ("a.corp", 22, ("10.1.2.3", "9.9.9.9"), ["9.9.9.9"]),
        ("a.test", 8443, ("127.0.0.1", "::1", "fe80::1", "64:ff9b::a00:1"), []),
        ("a.test", 8443, (OWN,), []),
        # A network that is private as a whole opens what is in it, on its port.
        ("10.1.2.3", 443, ("10.1.2.3",), ["10.1.2.3"]),
        ("[::ffff:10.1.2.3]", 443, ("::ffff:10.1.2.3",), ["::ffff:a01:203"]),
        ("[fd00::7]", 443, ("fd00::7",), ["fd00::7"]),
        # All addresses are the public ones.
        ("10.1.2.3", 444, ("10.1.2.3",), []),
        ("9.9.9.9", 444, ("9.9.9.9",), ["9.9.9.9"]),
        # A machine's own address is dialled where it is named.
        (OWN, 444, (OWN,), []),
        (OWN, 25, (OWN,), [OWN]),
    ],
)
def test_what_a_host_turns_out_to_be_is_judged(
    host: str, port: int, found: tuple[str, ...], dialled: list[str]
) -> None:
    assert outcome(rules(), host, port, found) == dialled


def test_a_network_lets_names_mean_what_is_in_it() -> None:
    subject = rules("*.corp:22,10.0.0.0/8:22")
    found = ("10.1.2.3", "192.168.1.1", "169.254.169.254")
    assert outcome(subject, "a.corp", 22, found) == ["10.1.2.3"]
    assert outcome(subject, "a.test", 22, found) == []


@pytest.mark.parametrize("address", METADATA)
def test_no_name_leads_to_a_metadata_service(address: str) -> None:
    """Whatever the list says besides: only a request for the listed address itself goes there."""
    literal = f"[{address}]" if ":" in address else address
    subject = rules(f"meta.corp:80,*:80,{literal}:80,0.0.0.0/0:80,[::/0]:80,[fd00::/8]:80")
    assert outcome(subject, "meta.corp", 80, (address,)) == []
    assert outcome(subject, literal, 80, (address,)) == [str(ip_address(address))]
    without = rules("meta.corp:80,0.0.0.0/0:80,[::/0]:80,[fd00::/8]:80,100.64.0.0/10:80")
    assert outcome(without, literal, 80, (address,)) == []


def test_this_machines_own_addresses_are_listed_as_such() -> None:
    subject = rules(f"local.corp:80,127.0.0.1:80,[::1]:80,127.0.0.0/8:81,1.2.3.0/24:82,{OWN}:83")
    found = ("127.0.0.1", "127.0.0.2", "::1", OWN)
    assert outcome(subject, "local.corp", 80, found) == ["127.0.0.1", "::1"]
    assert outcome(subject, "127.0.0.2", 81, ("127.0.0.2",)) == ["127.0.0.2"]
    assert outcome(subject, OWN, 82, (OWN,)) == []
    assert outcome(subject, OWN, 83, (OWN,)) == [OWN]


@pytest.mark.parametrize("text", ["a b", "10.0.0.1/8", "a.test:0", "a.test:99999", "[::1", "1.2.3"])
def test_a_list_that_cannot_be_read_is_told_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Settings(targets=text)  # type: ignore[arg-type]


def test_the_longest_name_leaves_room_for_what_to_do() -> None:
    denied = TargetDenied("a" * 253, 65535)
    assert len(denied.message) <= 256
    assert "FAIRLEAD_RELAY_TARGETS" in denied.message
