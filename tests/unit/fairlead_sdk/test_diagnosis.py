"""What a diagnosis looks at, what it leaves out, and what it makes of what was seen."""

from __future__ import annotations

import errno
import itertools
import ssl
from collections.abc import Mapping

import pytest

from fairlead_sdk import diagnosis_faults as faults
from fairlead_sdk.diagnosis import (
    NAMES,
    NEEDS,
    Asked,
    Check,
    Diagnosis,
    IcePath,
    Look,
    Outcome,
    Seen,
    diagnose_mesh,
)
from fairlead_sdk.errors import FairleadError, MeshUnavailable, Unavailable
from fairlead_sdk.http_errors import broken, silent, unreachable
from fairlead_sdk.ice_servers import IceServer, ice_servers_of
from fairlead_sdk.json_form import JsonObject

URL = "http://mesh.test:7300"
FAULT = Unavailable("It is shut.", reason="shut", remedy="Open it.")


def looks(results: Mapping[Check, Seen | FairleadError], looked: list[Check]) -> dict[Check, Look]:
    """Give looks with these results; the rest works."""

    def make(check: Check) -> Look:
        async def look() -> Seen:
            looked.append(check)
            match results.get(check, Seen(sentence=f"{check} works.")):
                case Seen() as seen:
                    return seen
                case error:
                    raise error

        return look

    return {check: make(check) for check in Check}


async def diagnosed(
    results: Mapping[Check, Seen | FairleadError], asked: Asked | None = None
) -> tuple[Diagnosis, list[Check]]:
    looked: list[Check] = []
    ticks = itertools.count()
    found = await diagnose_mesh(
        asked or Asked(), looks(results, looked), now=lambda: float(next(ticks))
    )
    return found, looked


def outcomes(found: Diagnosis) -> dict[Check, Outcome]:
    return {finding.check: finding.outcome for finding in found.findings}


@pytest.mark.asyncio
async def test_all_that_works_is_looked_at_in_order() -> None:
    found, looked = await diagnosed({})
    assert looked == [check for check in Check if check is not Check.HOLD]
    assert found.works
    assert found.faults == ()
    assert {finding.seconds for finding in found.findings} == {1.0}


@pytest.mark.asyncio
@pytest.mark.parametrize("failing", list(Check))
async def test_what_needs_something_that_fails_is_not_tried(failing: Check) -> None:
    found, looked = await diagnosed({failing: FAULT}, Asked(hold_seconds=1))
    untried = set[Check]()
    for check in Check:
        if {failing, *untried} & set(NEEDS[check]):
            untried.add(check)
    assert set(looked) == set(Check) - untried
    assert not found.works
    assert [fault.check for fault in found.faults] == [failing]
    for finding in found.findings:
        if finding.check in untried:
            assert finding.outcome is Outcome.NOT_TRIED
            assert finding.sentence == f"{NAMES[failing]} has to work first."
            assert finding.seconds is None


@pytest.mark.asyncio
async def test_what_is_not_configured_is_no_fault_and_stops_nothing() -> None:
    absent = Seen(sentence="None.", is_configured=False)
    found, looked = await diagnosed({Check.STUN: absent, Check.TURN: absent})
    assert found.works
    assert outcomes(found)[Check.TURN] is Outcome.NOT_CONFIGURED
    assert Check.CONNECTION in looked


@pytest.mark.asyncio
async def test_a_broken_turn_server_is_a_fault_and_stops_only_a_relay() -> None:
    for path, is_looked_at in ((IcePath.ALL, True), (IcePath.RELAY, False)):
        found, looked = await diagnosed({Check.TURN: FAULT}, Asked(path=path))
        assert not found.works
        assert (Check.OFFER in looked) is is_looked_at


@pytest.mark.asyncio
async def test_a_path_leaves_out_what_it_does_not_use() -> None:
    relay, _ = await diagnosed({}, Asked(path=IcePath.RELAY))
    direct, _ = await diagnosed({}, Asked(path=IcePath.DIRECT))
    assert Check.STUN not in outcomes(relay)
    assert Check.TURN not in outcomes(direct)


@pytest.mark.asyncio
async def test_some_of_many_that_fail_are_counted_and_the_others_go_on() -> None:
    seen = Seen(sentence="Open.", tried=35, failures=[FAULT, FAULT])
    found, looked = await diagnosed({Check.UDP: seen}, Asked(probes=35))
    finding = next(each for each in found.findings if each.check is Check.UDP)
    assert finding.outcome is Outcome.PARTLY
    assert finding.sentence == "2 of 35: It is shut."
    assert not found.works
    assert Check.CONNECTION in looked
    none, looked = await diagnosed({Check.UDP: Seen(sentence="", tried=2, failures=[FAULT] * 2)})
    assert outcomes(none)[Check.UDP] is Outcome.FAILS
    assert Check.CONNECTION not in looked


