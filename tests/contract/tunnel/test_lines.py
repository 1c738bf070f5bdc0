"""Tunnels of a client: cut, attached again, gone for good, replaced, refused."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import pytest

from fairlead_sdk.errors import FairleadError, NotFound, Unavailable
from fairlead_sdk.forwarding import LocalPortUnusable, TargetInvalid
from fairlead_sdk.local_connection import LocalConnection
from fairlead_sdk.local_sockets import LocalPathUnusable
from fairlead_sdk.session_errors import SessionEnded
from fairlead_sdk.session_records import SessionClosed
from fairlead_sdk.tunnel_drivers import pump_choice
from fairlead_sdk.tunnel_line import open_line
from fairlead_sdk.tunnel_sessions import TunnelUnreachable
from fairlead_tunnel.frames import Open, Segment, decode
from fairlead_tunnel.targets import Target
from tests.contract.tunnel.line_world import Gateway, Mesh, World, echo, world
from tests.contract.tunnel.test_socks import DONE, request
from tests.eventually import SECONDS, eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runs_on")]
CONTENT = secrets.token_bytes(4 * 1024 * 1024)


async def echoed(port: int, content: bytes = b"hello") -> bytes:
    """Send bytes and the end through a local port, and return what comes back until its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return await echoed_by(reader, writer, content)


async def echoed_by(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes
) -> bytes:
    async def send() -> None:
        writer.write(content)
        await writer.drain()
        writer.write_eof()

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        received = group.create_task(reader.read())
    writer.close()
    return received.result()


