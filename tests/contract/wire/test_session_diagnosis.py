"""A diagnosis against a front door, a real gateway and a real TURN server, with one fault each."""

from __future__ import annotations

import asyncio
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from opentelemetry.sdk.trace import TracerProvider

from fairlead_sdk.client import FrontDoor
from fairlead_sdk.diagnosis import Asked, Check, Diagnosis, IcePath, Outcome, Seen, diagnose_mesh
from fairlead_sdk.errors import NotFound
from fairlead_sdk.mesh_probes import MeshProbes
from fairlead_sdk.probed_sessions import ProbedSessions
from relay_gateway.settings import Settings
from relay_gateway.wiring import build
from signalling.ice_servers import IcePolicy, IceServer
from tests.coturn import coturn_server
from tests.eventually import eventually
from tests.fakes.port_worker import open_worker
from tests.fakes.scripted_sessions import ScriptedSessions
from tests.fakes.scripted_signalling import ScriptedSignalling, serve_signalling
from tests.fakes.session_door import KEY, SessionDoor, serve_sessions

pytestmark = pytest.mark.asyncio

LAUNCH = "lch_test"
# RFC 5737: nobody has it. A packet to it is lost.
NOBODY = "192.0.2.1"
SESSION = "ses_" + "a" * 26


@asynccontextmanager
async def gateway() -> AsyncIterator[ScriptedSignalling]:
    """Run a gateway with signalling that wants whatever it is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/signalling.sock"
        chosen = Settings(
            signalling=address,
            http_bind="127.0.0.1:0",
            tcp_bind="127.0.0.1:0",
            workers_bind=f"unix:{folder}/relay.sock",
        )
        async with (
            open_worker() as worker,
            serve_signalling(worker, address) as signalling,
            build(chosen, TracerProvider(shutdown_on_exit=False)),
        ):
            await signalling.until(lambda: signalling.is_connected)
            yield signalling


async def held() -> str:
    return LAUNCH


async def carrier_works(target: str, carrier: str) -> Seen:
    return Seen(sentence=f"{carrier} leads to {target}.")


async def diagnosed(
    url: str,
    asked: Asked | None = None,
    *,
    key: str = KEY,
    seconds: float = 60.0,
    target: Callable[[], Awaitable[str]] = held,
) -> Diagnosis:
    """Diagnose and leave nothing open."""
    asked = asked or Asked()
    async with FrontDoor(url=url, api_key=key) as door:
        sessions = ProbedSessions(door=door, asked=asked, connect_seconds=seconds)
        probes = MeshProbes(
            door=door,
            has_key=bool(key),
            find_target=target,
            path=asked.path,
            sessions=sessions,
            probe_carrier=carrier_works,
        )
        try:
            return await diagnose_mesh(asked, probes.looks, now=asyncio.get_running_loop().time)
        finally:
            await sessions.close()


def outcomes(found: Diagnosis) -> dict[Check, Outcome]:
    return {finding.check: finding.outcome for finding in found.findings}


def fault(found: Diagnosis) -> tuple[Check, str]:
    """Return the one thing that fails, and its reason; it has a sentence and a remedy."""
    (finding,) = found.faults
    assert not found.works
    assert finding.error is not None
    assert finding.sentence
    assert finding.error.remedy
    return finding.check, finding.error.reason


async def test_everything_works_and_nothing_stays() -> None:
    async with (
        gateway() as signalling,
        serve_sessions(door := SessionDoor(api=ScriptedSessions(signalling))) as url,
    ):
        found = await diagnosed(url, Asked(hold_seconds=0.1))
        assert found.works, found
        assert outcomes(found)[Check.HOLD] is Outcome.WORKS
        assert outcomes(found)[Check.STUN] is Outcome.NOT_CONFIGURED
        assert door.opened == [{"launch_id": LAUNCH, "mode": "complete"}]
        assert door.closed == ["ses_1"]
        opening = next(each for each in found.findings if each.check is Check.CONNECTION)
        assert opening.milliseconds["offer_to_open_ms"] > 0
        await signalling.until(lambda: bool(signalling.closed("ses_1")))


@pytest.mark.slow
async def test_thirty_five_probes_at_once() -> None:
    async with (
        gateway() as signalling,
        serve_sessions(door := SessionDoor(api=ScriptedSessions(signalling))) as url,
    ):
        found = await diagnosed(url, Asked(probes=35), seconds=120)
        assert found.works, found
        assert len(door.closed) == 35

        async def held_sessions() -> int:
            return len(signalling.wanted)

        await eventually(held_sessions, lambda count: count == 0)


async def test_probes_that_are_refused_are_counted_and_the_others_connect() -> None:
    async with gateway() as signalling:
        door = SessionDoor(
            api=ScriptedSessions(signalling), problem=(429, "gateway_full"), problem_after=2
        )
        async with serve_sessions(door) as url:
            found = await diagnosed(url, Asked(probes=3))
    assert fault(found) == (Check.SESSION, "gateway_full")
    assert outcomes(found)[Check.SESSION] is Outcome.PARTLY
    assert outcomes(found)[Check.CONNECTION] is Outcome.WORKS


async def test_a_wrong_name_is_a_fault_of_dns() -> None:
    found = await diagnosed("http://front-door.invalid:7300")
    assert fault(found) == (Check.DNS, "name_unknown")


async def test_a_port_where_nobody_listens(unused_tcp_port: int) -> None:
    found = await diagnosed(f"http://127.0.0.1:{unused_tcp_port}")
    assert fault(found) == (Check.FRONT_DOOR, "mesh_unreachable")
    assert "refused" in found.faults[0].sentence
    found = await diagnosed(f"https://127.0.0.1:{unused_tcp_port}")
    assert "refused" in found.faults[0].sentence


async def test_a_page_is_no_front_door() -> None:
    async with serve_sessions(SessionDoor(is_other=True)) as url:
        assert fault(await diagnosed(url)) == (Check.FRONT_DOOR, "not_a_front_door")


async def test_tls_at_a_port_without_it() -> None:
    async with serve_sessions(SessionDoor()) as url:
        found = await diagnosed(url.replace("http:", "https:"))
    assert fault(found) == (Check.FRONT_DOOR, "mesh_unreachable")
    assert "does not speak TLS" in found.faults[0].sentence


@pytest.mark.parametrize(("key", "reason"), [("other", "key_refused"), ("", "key_missing")])
async def test_a_key_that_is_not_known(key: str, reason: str) -> None:
    async with serve_sessions(SessionDoor()) as url:
        found = await diagnosed(url, key=key)
    assert fault(found) == (Check.KEY, reason)
    assert outcomes(found)[Check.WEBSOCKET] is Outcome.NOT_TRIED


@pytest.mark.parametrize("end", ["refused", "closed"])
async def test_a_proxy_that_passes_no_websocket_stops_nothing_else(end: str) -> None:
    async with (
        gateway() as signalling,
        serve_sessions(SessionDoor(api=ScriptedSessions(signalling), socket_end=end)) as url,
    ):
        found = await diagnosed(url)
    assert fault(found) == (Check.WEBSOCKET, "websocket_refused")
    assert outcomes(found)[Check.CONNECTION] is Outcome.WORKS


async def test_no_gateway() -> None:
    async with serve_sessions(SessionDoor()) as url:
        assert fault(await diagnosed(url)) == (Check.SESSION, "gateway_unavailable")


async def test_a_launch_that_is_not_held_or_not_there() -> None:
    async def unknown() -> str:
        raise NotFound("No launch.", reason="launch_not_found", remedy="fairlead ps")

    async with serve_sessions(SessionDoor(problem=(409, "launch_not_held"))) as url:
        assert fault(await diagnosed(url)) == (Check.SESSION, "launch_not_held")
        assert fault(await diagnosed(url, target=unknown)) == (Check.SESSION, "launch_not_found")


def shut_off(answer: str, address: str) -> str:
    """Move the gateway to an address; its own checks would find the client, so spoil their key."""
    moved = re.sub(r"(a=candidate:\S+ \d udp \d+) \S+", rf"\1 {address}", answer)
    return re.sub(r"a=ice-pwd:\S+", f"a=ice-pwd:{'x' * 24}", moved)


async def test_a_gateway_at_an_address_that_nobody_has() -> None:
    def moved(answer: str) -> str:
        return shut_off(answer, NOBODY)

    async with gateway() as signalling:
        door = SessionDoor(api=ScriptedSessions(signalling), rewrite=moved)
        async with serve_sessions(door) as url:
            found = await diagnosed(url, seconds=1.0)
    assert fault(found) == (Check.UDP, "gateway_silent")
    assert NOBODY in found.faults[0].sentence
    assert outcomes(found)[Check.CONNECTION] is Outcome.NOT_TRIED
    assert door.closed == ["ses_1"]


async def test_an_answer_that_is_none() -> None:
    async with gateway() as signalling:
        door = SessionDoor(api=ScriptedSessions(signalling), rewrite=lambda answer: "v=0")
        async with serve_sessions(door) as url:
            assert fault(await diagnosed(url)) == (Check.OFFER, "answer_invalid")


async def test_an_answer_without_an_address() -> None:
    def without(answer: str) -> str:
        return re.sub("a=candidate:.*\r\n", "", shut_off(answer, NOBODY))

    async with (
        gateway() as signalling,
        serve_sessions(SessionDoor(api=ScriptedSessions(signalling), rewrite=without)) as url,
    ):
        found = await diagnosed(url, seconds=1.0)
    assert fault(found) == (Check.UDP, "gateway_without_address")


async def test_a_certificate_that_is_not_the_answers_is_a_failed_connection() -> None:
    def forged(answer: str) -> str:
        return re.sub(r"(a=fingerprint:\S+) ..", r"\1 00", answer)

    async with (
        gateway() as signalling,
        serve_sessions(SessionDoor(api=ScriptedSessions(signalling), rewrite=forged)) as url,
    ):
        found = await diagnosed(url)
    assert fault(found) == (Check.CONNECTION, "association_failed")


async def test_a_gateway_that_ends_while_the_connection_is_held() -> None:
    async with (
        gateway() as signalling,
        serve_sessions(SessionDoor(api=ScriptedSessions(signalling))) as url,
    ):

        async def end_it() -> None:
            await signalling.until(lambda: signalling.is_up("ses_1"))
            signalling.unwant("ses_1")

        ending = asyncio.create_task(end_it())
        found = await diagnosed(url, Asked(hold_seconds=60))
        await ending
    assert fault(found) == (Check.HOLD, "tunnel_lost")


def listed(*servers: IceServer) -> list[dict[str, object]]:
    return [
        {"urls": list(each.urls), "username": each.username, "credential": each.credential}
        for each in servers
    ]


async def test_stun_and_turn_servers_that_serve_and_one_with_another_secret(
    tmp_path: Path,
) -> None:
    with coturn_server(tmp_path) as coturn:
        servers = coturn.servers(lifetime=timedelta(hours=1)).for_session(
            SESSION, IcePolicy.ALL, now=datetime.now(UTC)
        )
        async with gateway() as signalling:
            door = SessionDoor(api=ScriptedSessions(signalling), ice_servers=listed(*servers))
            async with serve_sessions(door) as url:
                found = await diagnosed(url)
                assert found.works, found
                assert outcomes(found)[Check.STUN] is Outcome.WORKS
                assert outcomes(found)[Check.TURN] is Outcome.WORKS
                found = await diagnosed(url, Asked(path=IcePath.RELAY))
                assert found.works, found
                assert outcomes(found)[Check.TURN] is Outcome.WORKS
                assert Check.STUN not in outcomes(found)
                found = await diagnosed(url, Asked(path=IcePath.DIRECT))
                assert found.works, found
                assert Check.TURN not in outcomes(found)
                assert door.opened[-1]["ice_policy"] == "direct"
                door.ice_servers = listed(
                    *(IceServer(each.urls, each.username, "wrong") for each in servers)
                )
                found = await diagnosed(url)
                assert fault(found) == (Check.TURN, "credential_refused")
                assert outcomes(found)[Check.CONNECTION] is Outcome.WORKS
                found = await diagnosed(url, Asked(path=IcePath.RELAY))
                assert fault(found) == (Check.TURN, "credential_refused")
                assert outcomes(found)[Check.OFFER] is Outcome.NOT_TRIED


async def test_a_relay_that_is_asked_for_and_not_there() -> None:
    async with (
        gateway() as signalling,
        serve_sessions(SessionDoor(api=ScriptedSessions(signalling))) as url,
    ):
        found = await diagnosed(url, Asked(path=IcePath.RELAY))
    assert fault(found) == (Check.TURN, "relay_unavailable")
    assert outcomes(found)[Check.UDP] is Outcome.NOT_TRIED


async def test_a_stun_server_that_is_silent_explains_a_silent_gateway() -> None:
    silent = socket.socket(type=socket.SOCK_DGRAM)
    silent.bind(("127.0.0.1", 0))
    with silent:
        stun = IceServer((f"stun:127.0.0.1:{silent.getsockname()[1]}",))

        def shut(answer: str) -> str:
            return shut_off(answer, "8.8.8.8")

        async with gateway() as signalling:
            door = SessionDoor(
                api=ScriptedSessions(signalling), ice_servers=listed(stun), rewrite=shut
            )
            async with serve_sessions(door) as url:
                found = await diagnosed(url, seconds=2.0)
    assert [finding.check for finding in found.faults] == [Check.STUN, Check.UDP]
    assert "seems to block UDP" in found.faults[1].sentence


async def test_leaving_in_the_middle_closes_what_was_opened() -> None:
    before = len(psutil.Process().net_connections())
    async with gateway() as signalling:
        door = SessionDoor(api=ScriptedSessions(signalling))
        async with serve_sessions(door) as url:
            task = asyncio.create_task(diagnosed(url, Asked(hold_seconds=60)))
            await signalling.until(lambda: signalling.is_up("ses_1"))
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
            assert door.closed == ["ses_1"]

    async def sockets() -> int:
        return len(psutil.Process().net_connections())

    await eventually(sockets, lambda count: count <= before)
