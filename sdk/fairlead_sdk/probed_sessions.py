"""Sessions that are probed at the same time: each step is taken by all that have come so far."""

from __future__ import annotations

import asyncio
import importlib
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from fairlead_sdk import diagnosis_faults as faults
from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.diagnosis import Asked, IcePath, Seen
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.forwarding import CONNECT_SECONDS
from fairlead_sdk.ice_servers import IceServer, ice_servers_of
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.session_errors import WebrtcMissing
from fairlead_sdk.session_opening import GOODBYE_SECONDS


class Peer(Protocol):
    """A client's end of an association; see `probing_peer`."""

    async def offer(self) -> str:
        """Return the offer with all candidates."""
        ...

    async def accept(self, answer: str) -> None:
        """Take the gateway's answer and begin to connect; raises FairleadError."""
        ...

    async def path_found(self) -> bool:
        """Wait until a path to the gateway is found, or none will be."""
        ...

    async def opened(self) -> bool:
        """Wait until channels can be opened, or never can."""
        ...

    async def ended(self) -> None:
        """Wait until the association has failed or ended."""
        ...

    async def close(self) -> None:
        """Free everything, in a bounded time."""
        ...


MakePeer = Callable[[Sequence[IceServer], IcePath], Awaitable[Peer]]


async def load_peer(servers: Sequence[IceServer], path: IcePath) -> Peer:
    """Make a peer of the library that is installed; raises WebrtcMissing."""
    try:
        await asyncio.to_thread(importlib.import_module, "aiortc")  # about a second
        from fairlead_sdk.probing_peer import ProbingPeer
    except ImportError as error:
        raise WebrtcMissing from error
    return ProbingPeer(servers=servers, path=path)


@dataclass(slots=True)
class _Probe:
    """One session; `sent_at` and `open_at` are the event loop's seconds."""

    session_id: str
    servers: tuple[IceServer, ...]
    peer: Peer | None = None
    sent_at: float = 0.0
    open_at: float = 0.0
    addresses: tuple[str, ...] = ()


Step = Callable[[_Probe, Peer], Awaitable[None]]


class ProbedSessions:
    """Opens sessions and takes them to an open connection, step by step.

    A session that fails at a step takes no further one. `connect_seconds` bounds the time from an
    offer to the open connection.
    """

    def __init__(
        self,
        *,
        door: FrontDoor,
        asked: Asked,
        make_peer: MakePeer = load_peer,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._door = door
        self._asked = asked
        self._make_peer = make_peer
        self._connect_seconds = connect_seconds
        self._opened: list[_Probe] = []
        self._going: list[tuple[_Probe, Peer]] = []
        self.stun_works: bool | None = None
        """What STUN servers said, where any was asked: it tells what a silent gateway means."""

    @property
    def servers(self) -> tuple[IceServer, ...]:
        """Return the STUN and TURN servers of the first session."""
        return self._opened[0].servers

    async def open(self, target: str) -> Seen:
        """Open the sessions to a launch or a sandbox; raises FairleadError."""
        body: JsonObject = {"launch_id": target, "mode": "complete"}
        if self._asked.path is not IcePath.ALL:
            body["ice_policy"] = self._asked.path.value

        async def open_one() -> None:
            answer = await self._door.post("/v1/sessions", body)
            session_id = form.text(answer, "session_id")
            self._opened.append(_Probe(session_id, ice_servers_of(answer)))

        count = self._asked.probes
        ended = await asyncio.gather(*(open_one() for _ in range(count)), return_exceptions=True)
        failures: list[FairleadError] = []
        for each in ended:
            match each:
                case FairleadError():
                    failures.append(each)
                case BaseException():
                    raise each
        what = "A session is" if count == 1 else f"{count} sessions are"
        return Seen(sentence=f"{what} open to {target}.", tried=count, failures=failures)

    async def offer(self) -> Seen:
        """Have the gateway answer an offer of each, and begin to connect."""
        for probe in self._opened:
            probe.peer = await self._make_peer(probe.servers, self._asked.path)
            self._going.append((probe, probe.peer))
        return await self._all(self._offer, "The gateway answers.", "offer_to_answer_ms")

    async def find_paths(self) -> Seen:
        """Wait until each has a path to the gateway."""
        return await self._all(self._find_path, "The gateway is reached.", "offer_to_path_ms")

    async def connect(self) -> Seen:
        """Wait until each could open channels."""
        return await self._all(self._connect, "It is open.", "offer_to_open_ms")

    async def hold(self) -> Seen:
        """Stay for the seconds that were asked."""
        seconds = self._asked.hold_seconds
        return await self._all(self._hold, f"It stays for {seconds:g} seconds.", "")

    async def close(self) -> None:
        """Close every peer and session; what cannot be closed ends by itself."""
        await asyncio.gather(*(self._close(probe) for probe in self._opened))

    async def _all(self, step: Step, sentence: str, name: str) -> Seen:
        """Take a step with all that go on, and say how long they took since their offer."""
        loop = asyncio.get_running_loop()
        spans: list[float] = []

        async def take(probe: _Probe, peer: Peer) -> None:
            await step(probe, peer)
            spans.append((loop.time() - probe.sent_at) * 1000)

        going = self._going
        ended = await asyncio.gather(
            *(take(probe, peer) for probe, peer in going), return_exceptions=True
        )
        failures: list[FairleadError] = []
        for each in ended:
            match each:
                case FairleadError():
                    failures.append(each)
                case BaseException():
                    raise each
        self._going = [each for each, error in zip(going, ended, strict=True) if error is None]
        counted = f"All {len(going)}: {sentence}" if len(going) > 1 else sentence
        milliseconds = {name: statistics.median(spans)} if spans and name else {}
        if len(spans) > 1 and name:
            milliseconds[f"longest_{name}"] = max(spans)
        return Seen(
            sentence=counted, tried=len(going), failures=failures, milliseconds=milliseconds
        )

    async def _offer(self, probe: _Probe, peer: Peer) -> None:
        offer = await peer.offer()
        probe.sent_at = asyncio.get_running_loop().time()
        path = f"/v1/sessions/{quote(probe.session_id, safe='')}/offer"
        answer = form.text(await self._door.post(path, {"offer": offer}), "answer")
        probe.addresses = faults.candidate_addresses(answer)
        await peer.accept(answer)

    async def _find_path(self, probe: _Probe, peer: Peer) -> None:
        if not await self._in_time(probe, peer.path_found()):
            raise faults.gateway_silent(probe.addresses, stun_works=self.stun_works)

    async def _connect(self, probe: _Probe, peer: Peer) -> None:
        if not await self._in_time(probe, peer.opened()):
            raise faults.association_failed(self._connect_seconds)
        probe.open_at = asyncio.get_running_loop().time()

    async def _hold(self, probe: _Probe, peer: Peer) -> None:
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._asked.hold_seconds):
                await peer.ended()
            raise faults.association_lost(loop.time() - probe.open_at)

    async def _in_time(self, probe: _Probe, fact: Awaitable[bool]) -> bool:
        try:
            async with asyncio.timeout_at(probe.sent_at + self._connect_seconds):
                return await fact
        except TimeoutError:
            return False

    async def _close(self, probe: _Probe) -> None:
        if probe.peer is not None:
            await probe.peer.close()
        with suppress(FairleadError, TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._door.delete(f"/v1/sessions/{quote(probe.session_id, safe='')}")