async def heard(port: int) -> bytes:
    """Return what a server says to who says nothing, until its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()


async def listening(it: World) -> int:
    target = Target(await it.serve(echo))
    return await it.ports.listen(target, host="127.0.0.1", port=0)


async def said(it: World, part: str) -> None:
    """Wait until something was said."""

    async def sentences() -> str:
        return " ".join(it.said)

    await eventually(sentences, lambda text: part in text)


async def test_a_local_port_leads_to_a_port_over_there() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        assert await echoed(port, CONTENT) == CONTENT
        assert (it.ports.traffic.sent, it.ports.traffic.received) == (len(CONTENT),) * 2
        await it.ports.traffic.wait_idle()
        assert it.refusals == []


async def test_an_open_leaves_with_the_first_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalConnection, "hold_seconds", SECONDS)
    async with asyncio.timeout(SECONDS), world() as it:
        port, take, opened = await listening(it), it.exit.driver.take, dict[int, bool]()

        def taken(batch: bytes) -> None:
            frames = decode(batch)[2]
            filled = {frame.channel for frame in frames if isinstance(frame, Segment)}
            for frame in frames:
                if isinstance(frame, Open):  # it is told again until it is acknowledged
                    opened.setdefault(frame.channel, frame.channel in filled)
            take(batch)

        monkeypatch.setattr(it.exit.driver, "take", taken)
        for _ in range(8):
            assert await echoed(port) == b"hello"
        assert opened == dict.fromkeys(range(1, 9), True)


async def test_a_server_may_speak_first() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        await echo(reader, writer)

    async with asyncio.timeout(SECONDS), world() as it:
        port = await it.ports.listen(Target(await it.serve(greet)), host="127.0.0.1", port=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(7) == b"welcome"
        assert await echoed_by(reader, writer, b"x") == b"x"


async def test_a_socket_in_the_file_system_leads_there_too(tmp_path: Path) -> None:
    path = tmp_path / "there.sock"
    async with asyncio.timeout(SECONDS), world() as it:
        target = Target(await it.serve(echo))
        await it.ports.listen_at(target, path)
        assert path.stat().st_mode & 0o777 == 0o600
        streams = await asyncio.open_unix_connection(path)
        assert await echoed_by(*streams, CONTENT) == CONTENT
        with pytest.raises(LocalPathUnusable):
            await it.ports.listen_at(target, path)
    assert not path.exists()


async def test_a_socket_that_nobody_listens_on_any_more_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "there.sock"
    server = await asyncio.start_unix_server(echo, path)
    server.close()
    assert path.exists()
    async with asyncio.timeout(SECONDS), world() as it:
        await it.ports.listen_at(Target(await it.serve(echo)), path)
        streams = await asyncio.open_unix_connection(path)
        assert await echoed_by(*streams, b"hello") == b"hello"


async def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("kept")
    async with asyncio.timeout(SECONDS), world() as it:
        with pytest.raises(LocalPathUnusable):
            await it.ports.listen_at(Target(80), path)
    assert path.read_text() == "kept"


async def test_a_port_that_is_taken_and_a_host_that_is_none_are_refused() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        with pytest.raises(LocalPortUnusable):
            await it.ports.listen(Target(80), host="127.0.0.1", port=port)
        with pytest.raises(TargetInvalid):
            await it.ports.listen(Target(80, "no host"), host="127.0.0.1", port=0)


async def test_a_carrier_that_is_cut_is_replaced_and_loses_nothing() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        it.exit.dials.clear()
        receiving = asyncio.ensure_future(echoed(port, CONTENT))

        async def wants() -> int:
            return len(it.exit.wants)

        await eventually(wants)
        it.gateway.cut()
        it.exit.dials.set()
        assert await receiving == CONTENT
        assert it.said == ["the gateway is away; trying again.", "the gateway is back."]
        assert it.mesh.opened == ["ses_0"]


async def test_what_is_opened_while_the_gateway_is_away_comes_through() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        await it.gateway.stop()
        await said(it, "away")
        receiving = asyncio.ensure_future(echoed(port, CONTENT))
        await it.gateway.listen()
        assert await receiving == CONTENT
        assert it.mesh.opened == ["ses_0"]


async def test_a_gateway_that_starts_anew_resets_channels_and_another_tunnel_goes_on() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await it.gateway.stop()
        await it.gateway.start()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert await echoed(port, CONTENT) == CONTENT
        assert "does not have this tunnel any more" in " ".join(it.said)
        assert it.mesh.opened == ["ses_0", "ses_1"]
        assert "ses_0" in it.mesh.closed
        assert it.line.session_id == "ses_1"


async def test_a_connection_that_is_made_between_two_tunnels_waits_for_the_next() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        away = Unavailable("There is no gateway.", reason="gateway_unavailable")
        unable = FairleadError("No gateway takes tunnels.", reason="mode_unsupported")
        it.mesh.refusals = [away, unable, away]
        await it.gateway.stop()
        await it.gateway.start()
        await said(it, "another one is opened.")
        assert await echoed(port, CONTENT) == CONTENT


async def test_a_session_that_was_closed_for_good_is_not_replaced() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        it.mesh.closed["ses_0"] = SessionClosed("admin_closed", "Upkeep.", user_initiated=True)
        it.exit.driver.close("session_closed", "The session was closed.")
        with pytest.raises(SessionEnded) as ended:
            await it.line.wait_over()
        assert (ended.value.reason, ended.value.message) == ("admin_closed", "Upkeep.")
        assert it.mesh.opened == ["ses_0"]


async def test_a_gateway_that_drains_is_left_for_another() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        it.mesh.closed["ses_0"] = SessionClosed("drained", retryable=True)
        it.exit.driver.close("drained", "The gateway is about to stop.")
        await said(it, "another tunnel is there.")
        assert await echoed(await listening(it)) == b"hello"


async def test_what_the_mesh_refuses_another_tunnel_with_ends_it() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        it.mesh.refusals = [NotFound("It is gone.", reason="launch_not_found")]
        it.exit.driver.close("expired", "It was idle.")
        with pytest.raises(NotFound):
            await it.line.wait_over()


async def test_the_gateway_and_the_mesh_are_told_of_the_end() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        async with open_line(it.mesh, "lch_a", pump=pump_choice(os.environ)):
            gone = it.exit

        async def reason() -> str:
            return gone.over_reason

        assert await eventually(reason) == "normal"
        assert list(it.mesh.closed) == ["ses_1"]


async def test_a_gateway_that_cannot_be_reached_is_told_as_such() -> None:
    gateway = Gateway()
    await gateway.start()
    await gateway.stop()
    mesh = Mesh(gateway)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(TunnelUnreachable) as refused:
            async with open_line(mesh, "lch_a", attach_seconds=0):
                raise AssertionError
    assert refused.value.reason == "gateway_unreachable"
    assert list(mesh.closed) == ["ses_0"]


def _least(least: float, most: float) -> float:
    return least


async def test_a_mesh_that_is_about_to_be_there_is_asked_again() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        away = Unavailable("There is no gateway.", reason="gateway_unavailable")
        it.mesh.refusals = [away, away]
        pump = pump_choice(os.environ)
        async with open_line(it.mesh, "lch_a", pump=pump, uniform=_least) as line:
            assert line.session_id == "ses_1"
        it.mesh.refusals = [away, away, away]
        with pytest.raises(Unavailable):
            async with open_line(it.mesh, "lch_a", pump=pump, uniform=_least):
                raise AssertionError


async def test_a_mesh_without_tunnels_is_told_as_such() -> None:
    mesh = Mesh(Gateway(), refusals=[FairleadError("It has none.", reason="mode_unsupported")])
    with pytest.raises(FairleadError) as refused:
        async with open_line(mesh, "lch_a"):
            raise AssertionError
    assert refused.value.reason == "mode_unsupported"
    assert mesh.closed == {}


async def test_each_refusal_is_told_and_resets_the_connection() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await it.ports.listen(Target(80, "denied.test"), host="127.0.0.1", port=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

        async def told() -> list[str]:
            return [*it.refusals]  # a pump tells it behind the reset

        await eventually(told, ["target_denied"].__eq__)


async def test_only_so_many_connections_are_taken() -> None:
    async with asyncio.timeout(SECONDS), world(most=2) as it:
        port = await listening(it)
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        with pytest.raises(ConnectionResetError):  # maybe while it is being connected
            await heard(port)

        async def told() -> list[str]:
            return [*it.refusals]

        await eventually(told, ["channel_limit"].__eq__)
        for reader, writer in held:
            assert await echoed_by(reader, writer, b"y") == b"y"
        await it.ports.traffic.wait_idle()
        assert await echoed(port) == b"hello"


async def test_only_so_many_clients_of_socks_are_taken_who_ask_or_not() -> None:
    async with asyncio.timeout(SECONDS), world(most=2) as it:
        asking = request("exit.test", await it.serve(echo))
        proxy = await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=None)
        held = [await asyncio.open_connection("127.0.0.1", proxy) for _ in range(2)]
        for reader, writer in held:
            writer.write(asking[:3])
            assert await reader.readexactly(2) == b"\x05\x00"
        with pytest.raises(ConnectionResetError):  # maybe while it is being connected
            await heard(proxy)
        for reader, writer in held:
            writer.write(asking[3:])
            assert await reader.readexactly(len(DONE)) == DONE
        with pytest.raises(ConnectionResetError):  # maybe while it is being connected
            await heard(proxy)
        for _, writer in held:
            writer.close()
        await it.ports.traffic.wait_idle()
