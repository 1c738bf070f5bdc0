"""Offers that make no sense, given to the real carrier: refused, and nothing is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime

import psutil
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chassis.errors import FairleadError
from fairlead_tunnel.aiortc_core import AiortcCore
from fairlead_tunnel.carriers import TunnelDesk
from relay_gateway.ports import Stream
from relay_gateway.session import PortTimeout, WantedSession
from relay_gateway.target_rules import TargetDenied
from relay_gateway.webrtc_carrier import WebrtcCarrier
from tests.eventually import eventually
from tests.lone_peer import lone_peer, unmet_offer


def no_tunnels() -> TunnelDesk:
    raise AssertionError


class NoOpener:
    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        raise PortTimeout


class NoDialler:
    async def dial(self, session: WantedSession, host: str, port: int) -> Stream:
        raise TargetDenied(host, port)


def carrier() -> WebrtcCarrier:
    return WebrtcCarrier(
        core=AiortcCore(),
        opener=NoOpener(),
        dialler=NoDialler(),
        channels_per_session=4,
        desk=no_tunnels,
    )


async def outcome(offer: str) -> str:
    """Return the reason of the refusal, or `answered`; whatever is made is closed."""
    wanted = WantedSession("ses_a", offer, datetime.now(UTC))
    try:
        async with asyncio.timeout(60):
            association = await carrier().answer(wanted, print)
    except FairleadError as error:
        return error.reason
    await association.close()
    return "answered"


@pytest_asyncio.fixture
async def offer() -> AsyncIterator[str]:
    """A good offer."""
    yield await unmet_offer()


def without(offer: str, start: str) -> str:
    return "".join(line for line in offer.splitlines(True) if not line.startswith(start))


@pytest.mark.asyncio
async def test_a_good_offer_is_answered_with_all_candidates_and_no_outside_server(
    offer: str,
) -> None:
    association = await carrier().answer(WantedSession("ses_a", offer, datetime.now(UTC)), print)
    assert association.answer.count("m=application ") == 1
    assert "a=end-of-candidates" in association.answer
    assert "typ host" in association.answer
    assert "typ srflx" not in association.answer
    await association.close()
    await association.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "start",
    ["a=fingerprint:", "a=ice-ufrag:", "a=ice-pwd:", "a=setup:", "m=", "a=mid:", "a=sctp-port:"],
)
async def test_an_offer_that_lacks_something_is_refused_or_answered(offer: str, start: str) -> None:
    needed = ("a=fingerprint:", "a=ice-ufrag:", "a=ice-pwd:", "m=")
    assert await outcome(without(offer, start)) in (
        ("sdp_invalid",) if start in needed else ("sdp_invalid", "answered")
    )


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a=setup:actpass", "a=setup:nonsense"),
        ("a=sctp-port:5000", "a=sctp-port:many"),
        ("a=fingerprint:sha-256 ", "a=fingerprint:sha-256"),
        ("typ host", "typ"),
        ("m=application 9", "m=application nine"),
        ("v=0", "v=1"),
        ("UDP/DTLS/SCTP webrtc-datachannel", "DTLS/SCTP webrtc-datachannel"),
        ("a=candidate:", "a=candidate:\x00 "),
        ("a=max-message-size:262144", "a=max-message-size:-1"),
    ],
)
async def test_a_bent_offer_is_refused_or_answered(offer: str, old: str, new: str) -> None:
    assert await outcome(offer.replace(old, new)) in ("sdp_invalid", "answered")


async def _open() -> tuple[int, int]:
    """Count this process's sockets and tasks."""
    return len(psutil.Process().net_connections()), len(asyncio.all_tasks())


@pytest.mark.asyncio
async def test_refusals_leave_no_socket_and_no_task(offer: str) -> None:
    before = await _open()
    await outcome(offer)
    await eventually(_open, lambda found: found == before)
    for start in ("a=fingerprint:", "a=ice-ufrag:", "a=setup:"):
        await outcome(without(offer, start))
    await outcome(offer)
    await eventually(_open, lambda found: found == before)


async def udp_sockets_left() -> int:
    """Count this process's UDP sockets once what is ending has ended."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=60)
    for _ in range(3):  # transports close in a later turn
        await asyncio.sleep(0)
    return len(psutil.Process().net_connections("udp"))


async def turns_of(steps: Coroutine[object, object, object], most: int) -> bool:
    """Run steps for so many turns of the loop, cancel them and say whether they had ended."""
    task = asyncio.ensure_future(steps)
    for _ in range(most):
        await asyncio.sleep(0)
    has_ended = task.done()
    task.cancel()
    await asyncio.wait((task,))
    return has_ended


@pytest.mark.asyncio
async def test_an_answer_that_is_cancelled_at_any_turn_leaves_no_socket(offer: str) -> None:
    """aioice 0.13 forgets what it has bound when its gathering is cancelled."""
    await outcome(offer)
    before = await udp_sockets_left()
    turns = 0
    while not await turns_of(outcome(offer), turns):
        turns += 1
        assert await udp_sockets_left() == before, turns
    assert turns > 10


@pytest.mark.asyncio
async def test_an_offer_that_is_cancelled_at_any_turn_leaves_no_socket() -> None:
    before = await udp_sockets_left()
    has_ended, turns = False, 0
    while not has_ended:
        tunnel = await lone_peer()
        has_ended = await turns_of(tunnel.offer(), turns)
        await tunnel.close()
        assert await udp_sockets_left() == before, turns
        turns += 1
    assert turns > 5


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(picked=st.data())
def test_no_mutation_of_an_offer_breaks_the_gateway(picked: st.DataObject) -> None:
    async def one() -> None:
        tunnel = await lone_peer()
        try:
            lines = (await tunnel.offer()).splitlines()
        finally:
            await tunnel.close()
        number = picked.draw(st.integers(0, len(lines) - 1))
        lines[number] = picked.draw(
            st.one_of(
                st.just(""),
                st.text(max_size=40),
                st.just(lines[number][: len(lines[number]) // 2]),
                st.sampled_from(lines),
            )
        )
        assert await outcome("\r\n".join(lines)) in ("sdp_invalid", "answered")

    asyncio.run(one())
