"""Sealed sessions between a real client and a real gateway: signalling sees nothing but seals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.forwarding import open_tunnel
from fairlead_sdk.session_records import OfferReply
from fairlead_tunnel.cores import cores
from fairlead_tunnel.peer_connection import (
    CandidateFound,
    GatheringDone,
    PeerCore,
    PeerEvent,
    PeerPlan,
)
from fairlead_tunnel.sealed_connection import SealedConnection
from fairlead_tunnel.sealed_signals import SALT_BYTES, is_sealed
from tests.contract.wire.gateway_mesh import LAUNCH, Mesh, echoed, mesh
from tests.fakes.peer_core import Network, PeerCoreFake

pytestmark = pytest.mark.asyncio

SECRET, OTHER = bytes(range(32)), bytes(32)


def _fakes() -> tuple[PeerCore, PeerCore]:
    network = Network()
    return PeerCoreFake(network=network), PeerCoreFake(network=network)


def _pair(name: str) -> Callable[[], tuple[PeerCore, PeerCore]]:
    def made() -> tuple[PeerCore, PeerCore]:
        near, far = (next(core for core in cores() if core.name == name) for _ in range(2))
        return near, far

    return made


PAIRS = {"fake": _fakes, **{core.name: _pair(core.name) for core in cores()}}


def seen_by_signalling(it: Mesh) -> list[str]:
    """Return every description and candidate that passed."""
    (wanted,) = it.signalling.wanted.values()
    told = it.signalling.said
    found = [said for said in told if isinstance(said, pb.CandidatesFound)]
    return [
        wanted.offer,
        *wanted.candidates,
        *(said.answer for said in told if isinstance(said, pb.SessionAnswered)),
        *(candidate for said in found for candidate in said.candidates),
    ]


@pytest.mark.parametrize("name", list(PAIRS))
async def test_signalling_sees_only_seals_and_bytes_arrive_also_after_a_restart(name: str) -> None:
    near, far = PAIRS[name]()
    async with (
        asyncio.timeout(60),
        mesh(core=far, seal_secret=SECRET) as it,
        open_tunnel(it.sessions, LAUNCH, core=near, seal_secret=SECRET) as tunnel,
    ):
        echo = await tunnel.listen(it.servers.echo)
        assert await echoed(echo, b"sealed") == b"sealed"
        assert all(is_sealed(text) for text in seen_by_signalling(it))
        if near.can_trickle:
            await tunnel._session.restart()
            assert await echoed(echo, b"sealed again") == b"sealed again"
            assert all(is_sealed(text) for text in seen_by_signalling(it))


async def test_the_end_of_candidates_is_believed_under_its_seal_alone() -> None:
    network = Network()
    ends = [PeerCoreFake(network=network) for _ in range(2)]
    salt = bytes(SALT_BYTES)
    inner, peer = (core.connect(PeerPlan(trickles=True)) for core in ends)
    inner.candidates_at_once = peer.candidates_at_once = 0
    near, far = (
        SealedConnection(connection=connection, secret=SECRET, session="ses_" + "a" * 26, salt=salt)
        for connection in (inner, peer)
    )
    said: list[PeerEvent] = []
    near.listen(said.append)
    await near.accept(await far.answer(await near.offer()))
    inner.found("candidate:late")
    inner.gathered()
    await asyncio.sleep(0)
    assert said[-1] == GatheringDone()
    texts = [event.candidate for event in said if isinstance(event, CandidateFound)]
    assert all(is_sealed(text) for text in texts)
    await far.end_candidates()
    await far.add_candidate("")
    assert not peer.has_all
    for text in texts:
        assert not peer.has_all
        await far.add_candidate(text)
    assert peer.has_all
    assert "candidate:late" in peer.applied
    assert "" not in peer.applied


@pytest.mark.parametrize("gateway_secret", [OTHER, b""], ids=["another", "none"])
async def test_another_secret_or_none_is_a_typed_refusal(gateway_secret: bytes) -> None:
    near, far = _fakes()
    async with asyncio.timeout(60), mesh(core=far, seal_secret=gateway_secret) as it:
        with pytest.raises(FairleadError) as caught:
            async with open_tunnel(it.sessions, LAUNCH, core=near, seal_secret=SECRET):
                pytest.fail("a session was opened")
        assert caught.value.reason == "seal_refused"
        assert it.gateway.sessions == 0


async def test_a_gateway_with_a_secret_answers_clients_that_seal_nothing() -> None:
    near, far = _fakes()
    async with (
        asyncio.timeout(60),
        mesh(core=far, seal_secret=SECRET) as it,
        open_tunnel(it.sessions, LAUNCH, core=near) as tunnel,
    ):
        echo = await tunnel.listen(it.servers.echo)
        assert await echoed(echo, b"in clear") == b"in clear"


@pytest.mark.parametrize("put_in", ["v=0", "fl1.AAAA"])
async def test_an_answer_that_signalling_made_up_is_rejected(
    put_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = _fakes()
    async with asyncio.timeout(60), mesh(core=far, seal_secret=SECRET) as it:

        async def made_up(session_id: str, offer: str) -> OfferReply:
            return OfferReply(put_in, 1)

        monkeypatch.setattr(it.sessions, "send_offer", made_up)
        with pytest.raises(FairleadError) as caught:
            async with open_tunnel(it.sessions, LAUNCH, core=near, seal_secret=SECRET):
                pytest.fail("a session was opened")
        assert caught.value.reason == "seal_rejected"


async def test_a_secret_of_another_length_is_a_typed_error() -> None:
    near, far = _fakes()
    async with asyncio.timeout(60), mesh(core=far) as it:
        with pytest.raises(FairleadError) as caught:
            async with open_tunnel(it.sessions, LAUNCH, core=near, seal_secret=b"short"):
                pytest.fail("a session was opened")
        assert caught.value.reason == "seal_secret_invalid"
