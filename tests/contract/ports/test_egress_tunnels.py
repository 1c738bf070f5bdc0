"""Tunnels: who may speak in them, and what ends them."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path

import psutil
import pytest

from chassis.allow_list import parse_allow_list
from sandbox_worker.network.decision import Reason
from sandbox_worker.network.tunnel import needs_tls
from tests.eventually import eventually
from tests.fakes.egress_bench import (
    SANDBOX,
    Streams,
    certificate,
    connect,
    egress_bench,
    served,
)
from tests.unit.sandbox_worker.test_client_hello import hello

pytestmark = pytest.mark.asyncio


async def _through(streams: Streams, name: str, trusted: Path) -> Streams:
    """Speak TLS in a tunnel, as a client that names `name`."""
    reader, writer = streams
    context = ssl.create_default_context(cafile=str(trusted))
    await writer.start_tls(context, server_hostname=name)
    return reader, writer


@pytest.mark.parametrize("named", [False, True])
async def test_a_tls_client_that_names_its_host(tmp_path: Path, named: bool) -> None:
    server, trusted = certificate(tmp_path, "a.test")
    async with egress_bench() as bench, bench.origin(server) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"*.test:{port}" if named else f"a.test:{port}")
        reader, writer = await _through(await bench.tunnel(f"A.test:{port}"), "a.test", trusted)
        writer.write(b"hello\n")
        assert await reader.readline() == b"origin: hello\n"
        assert bench.last == ("a.test", port, "allowed")
        writer.transport.abort()


async def test_a_tls_client_that_names_another_host_is_cut(tmp_path: Path) -> None:
    server, trusted = certificate(tmp_path, "a.test", "b.test")
    async with egress_bench() as bench, bench.origin(server) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        streams = await bench.tunnel(f"a.test:{port}")
        with pytest.raises((ssl.SSLError, OSError)):
            await _through(streams, "b.test", trusted)
        streams[1].transport.abort()
        await bench.decided(Reason.SNI_MISMATCH)
        assert bench.last == ("a.test", port, "sni_mismatch")
        assert bench.proxy.decisions(SANDBOX)[-1].address == "127.0.0.1"


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (hello("b.test"), Reason.SNI_MISMATCH),
        (hello("sub.a.test"), Reason.SNI_MISMATCH),
        (hello(None), Reason.SNI_MISSING),
        (b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n", Reason.TLS_MISSING),
        (b"SSH-2.0-client\r\n", Reason.TLS_MISSING),
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", Reason.TLS_MISSING),
        (b"", Reason.TLS_MISSING),
    ],
)
async def test_on_the_default_ports_nothing_but_tls_to_that_host_leaves(
    monkeypatch: pytest.MonkeyPatch, first: bytes, reason: Reason
) -> None:
    """The ports below 1024 are not a test's to bind: that 443 needs TLS is asserted besides."""
    monkeypatch.setattr("sandbox_worker.network.exchange.needs_tls", lambda port: True)
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        reader, writer = await bench.tunnel(f"a.test:{port}")
        writer.write(first)
        writer.write_eof()
        alert = await reader.read()
        await bench.decided(reason)
        assert alert == (b"" if reason is Reason.TLS_MISSING else b"\x15\x03\x01\x00\x02\x02\x70")
        assert bench.counted[Reason.ALLOWED] == 0
        writer.transport.abort()

        async def heard() -> list[bytes]:
            return received

        assert await eventually(heard) == [b""]


@pytest.mark.parametrize(("port", "expected"), [(443, True), (80, True), (22, False)])
async def test_where_tls_is_needed(port: int, expected: bool) -> None:
    assert needs_tls(port) is expected


