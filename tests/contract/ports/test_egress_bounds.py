"""A sandbox that does all it can to its proxy has its own share of it, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket

import pytest

from sandbox_worker.network.decision import Reason
from sandbox_worker.network.dialling import MOST_LOOKUPS
from tests.eventually import eventually
from tests.fakes.egress_bench import SANDBOX, connect, egress_bench

pytestmark = pytest.mark.asyncio


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_ten_thousand_attempts_hold_no_more_than_their_share() -> None:
    async with egress_bench(most_each=8) as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        door = bench.open(f"a.test:{port}")
        before = _descriptors()
        held: list[socket.socket] = []
        most = 0
        for number in range(10_000):
            attempt = socket.socket()
            attempt.setblocking(False)
            attempt.connect_ex(("127.0.0.1", door))
            if number < 40:
                held.append(attempt)
            else:
                attempt.close()
            if number % 500 == 0:
                await asyncio.sleep(0)
                most = max(most, _descriptors() - len(held))
        assert most - before <= 8
        for attempt in held:
            attempt.close()
        # Those that are gone make room for one that means it.
        reader, writer = await bench.tunnel(f"a.test:{port}")
        writer.write(b"hello\n")
        assert await reader.readline() == b"origin: hello\n"
        writer.transport.abort()


async def test_a_head_that_never_ends_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandbox_worker.network.exchange._HEAD_SECONDS", 2.0)
    async with egress_bench(most_each=1) as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        reader, writer = await bench.send(b"CONNECT a.test:443 HTTP/1.1\r\nX: ")
        _, patient = await bench.tunnel(f"a.test:{port}")
        assert (await reader.read()).startswith(b"HTTP/1.1 504 ")
        assert bench.counted[Reason.TIMED_OUT] == 1
        for each in (writer, patient):
            each.transport.abort()


async def test_a_hello_that_never_comes_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandbox_worker.network.tunnel._HELLO_SECONDS", 2.0)
    monkeypatch.setattr("sandbox_worker.network.exchange.needs_tls", lambda port: True)
    async with egress_bench(most_each=1) as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        reader, writer = await bench.tunnel(f"a.test:{port}")
        writer.write(b"\x16\x03\x01")
        assert await reader.read() == b""
        writer.transport.abort()
        await bench.decided(Reason.TLS_MISSING)
        _, after = await bench.tunnel(f"a.test:{port}")
        after.transport.abort()


async def test_all_sandboxes_together_have_a_bound() -> None:
    async with egress_bench(most_in_all=2) as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        door = bench.open(f"a.test:{port}")
        other = bench.open(f"a.test:{port}", sandbox_id="sbx_two")
        bench.port = door
        _, first = await bench.tunnel(f"a.test:{port}")
        _, second = await bench.tunnel(f"a.test:{port}")
        reader, third = await bench.send(connect(f"a.test:{port}"), other)
        assert await reader.read() == b""
        assert bench.counted[Reason.BUSY] == 1
        assert bench.proxy.decisions(SANDBOX)[-1].reason is Reason.ALLOWED
        first.transport.abort()
        bench.port = other

        async def carried() -> bytes:
            return await bench.ask(connect("b.test:1"))

        await eventually(carried, lambda answer: b"not_listed" in answer)
        for each in (second, third):
            each.transport.abort()
        await bench.proxy.close("sbx_two")


async def test_silent_name_servers_hold_a_few_lookups_only() -> None:
    async with egress_bench() as bench:
        bench.names.held.clear()
        bench.open("*")
        asking = [
            await bench.send(connect(f"n{number}.test:443")) for number in range(MOST_LOOKUPS * 2)
        ]

        async def asked() -> int:
            return len(bench.names.asked)

        await eventually(asked, lambda count: count == MOST_LOOKUPS)
        bench.names.held.set()
        for reader, writer in asking:
            assert b'details="unresolved"' in await reader.read()
            writer.transport.abort()
        assert len(bench.names.asked) == MOST_LOOKUPS * 2


async def test_noise_is_answered_or_cut_and_the_door_stays_open() -> None:
    noise = random.Random(7)  # noqa: S311 - not for secrets
    async with egress_bench(most_each=4) as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        request = bytearray(connect(f"a.test:{port}"))
        for number in range(300):
            sent = bytearray(request) if number % 2 else bytearray(noise.randbytes(200))
            sent[noise.randrange(len(sent))] = noise.randrange(256)
            reader, writer = await bench.send(bytes(sent))
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                answer = await reader.read()
                assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            writer.transport.abort()
        _, writer = await bench.tunnel(f"a.test:{port}")
        writer.transport.abort()


async def test_nothing_is_left_open() -> None:
    before = _descriptors()
    async with egress_bench() as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        for _ in range(20):
            _, writer = await bench.tunnel(f"a.test:{port}")
            writer.transport.abort()
            await bench.ask(connect("b.test:1"))
        await bench.decided(Reason.ALLOWED, 20)

    async def left() -> int:
        return _descriptors() - before

    await eventually(left, lambda count: count <= 0)
