"""Client and gateway over scripted signalling: trickle, restarts, and what is lost on the way.

Cores that trickle run all of it; the fake one also loses paths on command.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.forwarding import Forwarder, LocalPort, open_tunnel
from fairlead_sdk.peer_session import AsyncSession
from fairlead_sdk.session_errors import RestartFailed
from fairlead_tunnel.cores import cores
from fairlead_tunnel.peer_connection import PeerCore
from tests.contract.wire.gateway_mesh import LAUNCH, Mesh, connect, echoed, mesh, until
from tests.eventually import SECONDS
from tests.fakes.peer_core import Network, PeerConnectionFake, PeerCoreFake
from tests.fakes.scripted_sessions import away

pytestmark = pytest.mark.asyncio

CONTENT = os.urandom(400_000)


@dataclass
class Pair:
    """A mesh, a client's session with it, and the port of an echo."""

    mesh: Mesh
    tunnel: Forwarder
    echo: LocalPort
    near: PeerCore
    far: PeerCore

    @property
    def session(self) -> AsyncSession:
        return self.tunnel._session

    @property
    def gateway_end(self) -> PeerConnectionFake:
        assert isinstance(self.far, PeerCoreFake)
        return self.far.made[-1]

    @property
    def client_end(self) -> PeerConnectionFake:
        assert isinstance(self.near, PeerCoreFake)
        return self.near.made[-1]


Cores = Callable[[], tuple[PeerCore, PeerCore]]


def _fakes() -> tuple[PeerCore, PeerCore]:
    network = Network()
    return PeerCoreFake(network=network), PeerCoreFake(network=network)


def _real(name: str) -> Cores:
    def made() -> tuple[PeerCore, PeerCore]:
        near, far = (next(core for core in cores() if core.name == name) for _ in range(2))
        return near, far

    return made


PAIRS: dict[str, Cores] = {
    "fake": _fakes,
    **{core.name: _real(core.name) for core in cores() if core.can_trickle},
}


@asynccontextmanager
async def pair(
    name: str = "fake", prepare: Callable[[Mesh], None] = lambda it: None, *, mode: str = ""
) -> AsyncIterator[Pair]:
    near, far = PAIRS[name]()
    async with asyncio.timeout(SECONDS), mesh(core=far) as it:
        prepare(it)
        async with open_tunnel(it.sessions, LAUNCH, core=near, mode=mode) as tunnel:
            echo = await tunnel.listen(it.servers.echo)
            yield Pair(it, tunnel, echo, near, far)
        await until(lambda: not (it.gateway.sessions or it.worker.open_connections))


def same(one: bytes, other: bytes) -> bool:
    return hashlib.sha256(one).digest() == hashlib.sha256(other).digest()


