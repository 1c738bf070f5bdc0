"""The looks of a diagnosis that use the network: the front door, and the servers it hands out."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from fairlead_sdk import diagnosis_faults as faults
from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.diagnosis import CARRIERS, Check, IcePath, Look, Seen
from fairlead_sdk.errors import FairleadError, MeshUnavailable, Unauthenticated
from fairlead_sdk.ice_servers import IceServer
from fairlead_sdk.probed_sessions import ProbedSessions
from fairlead_sdk.session_errors import WebrtcMissing

SOCKET_SECONDS = 10.0
# No execution has this id: the front door says so over the WebSocket, which is all that is wanted.
_NO_EXECUTION = f"exe_{'a' * 26}"

_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})

FindTarget = Callable[[], Awaitable[str]]
ProbeCarrier = Callable[[str, str], Awaitable[Seen]]
"""Attaches a tunnel to a target by the carrier of a name; raises FairleadError."""


class MeshProbes:
    """Looks at one mesh; `find_target` gives the id of a launch or a sandbox to connect to, and
    `probe_carrier` tries one carrier of tunnels.
    """

    def __init__(
        self,
        *,
        door: FrontDoor,
        has_key: bool,
        find_target: FindTarget,
        path: IcePath,
        sessions: ProbedSessions,
        probe_carrier: ProbeCarrier,
    ) -> None:
        self._probe_carrier = probe_carrier
        self._target = ""
        self._door = door
        self._has_key = has_key
        self._find_target = find_target
        self._path = path
        self._sessions = sessions
        parts = urlsplit(door.url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._proxy = _proxy_for(door.url)

    @property
    def looks(self) -> Mapping[Check, Look]:
        """Return how to look at each check."""
        return {
            Check.DNS: self._resolve,
            Check.FRONT_DOOR: self._knock,
            Check.KEY: self._show_key,
            Check.WEBSOCKET: self._open_socket,
            Check.SESSION: self._open_sessions,
            Check.STUN: self._ask_stun,
            Check.TURN: self._ask_turn,
            Check.OFFER: self._sessions.offer,
            Check.UDP: self._sessions.find_paths,
            Check.CONNECTION: self._sessions.connect,
            Check.HOLD: self._sessions.hold,
            **{check: partial(self._attach, name) for check, name in CARRIERS.items()},
        }

    async def _resolve(self) -> Seen:
        with suppress(ValueError):
            return Seen(sentence=f"{ip_address(self._host)} is an address, no name.")
        if self._proxy:
            return Seen(sentence=f"The proxy of {self._proxy} resolves it.", is_configured=False)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise faults.name_unknown(self._host) from error
        addresses = dict.fromkeys(str(address[0]) for *_, address in found)
        return Seen(sentence=f"{self._host} is {', '.join(addresses)}.")

    async def _knock(self) -> Seen:
        url = self._door.url
        try:
            answer = await self._door.get("/healthz")
        except MeshUnavailable as error:
            raise faults.not_reached(url, error) from error
        except FairleadError as error:
            if error.reason.startswith("http_"):
                status = error.reason.removeprefix("http_")
                raise faults.not_a_front_door(url, status) from error
            if error.reason == "answer_malformed":
                raise faults.not_a_front_door(url, "") from error
            raise
        if form.text(answer, "status") != "ok":
            raise faults.not_a_front_door(url, "")
        return Seen(sentence=f"{url} answers.")

    async def _show_key(self) -> Seen:
        try:
            answer = await self._door.get("/v1/gateways")
        except Unauthenticated as error:
            raise faults.key_refused(has_key=self._has_key) from error
        count = len(form.children(answer, "gateways"))
        return Seen(sentence=f"It is accepted; gateways that are connected: {count}.")

    async def _open_socket(self) -> Seen:
        try:
            async with (
                asyncio.timeout(SOCKET_SECONDS),
                self._door.socket(f"/v1/executions/{_NO_EXECUTION}/terminal") as link,
            ):
                await link.send(json.dumps({"type": "open"}))
                said = await link.receive()
        except TimeoutError:
            raise faults.websocket_refused(None, proxy=self._proxy) from None
        except FairleadError as error:
            raise faults.websocket_refused(error, proxy=self._proxy) from error
        if said is None:
            raise faults.websocket_refused(None, proxy=self._proxy)
        return Seen(sentence="It opens and carries messages both ways.")

    async def _open_sessions(self) -> Seen:
        self._target = await self._find_target()
        return await self._sessions.open(self._target)

    async def _attach(self, carrier: str) -> Seen:
        return await self._probe_carrier(self._target, carrier)

    async def _ask_stun(self) -> Seen:
        seen = await _ask_servers(
            self._sessions.servers, "stun", "{url} sees this machine at {at}."
        )
        if seen.is_configured:
            self._sessions.stun_works = len(seen.failures) < seen.tried
        return seen

    async def _ask_turn(self) -> Seen:
        seen = await _ask_servers(self._sessions.servers, "turn", "{url} relays at {at}.")
        if not seen.is_configured and self._path is IcePath.RELAY:
            raise faults.turn_missing()
        return seen


async def _ask_servers(servers: Sequence[IceServer], scheme: str, sentence: str) -> Seen:
    """Ask all servers of a kind at once; those that this machine cannot ask are left out."""
    asked = [
        (url, server) for server in servers for url in server.urls if url.lower().startswith(scheme)
    ]
    if not asked:
        return Seen(sentence="Signalling hands out none.", is_configured=False)
    try:
        from fairlead_sdk.ice_probe import IceOutcome, probe_ice_server
    except ImportError as error:
        raise WebrtcMissing from error
    found = await asyncio.gather(
        *(
            probe_ice_server(url, username=server.username, credential=server.credential)
            for url, server in asked
        )
    )
    tried = [each for each in found if each.outcome is not IceOutcome.UNSUPPORTED]
    if not tried:
        return Seen(sentence=f"{found[0].url}: {found[0].sentence}", is_configured=False)
    works = [each for each in tried if each.outcome is IceOutcome.OK]
    return Seen(
        sentence=" ".join(sentence.format(url=each.url, at=each.address) for each in works),
        tried=len(tried),
        failures=[
            faults.ice_server_fails(each.url, each.outcome.value, each.sentence, each.remedy)
            for each in tried
            if each.outcome is not IceOutcome.OK
        ],
    )


def _proxy_for(url: str) -> str:
    """Name the variable that has a proxy for a URL; empty where the URL is reached directly."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in _LOCAL or proxy_bypass(host):
        return ""
    proxies = getproxies()
    return next((f"{kind.upper()}_PROXY" for kind in (parts.scheme, "all") if kind in proxies), "")
