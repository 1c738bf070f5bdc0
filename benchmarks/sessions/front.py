"""What signalling takes: negotiations with a gateway that answers at once, candidates, and idle
sessions.
"""

from __future__ import annotations

import asyncio
import re
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import psutil

from benchmarks.local_stack import Stack
from benchmarks.recording import QUICK, Recording, median_ms
from benchmarks.sessions.caller import Caller, opened_caller, rate
from benchmarks.sessions.program import Program, started
from benchmarks.sessions.stub_gateway import ANSWER
from benchmarks.workspaces.link import delayed, round_trip
from fairlead.session.v1 import session_pb2 as pb
from fairlead.session.v1 import session_pb2_grpc as rpc

OFFERS = 20 if QUICK else 300
ROUNDS = 1 if QUICK else 3
ROUND_SECONDS = 1.0 if QUICK else 4.0
CONNECTIONS = 8
IDLE = 200 if QUICK else 5000
WATCHED_PER_CHANNEL = 100
FLUSH_RTT = 0.05
FLUSHES = 3 if QUICK else 21
OFFER = ANSWER.replace("a=setup:active", "a=setup:actpass")
CANDIDATES = [
    f"candidate:{number} 1 udp {2130706431 - number} 192.0.2.{number} 50000 typ host"
    for number in range(1, 9)
]


@asynccontextmanager
async def stub_gateway(stack: Stack) -> AsyncIterator[Program]:
    """Put a gateway that answers at once into the place of the stack's own, which is stopped."""
    own = psutil.Process(stack.pids["relay-gateway"])
    settings = own.environ()
    place = (settings["FAIRLEAD_RELAY_SIGNALLING"], settings["FAIRLEAD_SECRET_FILE"])
    # One that is stopped while it connects would count as there for some time.
    await _until_gateways(stack, 1)
    own.send_signal(signal.SIGSTOP)
    try:
        await _until_gateways(stack, 0)
        words = (sys.executable, "-m", "benchmarks.sessions.stub_gateway", *place)
        async with started(*words) as program:
            await program.hear()
            yield program
    finally:
        own.send_signal(signal.SIGCONT)


async def _until_gateways(stack: Stack, count: int) -> None:
    async with asyncio.timeout(60), opened_caller(stack.url, stack.api_key) as caller:
        while await _gateways(caller) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _gateways(caller: Caller) -> int:
    listed = (await caller.call("GET", "/v1/gateways"))[1]["gateways"]
    assert isinstance(listed, list)
    return len(listed)


class Negotiations:
    """Sessions to one launch over REST."""

    def __init__(self, *, launch_id: str) -> None:
        self._launch_id = launch_id

    async def can_trickle(self, caller: Caller) -> bool:
        """Say whether sessions of mode trickle can be had."""
        body: dict[str, object] = {"launch_id": self._launch_id, "mode": "trickle"}
        status, _ = await caller.call("POST", "/v1/sessions", body)
        return status == 201

    async def open(self, caller: Caller, mode: str = "complete") -> str:
        """Open one and return its id."""
        status, opened = await caller.call(
            "POST", "/v1/sessions", {"launch_id": self._launch_id, "mode": mode}
        )
        assert status == 201, opened
        return str(opened["session_id"])

    async def offer(self, caller: Caller, session_id: str, offer: str = OFFER) -> None:
        """Send an offer and check the answer."""
        status, answered = await caller.call(
            "POST", f"/v1/sessions/{session_id}/offer", {"offer": offer}
        )
        assert status == 200, answered
        assert answered["answer"] == ANSWER

    async def close(self, caller: Caller, session_id: str) -> None:
        """Close one."""
        status, closed = await caller.call("DELETE", f"/v1/sessions/{session_id}")
        assert status == 200, closed

    async def whole(self, caller: Caller) -> None:
        """Open, offer and close."""
        session_id = await self.open(caller)
        await self.offer(caller, session_id)
        await self.close(caller, session_id)


async def _empty(caller: Caller) -> None:
    status, _ = await caller.call("GET", "/")
    assert status == 200


async def share_ms(stack: Stack, negotiations: Negotiations) -> float:
    """Return how long an offer takes whose gateway answers at once, in milliseconds."""
    spent = []
    async with opened_caller(stack.url, stack.api_key) as caller:
        for _ in range(OFFERS):
            session_id = await negotiations.open(caller)
            begun = time.perf_counter()
            await negotiations.offer(caller, session_id)
            spent.append(time.perf_counter() - begun)
            await negotiations.close(caller, session_id)
    return median_ms(spent)


async def rates(stack: Stack, negotiations: Negotiations) -> tuple[float, float]:
    """Return negotiations a second and requests a second of an empty route, interleaved."""
    ours, bare = [], []
    async with started(sys.executable, "-m", "benchmarks.sessions.bare") as server:
        url = f"http://127.0.0.1:{await server.hear()}"
        for _ in range(ROUNDS):
            bare.append(await rate(url, _empty, connections=CONNECTIONS, seconds=ROUND_SECONDS))
            ours.append(
                await rate(
                    stack.url,
                    negotiations.whole,
                    api_key=stack.api_key,
                    connections=CONNECTIONS,
                    seconds=ROUND_SECONDS,
                )
            )
    return statistics.median(ours), statistics.median(bare)