async def in_pieces(it: Pair, between: Callable[[], asyncio.Future[None]]) -> bytes:
    """Echo the content over one connection, with something done in its middle."""
    reader, writer = await connect(it.echo)
    half = len(CONTENT) // 2
    writer.write(CONTENT[:half])
    first = await reader.readexactly(half // 2)
    await between()
    writer.write(CONTENT[half:])
    writer.write_eof()
    rest = await reader.read()
    writer.close()
    return first + rest


@pytest.mark.parametrize("name", list(PAIRS))
async def test_bytes_arrive_unharmed_through_restarts_of_the_client(name: str) -> None:
    async with pair(name) as it:
        assert it.session.mode == "trickle"
        echoed_back = await in_pieces(it, lambda: asyncio.ensure_future(it.session.restart()))
        assert same(echoed_back, CONTENT)
        assert it.session.round == 2
        await it.session.restart()
        assert it.session.round == 3
        assert same(await echoed(it.echo, CONTENT), CONTENT)
        assert it.mesh.gateway.sessions == 1


@pytest.mark.parametrize("name", list(PAIRS))
async def test_what_is_gathered_before_the_offer_is_taken_leaves_as_one_message(name: str) -> None:
    async with pair(name) as it:
        calls = it.mesh.sessions.calls
        assert calls.index("watch_session") < calls.index("send_offer")
        assert len(it.mesh.sessions.batches) <= 2
        (wanted,) = it.mesh.signalling.wanted.values()
        assert len(set(wanted.candidates)) == len(wanted.candidates)


@pytest.mark.parametrize("name", list(PAIRS))
@pytest.mark.parametrize(
    ("call", "is_lost"),
    [
        ("open_session", False),
        ("send_offer", False),
        ("send_offer", True),
        ("add_candidates", False),
        ("add_candidates", True),
        ("watch_session", False),
    ],
)
async def test_a_call_that_fails_or_whose_reply_is_lost_is_repeated(
    name: str, call: str, is_lost: bool
) -> None:
    def prepare(it: Mesh) -> None:
        scripted = it.sessions.losses if is_lost else it.sessions.failures
        scripted[call] = [away()]

    async with pair(name, prepare) as it:
        assert await echoed(it.echo, b"works") == b"works"
        assert len(it.mesh.signalling.wanted) == 1
        assert it.mesh.gateway.sessions == 1


async def test_each_candidate_reaches_the_gateway_once_when_a_flush_is_lost() -> None:
    def prepare(it: Mesh) -> None:
        it.sessions.losses["add_candidates"] = [away(), away()]

    async with pair(prepare=prepare) as it:
        await until(lambda: len(it.gateway_end.applied) >= 2)
        assert len(set(it.gateway_end.applied)) == len(it.gateway_end.applied)


@pytest.mark.parametrize("name", list(PAIRS))
async def test_a_restart_after_both_streams_were_lost(name: str) -> None:
    async with pair(name) as it:
        it.mesh.signalling.drop_stream()
        await it.mesh.sessions.drop_watches()
        await until(lambda: not it.mesh.gateway.is_ready)
        await until(lambda: it.mesh.gateway.is_ready)
        await until(lambda: bool(it.mesh.sessions.watches))
        await it.session.restart()
        assert it.session.round == 2
        assert same(await echoed(it.echo, CONTENT), CONTENT)


async def test_a_path_that_is_lost_is_restarted_and_the_connections_live() -> None:
    async with pair() as it:

        async def lose() -> None:
            it.client_end.lose_path()
            await until(lambda: it.session.round == 2 and it.session.is_connected)

        assert same(await in_pieces(it, lambda: asyncio.ensure_future(lose())), CONTENT)


async def test_a_gateway_that_hears_nothing_asks_for_the_restart() -> None:
    async with pair() as it:
        far, near = it.gateway_end, it.client_end
        near_state = near._tell_state
        near._tell_state = lambda state: None  # type: ignore[method-assign]
        far.lose_path()
        near._tell_state = near_state  # type: ignore[method-assign]
        await until(lambda: it.session.round == 2 and it.session.is_connected)
        assert await echoed(it.echo, b"goes on") == b"goes on"


async def test_a_restart_that_is_refused_leaves_the_path_that_carries() -> None:
    async with pair() as it:
        it.mesh.sessions.failures["restart_session"] = [
            FairleadError("No.", reason="restart_unsupported")
        ]
        with pytest.raises(RestartFailed):
            await it.session.restart()
        assert it.session.is_connected
        assert await echoed(it.echo, b"still") == b"still"
        await it.session.restart()
        assert await echoed(it.echo, b"again") == b"again"


async def test_a_peer_that_is_closed_without_notice_ends_session_and_connections() -> None:
    async with pair() as it:
        reader, writer = await connect(it.echo)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        (session_id,) = it.mesh.signalling.wanted
        it.client_end.vanish()
        async with asyncio.timeout(5):
            await it.mesh.signalling.until(lambda: bool(it.mesh.signalling.closed(session_id)))
            with pytest.raises(ConnectionResetError):
                await reader.read()
            await it.session.wait_lost()
        assert it.mesh.signalling.closed(session_id) == ["connection_failed"]
        writer.close()


async def test_a_path_that_is_given_up_resets_what_went_through_it() -> None:
    async with pair() as it:
        reader, writer = await connect(it.echo)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        it.mesh.sessions.failures["restart_session"] = [
            FairleadError("Gone.", reason="session_closed")
        ]
        it.client_end.lose_path()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert it.session.is_lost
        writer.close()


async def test_a_session_that_is_closed_from_outside_says_why() -> None:
    async with pair() as it:
        (session_id,) = it.mesh.signalling.wanted
        it.mesh.signalling.unwant(session_id)
        await it.session.wait_lost()
        assert not it.session.is_connected


@pytest.mark.parametrize("name", list(PAIRS))
async def test_mode_complete_sends_no_candidates_and_cannot_restart(name: str) -> None:
    async with pair(name, mode="complete") as it:
        assert it.session.mode == "complete"
        assert await echoed(it.echo, b"works") == b"works"
        assert it.mesh.sessions.batches == []
        calls = it.mesh.sessions.calls
        assert calls[:2] == ["open_session", "send_offer"]
        with pytest.raises(RestartFailed):
            await it.session.restart()


async def test_a_gateway_that_cannot_trickle_is_asked_for_mode_complete() -> None:
    network = Network()
    near = PeerCoreFake(network=network)
    far = PeerCoreFake(network=network, can_trickle=False)
    async with (
        asyncio.timeout(SECONDS),
        mesh(core=far) as it,
        open_tunnel(it.sessions, LAUNCH, core=near) as tunnel,
    ):
        assert it.sessions.calls[:2] == ["open_session", "open_session"]
        assert tunnel._session.mode == "complete"
        echo = await tunnel.listen(it.servers.echo)
        assert await echoed(echo, b"works") == b"works"


async def test_a_wanted_mode_that_cannot_be_is_a_typed_error() -> None:
    network = Network()
    complete = PeerCoreFake(network=network, can_trickle=False)
    async with asyncio.timeout(SECONDS), mesh(core=complete) as it:
        for core, reason in (
            (complete, "unsupported"),
            (PeerCoreFake(network=network), "mode_unsupported"),
        ):
            with pytest.raises(FairleadError) as caught:
                async with open_tunnel(it.sessions, LAUNCH, core=core, mode="trickle"):
                    pytest.fail("a tunnel was opened")
            assert caught.value.reason == reason


async def test_a_refused_offer_is_raised_and_closes_the_session() -> None:
    near, far = _fakes()
    async with asyncio.timeout(SECONDS), mesh(core=far) as it:
        it.sessions.failures["send_offer"] = [FairleadError("No.", reason="offer_refused")]
        with pytest.raises(FairleadError) as caught:
            async with open_tunnel(it.sessions, LAUNCH, core=near):
                pytest.fail("a session was opened")
        assert caught.value.reason == "offer_refused"
        assert it.sessions.calls[-1] == "close_session"


async def test_a_drain_lets_an_open_channel_finish_through_a_restart() -> None:
    async with pair() as it:
        reader, writer = await connect(it.echo)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        draining = asyncio.create_task(it.mesh.gateway.drain())
        await it.mesh.signalling.until(lambda: it.mesh.signalling.heartbeats[-1].draining)
        await it.session.restart()
        writer.write(CONTENT)
        writer.write_eof()
        assert same(await reader.read(), CONTENT)
        writer.close()
        await draining
