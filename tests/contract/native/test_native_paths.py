"""What connections of the native core go through: loss, restarts, and peers that vanish."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

import tests.contract.native.presence  # noqa: F401
from fairlead_native import Connection, Reason, State
from tests.contract.native.lossy_road import LossyRoad
from tests.contract.native.peers import Inbox, MakeEngine, connected_pair, first_channel

ROOT = Path(__file__).parents[3]


async def joined_by_roads(
    make_engine: MakeEngine, *, loss: float = 0.0, silence: float = 30.0
) -> tuple[Connection, Connection, Inbox, Inbox, list[LossyRoad]]:
    """Connect two engines that know no address of each other but the roads between them.

    Each host candidate is replaced by a road to it; what a check finds out by itself
    (peer-reflexive) is another port of the same road.
    """
    near, far = make_engine(silence=silence).connect(), make_engine(silence=silence).connect()
    found = first_channel(far)
    near_end = Inbox(near.open_channel("over roads"))
    roads = await exchange(near, far, near.offer(), loss=loss)
    far_end = Inbox(await found)
    await near_end.opened()
    return near, far, near_end, far_end, roads


async def exchange(
    offering: Connection, answering: Connection, offer: str, *, loss: float = 0.0
) -> list[LossyRoad]:
    answer = answering.answer(offer)
    offering.accept_answer(answer)
    roads = []
    for number, (giver, taker) in enumerate(((offering, answering), (answering, offering))):
        await giver.wait_gathered()
        for line in giver.description().splitlines():
            if line.startswith("a=candidate:"):
                road, changed = await LossyRoad.before(line, loss=loss, seed=number)
                roads.append(road)
                taker.add_candidate(changed)
        taker.end_of_candidates()
    return roads


@pytest.mark.asyncio
@pytest.mark.parametrize("loss", [0.01, 0.05])
async def test_a_transfer_over_a_lossy_path_is_whole(make_engine: MakeEngine, loss: float) -> None:
    _, _, near_end, far_end, roads = await joined_by_roads(make_engine, loss=loss)
    block, count = os.urandom(256 * 1024), 8
    sums = await asyncio.gather(
        near_end.send_all(block, count),
        far_end.take_all(len(block) * count),
        far_end.send_all(block, count),
        near_end.take_all(len(block) * count),
    )
    assert sums[0] == sums[1] == sums[2] == sums[3]
    assert sum(road.lost for road in roads) > 10
    for road in roads:
        road.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("who", ["near", "far"])
async def test_a_restart_while_data_flows_loses_nothing(make_engine: MakeEngine, who: str) -> None:
    pair = await connected_pair(make_engine(), make_engine())
    restarting, other = (pair.near, pair.far) if who == "near" else (pair.far, pair.near)
    block, count = os.urandom(256 * 1024), 60
    sending = asyncio.ensure_future(pair.near_end.send_all(block, count))
    taking = asyncio.ensure_future(pair.far_end.take_all(len(block) * count))
    before = restarting.description()
    for _ in range(3):
        offer = restarting.restart()
        assert ufrag_of(offer) != ufrag_of(before)
        await asyncio.sleep(0)
        answer = other.answer(offer)
        assert restarting.accept_answer(answer)
        assert not restarting.accept_answer(answer), "late and doubled: it is ignored"
        before = offer
    assert await sending == await taking
    assert (pair.near.state, pair.far.state) == (State.CONNECTED, State.CONNECTED)
    assert set(pair.states) <= {State.CONNECTED}


def ufrag_of(sdp: str) -> str:
    return next(line for line in sdp.splitlines() if line.startswith("a=ice-ufrag:"))


@pytest.mark.asyncio
async def test_a_restart_moves_to_a_new_path_when_the_old_one_is_gone(
    make_engine: MakeEngine,
) -> None:
    near, far, near_end, far_end, roads = await joined_by_roads(make_engine, silence=2.0)
    near_end.channel.send("old path")
    assert await far_end.messages.get() == "old path"
    for road in roads:
        road.close()
    near_end.channel.send("in the dark")
    assert await near.wait_state(State.DISCONNECTED)
    assert await near.wait_state(State.FAILED)
    assert near.reason is Reason.SILENT
    roads = await exchange(near, far, near.restart())
    assert await far_end.messages.get() == "in the dark"
    assert await near.wait_state(State.CONNECTED)
    assert await far.wait_state(State.CONNECTED)
    far_end.channel.send("new path")
    assert await near_end.messages.get() == "new path"
    for road in roads:
        road.close()


@pytest.mark.asyncio
async def test_offers_that_cross_leave_one_that_holds(make_engine: MakeEngine) -> None:
    """Both restart at once: the polite side takes its offer back by answering the other's."""
    pair = await connected_pair(make_engine(), make_engine())
    own, others = pair.near.restart(), pair.far.restart()
    assert own != others
    answer = pair.near.answer(others)
    assert pair.far.accept_answer(answer)
    assert not pair.near.accept_answer("an answer to what was taken back")
    pair.near_end.channel.send("holds")
    assert await pair.far_end.messages.get() == "holds"
    again = pair.near.restart()
    assert pair.near.accept_answer(pair.far.answer(again))
    pair.far_end.channel.send("again")
    assert await pair.near_end.messages.get() == "again"


PEER = """
import asyncio, sys
from fairlead_native import Engine

async def main():
    engine = Engine(addresses=["127.0.0.1"], silence=2.0)
    connection = engine.connect()
    connection.on_channel = lambda channel: channel.attach(on_message=channel.send)
    connection.answer(sys.argv[1])
    await connection.wait_gathered()
    print(connection.description(), flush=True)
    print(".", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_a_peer_that_is_killed_is_silent_and_then_failed(make_engine: MakeEngine) -> None:
    near = make_engine(silence=2.0).connect()
    states: list[tuple[State, Reason]] = []
    near.on_state = lambda: states.append((near.state, near.reason))
    inbox = Inbox(near.open_channel("echo"))
    near.offer()
    await near.wait_gathered()
    peer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, near.description(), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        assert peer.stdout is not None
        answer = (await peer.stdout.readuntil(b".\n")).decode()
        near.accept_answer(answer.removesuffix(".\n"))
        await inbox.opened()
        inbox.channel.send("anybody?")
        assert await inbox.messages.get() == "anybody?"
        peer.send_signal(signal.SIGKILL)
        await near.wait_state(State.FAILED)
    finally:
        if peer.returncode is None:
            peer.kill()
        await peer.wait()
    assert states == [
        (State.CONNECTED, Reason.NONE),
        (State.DISCONNECTED, Reason.SILENT),
        (State.FAILED, Reason.SILENT),
    ]
    near.close()
    await inbox.closed.wait()


@pytest.mark.asyncio
async def test_a_peer_that_is_not_who_it_says_is_refused(make_engine: MakeEngine) -> None:
    near, far = make_engine().connect(), make_engine().connect()
    near.open_channel("any")
    near.offer()
    await near.wait_gathered()
    far.answer(near.description())
    await far.wait_gathered()
    lines = far.description().splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("a=fingerprint:"))
    lines[at] = lines[at][:-5] + ("00:00" if not lines[at].endswith("00:00") else "11:11")
    near.accept_answer("\r\n".join(lines) + "\r\n")
    assert await near.wait_state(State.FAILED)
    assert near.reason is Reason.PROTOCOL
