"""Fakes of what sessions need: a store, a directory, launches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from chassis.errors import FairleadError
from signalling.gateway import Gateway, Meeting
from signalling.ice_servers import IceServers
from signalling.launch import Launch, LaunchState
from signalling.launch_errors import LaunchNotFound, LaunchNotHeld
from signalling.session import Session
from signalling.session_ports import Notice, Reached
from signalling.tunnel import TunnelTerms
from tests.fakes.clock import START, FakeClock


class FakeSessionStore:
    """Records in a dictionary; `forget` is a store that lost everything.

    `replica` is the same store as another process has it. `before_save` runs where a write is on
    its way, `raising` is raised by everything while it is set, no notice comes while it `is_deaf`.
    """

    def __init__(self, clock: FakeClock, shared: FakeSessionStore | None = None) -> None:
        self._clock = clock
        self._records: dict[str, tuple[Session, float]] = shared._records if shared else {}
        self._ended: set[str] = shared._ended if shared else set()
        self._replicas: list[FakeSessionStore] = shared._replicas if shared else []
        self._replicas.append(self)
        self._changes: asyncio.Queue[Notice | None] = asyncio.Queue()
        self._changes.put_nowait(None)
        self.is_deaf = False
        self.before_save: Callable[[Session], Awaitable[None]] | None = None
        self.raising: FairleadError | None = None

    def replica(self) -> FakeSessionStore:
        return FakeSessionStore(self._clock, self)

    def forget(self) -> None:
        self._records.clear()

    def hear_again(self) -> None:
        """Make the subscription anew."""
        self.is_deaf = False
        self._changes.put_nowait(None)

    async def changes(self) -> AsyncGenerator[Sequence[Notice] | None, None]:
        while True:
            notice = await self._changes.get()
            yield None if notice is None else [notice]

    async def get_many(self, session_ids: Sequence[str]) -> Sequence[Session]:
        found = [await self.get(session_id) for session_id in session_ids]
        return [session for session in found if session is not None]

    async def get(self, session_id: str) -> Session | None:
        if self.raising is not None:
            raise self.raising
        record = self._records.get(session_id)
        if record is None or record[1] <= self._clock.monotonic():
            return None
        return record[0]

    async def save(self, session: Session, *, ttl_seconds: float, restore: bool = False) -> bool:
        if self.before_save is not None:
            await self.before_save(session)
        stored = await self.get(session.session_id)
        if stored is None:
            if session.version == 1 and session.launch_id in self._ended:
                raise LaunchNotHeld(session.launch_id)
            fits = session.version == 1 or restore
        else:
            fits = stored == session or stored.version == session.version - 1
        if fits:
            self._records[session.session_id] = (session, self._clock.monotonic() + ttl_seconds)
            for other in self._replicas:
                if other is not self and not other.is_deaf:
                    other._changes.put_nowait(Notice(session.session_id, session.gateway_id))
        return fits

    async def end_launch(self, launch_id: str, *, remembered_seconds: float) -> None:
        if self.raising is not None:
            raise self.raising
        self._ended.add(launch_id)

    async def of_gateway(self, gateway_id: str) -> Sequence[Session]:
        return [found for found in await self._open() if found.gateway_id == gateway_id]

    async def of_launch(self, launch_id: str) -> Sequence[Session]:
        return [found for found in await self._open() if found.launch_id == launch_id]

    async def of_tenant(
        self, tenant: str, *, after: str, size: int
    ) -> tuple[Sequence[Session], str]:
        found = [
            found
            for found in await self._open()
            if found.tenant == tenant and found.session_id > after
        ]
        return found[:size], found[size - 1].session_id if len(found) > size else ""

    async def _open(self) -> Sequence[Session]:
        found = [await self.get(session_id) for session_id in sorted(self._records)]
        return [session for session in found if session is not None and not session.is_closed]


class FakeGatewayDirectory:
    """Registrations in a dictionary, without leases; `raising` is raised by everything while it is
    set.
    """

    def __init__(self) -> None:
        self._gateways: dict[str, Gateway] = {}
        self.raising: FairleadError | None = None

    async def put(self, gateway: Gateway) -> None:
        self._ask()
        self._gateways[gateway.gateway_id] = gateway

    async def remove(self, gateway_id: str) -> None:
        self._ask()
        self._gateways.pop(gateway_id, None)

    def _ask(self) -> None:
        if self.raising is not None:
            raise self.raising

    async def list(self) -> Sequence[Gateway]:
        self._ask()
        return [self._gateways[gateway_id] for gateway_id in sorted(self._gateways)]


class FakeReachedLaunches:
    """Launches that a test puts there."""

    def __init__(self) -> None:
        self._launches: dict[tuple[str, str], Launch] = {}
        self.opened: list[tuple[str, int, Meeting]] = []
        self.trace = ""

    def traceparent(self, tenant: str, launch_id: str) -> str:
        return self.trace if (tenant, launch_id) in self._launches else ""

    def put(self, tenant: str, launch: Launch) -> None:
        self._launches[tenant, launch.launch_id] = launch

    async def get(self, tenant: str, launch_id: str) -> Launch:
        launch = self._launches.get((tenant, launch_id))
        if launch is None:
            raise LaunchNotFound(launch_id)
        return launch

    async def reached(self, tenant: str, launch_id: str) -> Reached:
        launch = await self.get(tenant, launch_id)
        has_both = bool(launch.workspace_id and launch.sandbox_id)
        return Reached(has_both, launch.released_at is not None, self.trace)

    async def open_port(self, tenant: str, launch_id: str, port: int, meeting: Meeting) -> None:
        await self.get(tenant, launch_id)
        self.opened.append((launch_id, port, meeting))


def held_launch(launch_id: str = "lch_" + "a" * 26) -> Launch:
    """Return a launch that runs and holds a workspace and a sandbox."""
    return Launch(
        launch_id=launch_id,
        state=LaunchState.RUNNING,
        created_at=START,
        project="project",
        commit="0" * 40,
        branch="main",
        arguments=("true",),
        keep=False,
        trace_id="0" * 32,
        expires_at=START + timedelta(minutes=30),
        host_id="hst_" + "a" * 26,
        workspace_id="wsp_" + "a" * 26,
        sandbox_id="sbx_" + "a" * 26,
        isolation="process",
    )


def bare_launch(launch_id: str = "lch_" + "b" * 26) -> Launch:
    """Return a launch that has no sandbox yet."""
    return replace(
        held_launch(launch_id), state=LaunchState.REQUESTED, workspace_id="", sandbox_id=""
    )


OFFER = "\r\n".join(
    [
        "v=0",
        "o=- 1 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 0.0.0.0",
        "a=mid:0",
        "a=ice-ufrag:abcd",
        "a=ice-pwd:abcdefghijklmnopqrstuvwx",
        "a=fingerprint:sha-256 " + ":".join(["AB"] * 32),
        "a=setup:actpass",
        "a=candidate:1 1 udp 2130706431 127.0.0.1 40000 typ host",
        "",
    ]
)
ANSWER = OFFER.replace("a=setup:actpass", "a=setup:active")
NO_SERVERS = IceServers(stun_urls=(), turn_urls=(), turn_secret="", lifetime=timedelta(hours=1))
TERMS = TunnelTerms(
    public_key=bytes(range(32)),
    ticket_secret=bytes(range(32, 64)),
    urls=("tcp://127.0.0.1:7311", "http://127.0.0.1:7310"),
)
"""What a gateway that takes tunnels says of them."""
MEETING = Meeting(address="unix:/relay", ticket=bytes(32))


def candidate(number: int) -> str:
    """Return one of many host candidates (RFC 8839, section 5.1)."""
    return f"candidate:{number} 1 udp 2130706431 127.0.0.1 {40_000 + number} typ host"