async def test_an_early_hello_is_judged_and_sent_on(tmp_path: Path) -> None:
    """A client may send its ClientHello before it has heard that the tunnel stands."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        for name in ("a.test", "b.test"):
            reader, writer = await bench.send(connect(f"a.test:{port}") + hello(name) + b"more")
            writer.write_eof()
            await reader.read()
            writer.transport.abort()

        async def heard() -> list[bytes]:
            return received

        first, second = await eventually(heard, lambda pieces: len(pieces) == 2)
        assert first[5:9] == hello("a.test")[5:9]
        assert first.endswith(b"more")
        assert second == b""


async def test_a_server_may_speak_first_where_the_port_is_named() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-server\r\n")
        writer.write(b"heard " + await reader.readline())
        await reader.read()

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        reader, writer = await bench.tunnel(f"a.test:{port}")
        assert await reader.readline() == b"SSH-2.0-server\r\n"
        writer.write(b"SSH-2.0-client\r\n")
        assert await reader.readline() == b"heard SSH-2.0-client\r\n"
        writer.transport.abort()


async def _read_to_the_cut(reader: asyncio.StreamReader) -> None:
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1 << 40)


async def test_a_revocation_cuts_in_mid_transfer_and_leaves_the_rest() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(os.urandom(1 << 16))
            await writer.drain()

    async with egress_bench() as bench, served(serve) as port, bench.origin() as other:
        bench.names.answers = {"a.test": [["127.0.0.1"]], "b.test": [["127.0.0.1"]]}
        bench.open(f"a.test:{port}", f"b.test:{other}")
        cut, cut_writer = await bench.tunnel(f"a.test:{port}")
        kept, kept_writer = await bench.tunnel(f"b.test:{other}")
        await cut.readexactly(1 << 20)
        bench.proxy.change(SANDBOX, parse_allow_list([f"b.test:{other}"]))
        await _read_to_the_cut(cut)
        assert bench.last == ("a.test", port, "revoked")
        kept_writer.write(b"still\n")
        assert await kept.readline() == b"origin: still\n"
        assert b'details="not_listed"' in await bench.ask(connect(f"a.test:{port}"))
        # Asked for again, it is carried again.
        bench.proxy.change(SANDBOX, parse_allow_list([f"*:{port}"]))
        await _read_to_the_cut(kept)
        _, again = await bench.tunnel(f"a.test:{port}")
        # And with no network at all everything is cut and refused.
        bench.proxy.change(SANDBOX, None)
        assert b'details="network_none"' in await bench.ask(connect(f"a.test:{port}"))
        assert bench.counted[Reason.REVOKED] == 3
        for writer in (cut_writer, kept_writer, again):
            writer.transport.abort()


async def test_a_wider_right_that_is_taken_back_cuts() -> None:
    async with egress_bench() as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        reader, writer = await bench.tunnel(f"a.test:{port}")
        bench.proxy.change(SANDBOX, parse_allow_list([f"*:{port}"]))
        writer.write(b"the same right by another entry\n")
        assert (await reader.readline()).startswith(b"origin: ")
        bench.proxy.change(SANDBOX, parse_allow_list(["a.test"]))
        await _read_to_the_cut(reader)
        writer.transport.abort()


async def test_a_revocation_while_a_name_is_being_resolved() -> None:
    async with egress_bench() as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.names.held.clear()
        bench.open(f"a.test:{port}")
        asking = asyncio.create_task(bench.ask(connect(f"a.test:{port}")))

        async def asked() -> list[str]:
            return bench.names.asked

        await eventually(asked)
        bench.proxy.change(SANDBOX, parse_allow_list([]))
        bench.names.held.set()
        await asyncio.wait([asking])
        assert asking.exception() is not None or asking.result() == b""
        assert bench.counted == {Reason.REVOKED: 1}
        assert bench.accepted == [], "nothing was dialled"


async def test_a_revocation_while_a_connection_is_being_made() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        port = silent.getsockname()[1]
        # Its queue is full with one: the kernel lets the next one wait.
        with socket.create_connection(("127.0.0.1", port)):
            async with egress_bench() as bench:
                bench.names.answers["a.test"] = [["127.0.0.1"]]
                bench.open(f"a.test:{port}")
                asking = asyncio.create_task(bench.ask(connect(f"a.test:{port}")))

                async def dialling() -> bool:
                    return any(
                        each.status == psutil.CONN_SYN_SENT and each.raddr.port == port
                        for each in psutil.Process().net_connections("tcp4")
                        if each.raddr
                    )

                await eventually(dialling)
                bench.proxy.change(SANDBOX, parse_allow_list(["b.test"]))
                await asyncio.wait([asking])
                assert asking.exception() is not None or asking.result() == b""
                assert bench.counted == {Reason.REVOKED: 1}
                assert not await dialling()


async def test_a_release_cuts_tunnels_and_what_waits() -> None:
    async with egress_bench() as bench, bench.origin() as port:
        bench.names.answers = {"a.test": [["127.0.0.1"]], "slow.test": [["127.0.0.1"]]}
        door = bench.open(f"*:{port}")
        reader, writer = await bench.tunnel(f"a.test:{port}")
        idle, idle_writer = await bench.send(b"CONNECT ")
        bench.names.held.clear()
        slow, slow_writer = await bench.send(connect(f"slow.test:{port}"))

        async def asked() -> list[str]:
            return bench.names.asked

        await eventually(asked, lambda names: "slow.test" in names)
        await bench.proxy.close(SANDBOX)
        for each in (reader, idle, slow):
            await _read_to_the_cut(each)
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", door)
        origin_reader, _ = bench.accepted[0]

        async def ended() -> bool:
            return origin_reader.at_eof() or origin_reader.exception() is not None

        await eventually(ended)
        bench.names.held.set()
        for ended_writer in (writer, idle_writer, slow_writer):
            ended_writer.transport.abort()