async def flush(
    stack: Stack, negotiations: Negotiations, gateway: Program
) -> tuple[int, float] | None:
    """Return how many messages eight candidates are for the gateway, and how many round trips they
    take to be accepted; None where the front door takes no candidates.
    """
    rtt = round_trip(rtt=FLUSH_RTT)
    spent: list[float] = []
    with delayed(stack.url.removeprefix("http://"), rtt=FLUSH_RTT) as link:
        async with opened_caller(f"http://{link.address}", stack.api_key) as caller:
            if not await negotiations.can_trickle(caller):
                return None
            before = int(await gateway.ask("batches"))
            for _ in range(FLUSHES):
                session_id = await negotiations.open(caller, "trickle")
                await negotiations.offer(caller, session_id)
                path = f"/v1/sessions/{session_id}/candidates"
                begun = time.perf_counter()
                status, given = await caller.call("POST", path, {"candidates": CANDIDATES})
                spent.append(time.perf_counter() - begun)
                assert status == 200, given
                outcomes = given["outcomes"]
                assert isinstance(outcomes, list)
                assert [str(each).lower() for each in outcomes] == ["accepted"] * len(CANDIDATES)
            batches = int(await gateway.ask("batches")) - before
    return round(batches / FLUSHES), round(statistics.median(spent) / rtt, 3)


async def idle_kb(stack: Stack, negotiations: Negotiations) -> float:
    """Return signalling's resident memory for each watched session that is connected and idle, in
    kB; raises NotImplementedError where sessions cannot be watched.
    """
    async with AsyncExitStack() as channels:
        watching = Watching(stack=stack, negotiations=negotiations, channels=channels)
        await watching.more(WATCHED_PER_CHANNEL)  # what the first ones allocate is not theirs
        before = _resident(stack.pids["signalling"])
        for _ in range(IDLE // WATCHED_PER_CHANNEL):
            await watching.more(WATCHED_PER_CHANNEL)
        return (_resident(stack.pids["signalling"]) - before) / IDLE / 1000


class Watching:
    """Sessions that are watched over gRPC, many to a channel."""

    def __init__(
        self, *, stack: Stack, negotiations: Negotiations, channels: AsyncExitStack
    ) -> None:
        self._stack = stack
        self._negotiations = negotiations
        self._channels = channels
        self._metadata = (("authorization", f"Bearer {stack.api_key}"),)
        self._streams: list[object] = []

    async def more(self, count: int) -> None:
        """Open, connect and watch some more."""
        opened: list[str] = []

        async def open_some() -> None:
            async with opened_caller(self._stack.url, self._stack.api_key) as caller:
                while len(opened) < count:
                    opened.append("")
                    place = len(opened) - 1
                    opened[place] = await self._negotiations.open(caller)
                    offer = f"{OFFER}a=bench:idle\r\n"
                    await self._negotiations.offer(caller, opened[place], offer)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(open_some())
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = await self._channels.enter_async_context(
            grpc.aio.insecure_channel(self._stack.grpc, options=options)
        )
        stub: rpc.SessionServiceAsyncStub = rpc.SessionServiceStub(channel)
        for each in opened:
            request = pb.WatchSessionRequest(session_id=each)
            stream = stub.WatchSession(request, metadata=self._metadata)
            self._streams.append(stream)
            try:
                await stream.read()
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise NotImplementedError from error
                raise


def _resident(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


async def with_stub(recording: Recording, stack: Stack, launch_id: str) -> None:
    """Measure all of it."""
    metrics = recording.metrics
    negotiations = Negotiations(launch_id=launch_id)
    async with stub_gateway(stack) as gateway:
        metrics["signalling_share_ms"] = await share_ms(stack, negotiations)
        recording.notes.append(
            "signalling_share_ms is the whole offer over REST to a gateway that answers at once:"
            " client, front door, Redis, gRPC and that gateway"
        )
        ours, bare = await rates(stack, negotiations)
        metrics["negotiations_per_s"] = round(ours, 1)
        recording.peers["bare_fastapi_per_s"] = round(bare, 1)
        metrics["negotiations_vs_bare_fastapi"] = round(ours / bare, 4)
        flushed = await flush(stack, negotiations, gateway)
        if flushed is None:
            recording.notes.append("this signalling takes no candidates: nothing is flushed")
        metrics["flush_rpcs_for_8_candidates"] = None if flushed is None else flushed[0]
        metrics["flush_8_ms_over_rtt"] = None if flushed is None else flushed[1]
        try:
            metrics["session_idle_kb"] = round(await idle_kb(stack, negotiations), 1)
            recording.notes.append(f"session_idle_kb: {IDLE} sessions, watched over gRPC")
        except NotImplementedError:
            metrics["session_idle_kb"] = None
            recording.notes.append("session_idle_kb: this signalling lets nobody watch sessions")
