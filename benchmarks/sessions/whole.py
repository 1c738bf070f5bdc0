"""Whole sessions to a sandbox: from the offer to the answer, to an open connection, and over a
wide-area link to the first byte of a program.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.local_stack import Stack, make_repository
from benchmarks.recording import QUICK, Recording, median_ms
from benchmarks.sessions.datagrams import lengthened
from benchmarks.workspaces.link import RTT_SECONDS, delayed, round_trip
from fairlead_sdk import AsyncFairlead
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.fairlead import AsyncLaunch
from fairlead_sdk.forwarding import open_session, open_tunnel
from fairlead_sdk.records import OutputRecord
from fairlead_sdk.session_records import COMPLETE, OfferReply
from fairlead_sdk.sessions import AsyncSessions
from fairlead_tunnel.aiortc_core import AiortcCore
from fairlead_tunnel.cores import cores, preferred_core

SESSIONS = 5 if QUICK else 60
FAR_SESSIONS = 1 if QUICK else 7
PORT = 39217
TRIPS = {
    "aiortc": "1 offer and answer, 1 check of the path, DTLS 2, SCTP 2, 1 for the channel with its"
    " first byte",
    "native": "1 offer and answer, 1 check of the path, DTLS 2, 1 for the channel with its first"
    " byte; SCTP's handshake is in the descriptions where both ends know that",
}
# Says a byte to whoever connects.
PROGRAM = (
    "import socket\n"
    f"listener = socket.create_server(('127.0.0.1', {PORT}))\n"
    "print('listens', flush=True)\n"
    "while True:\n"
    "    connection, _ = listener.accept()\n"
    "    connection.sendall(b'x')\n"
    "    connection.close()\n"
)


@asynccontextmanager
async def held_launch(stack: Stack) -> AsyncIterator[AsyncLaunch]:
    """Hold a launch with a program that listens."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory:
        repository = make_repository(Path(directory) / "repository", files=3, seed=1)
        async with (
            AsyncFairlead(url=stack.url, api_key=stack.api_key) as client,
            client.launch(repository.path) as launch,
        ):
            command = await launch.commands.start(["python3", "-c", PROGRAM])
            async for piece in command.output():
                match piece.content:
                    case OutputRecord(content=content) if b"listens" in content:
                        break
            yield launch


class TimedSessions(AsyncSessions):
    """Sessions that note when an offer was sent, and when its answer was there, in seconds."""

    def __init__(self, *, door: FrontDoor) -> None:
        super().__init__(door=door)
        self.offered_at = 0.0
        self.answered_at = 0.0

    async def send_offer(self, session_id: str, offer: str) -> OfferReply:
        """Have the gateway answer."""
        self.offered_at = time.perf_counter()
        answer = await super().send_offer(session_id, offer)
        self.answered_at = time.perf_counter()
        return answer


async def on_loopback(recording: Recording, stack: Stack, launch_id: str) -> None:
    """Measure offers to answers and to open connections, with each core in the client."""
    metrics = recording.metrics
    metrics["native_offer_to_open_p50_ms"] = None
    async with AsyncFairlead(url=stack.url, api_key=stack.api_key) as client:
        for core in cores():
            sessions = TimedSessions(door=client.door)
            answers, opens = [], []
            for _ in range(SESSIONS + 1):
                async with open_session(sessions, launch_id, core=core):
                    opens.append(time.perf_counter() - sessions.offered_at)
                    answers.append(sessions.answered_at - sessions.offered_at)
            # The first one makes both ends import their library.
            metrics[f"{core.name}_offer_to_open_p50_ms"] = median_ms(opens[1:])
            if isinstance(core, AiortcCore):
                metrics["complete_offer_to_answer_p50_ms"] = median_ms(answers[1:])


class FarSessions(TimedSessions):
    """Sessions whose peers are a link apart."""

    def __init__(self, *, door: FrontDoor, links: AsyncExitStack) -> None:
        super().__init__(door=door)
        self._links = links

    async def send_offer(self, session_id: str, offer: str) -> OfferReply:
        """Have the gateway answer, and put the link between the two descriptions."""
        async with asyncio.timeout(60):
            pair = await self._links.enter_async_context(lengthened(offer, rtt=RTT_SECONDS))
            answered = await super().send_offer(session_id, pair.offer)
            return replace(answered, answer=await pair.answer(answered.answer))


async def over_the_link(recording: Recording, stack: Stack, launch_id: str) -> None:
    """Measure from the offer to the first byte of a program, both wires being long."""
    rtt = round_trip()
    core = preferred_core()
    spent = []
    with delayed(stack.url.removeprefix("http://")) as link:
        async with AsyncFairlead(url=f"http://{link.address}", api_key=stack.api_key) as client:
            for _ in range(FAR_SESSIONS):
                async with AsyncExitStack() as links:
                    sessions = FarSessions(door=client.door, links=links)
                    async with open_tunnel(sessions, launch_id, mode=COMPLETE, core=core) as tunnel:
                        local = await tunnel.listen(PORT)
                        reader, writer = await asyncio.open_connection(local.host, local.port)
                        assert await reader.readexactly(1) == b"x"
                        spent.append(time.perf_counter() - sessions.offered_at)
                        writer.close()
    recording.metrics["link_rtt_ms"] = round(rtt * 1000, 2)
    recording.metrics["open_over_rtt"] = round(statistics.median(spent) / rtt, 3)
    recording.notes.append(
        f"round trips of open_over_rtt with {core.name}: {TRIPS[core.name]}; both wires hold back"
        " 46 ms each way"
    )