@pytest.mark.asyncio
async def test_the_document_of_a_finding() -> None:
    seen = Seen(sentence="Open.", milliseconds={"offer_to_open_ms": 12.3456})
    found, _ = await diagnosed({Check.UDP: FAULT, Check.OFFER: seen})
    documents = {each.check: each.document() for each in found.findings}
    assert documents[Check.OFFER] == {
        "check": "offer",
        "outcome": "works",
        "sentence": "Open.",
        "seconds": 1.0,
        "milliseconds": {"offer_to_open_ms": 12.35},
    }
    assert documents[Check.UDP]["reason"] == "shut"
    assert documents[Check.UDP]["remedy"] == "Open it."
    assert "seconds" not in documents[Check.CONNECTION]


def caused(error: MeshUnavailable, cause: BaseException) -> MeshUnavailable:
    error.__cause__ = cause
    return error


def tls(reason: str, message: str = "") -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, reason) if message else ssl.SSLError(1, reason)
    error.reason = reason
    if isinstance(error, ssl.SSLCertVerificationError):
        error.verify_message = message
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (caused(unreachable(URL), ConnectionRefusedError(errno.ECONNREFUSED, "")), "refused"),
        (caused(unreachable(URL), OSError("Multiple exceptions: [Errno 111] a, [Errno 111] b")),
         "refused"),
        (caused(unreachable(URL), ExceptionGroup("", [OSError(errno.ECONNREFUSED, "")])),
         "refused"),
        (caused(unreachable(URL), OSError(errno.ENETUNREACH, "")), "no way to"),
        (caused(unreachable(URL), TimeoutError()), "took too long"),
        (caused(unreachable(URL), tls("WRONG_VERSION_NUMBER")), "does not speak TLS"),
        (caused(unreachable(URL), tls("CERTIFICATE_VERIFY_FAILED", "self-signed certificate")),
         "cannot be trusted: self-signed certificate."),
        (broken(URL), "without an answer"),
        (silent(URL), "does not answer in time"),
    ],
)  # fmt: skip
def test_why_a_front_door_is_not_reached(error: MeshUnavailable, said: str) -> None:
    found = faults.not_reached(URL, error)
    assert said in found.message
    assert found.remedy
    assert found.reason == error.reason


@pytest.mark.parametrize(
    ("addresses", "stun_works", "said"),
    [
        ((), None, "names no address"),
        (("10.1.2.3", "fd00::1"), True, "These addresses are private"),
        (("8.8.8.8", "10.0.0.1"), True, "the gateway's side is shut"),
        (("8.8.8.8",), False, "this network seems to block UDP"),
        (("8.8.8.8", "gateway.local"), None, "from the gateway at 8.8.8.8, gateway.local."),
    ],
)
def test_what_a_silent_gateway_means(
    addresses: tuple[str, ...], stun_works: bool | None, said: str
) -> None:
    found = faults.gateway_silent(addresses, stun_works=stun_works)
    assert said in found.message
    assert found.remedy


def test_what_a_refused_websocket_means() -> None:
    rejected = FairleadError("No.", reason="http_403")
    assert "status 403" in faults.websocket_refused(rejected, proxy="").message
    assert "carried nothing" in faults.websocket_refused(None, proxy="").message
    assert "connection ended" in faults.websocket_refused(broken(URL), proxy="").message
    past = faults.websocket_refused(unreachable(URL), proxy="HTTPS_PROXY")
    assert "past the proxy of HTTPS_PROXY" in past.message


def test_the_addresses_of_an_answer() -> None:
    lines = [
        "v=0",
        "a=candidate:1 1 udp 2130706431 198.51.100.1 40000 typ host",
        "a=candidate:1 2 udp 2130706430 198.51.100.1 40001 typ host",
        "a=candidate:2 1 udp 1 fd00::1 40002 typ relay",
        "a=candidate:torn",
    ]
    assert faults.candidate_addresses("\r\n".join(lines)) == ("198.51.100.1", "fd00::1")


def test_the_servers_of_a_session() -> None:
    turn: JsonObject = {"urls": ["turn:a:1?transport=udp"], "username": "u", "credential": "c"}
    found = ice_servers_of({"ice_servers": [{"urls": ["stun:a:1"]}, turn, "x"]})
    assert found == (IceServer(("stun:a:1",)), IceServer(("turn:a:1?transport=udp",), "u", "c"))
    assert ice_servers_of({}) == ()
