"""What a sandbox's proxy carries and refuses, request by request, over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from sandbox_worker.network.decision import Reason
from tests.eventually import eventually
from tests.fakes.egress_bench import SANDBOX, connect, egress_bench, served

pytestmark = pytest.mark.asyncio


async def test_a_plain_request_reaches_its_origin_with_its_body_and_its_own_fields() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.extend((head, await reader.readexactly(5)))
        writer.write(b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\nUpgrade: x\r\n\r\n")
        writer.write(b"3\r\nyes\r\n0\r\n\r\n")
        await reader.read()

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        answer = await bench.ask(
            f"POST http://a.test:{port}/x?y=1 HTTP/1.1\r\nHost: a.test:{port}\r\n"
            "Proxy-Connection: keep-alive\r\nConnection: x-own\r\nX-Own: 1\r\nAccept: */*\r\n"
            "Content-Length: 5\r\n\r\nhello".encode()
        )
        assert bench.last == ("a.test", port, "allowed")
    head, body = seen
    lines = head.decode().split("\r\n")
    assert lines[:2] == ["POST /x?y=1 HTTP/1.1", f"host: a.test:{port}"]
    assert set(lines[2:-2]) == {
        "accept: */*",
        "content-length: 5",
        "via: 1.1 fairlead",
        "connection: close",
    }
    assert body == b"hello"
    assert answer.startswith(b"HTTP/1.1 201 Made\r\n")
    assert b"upgrade" not in answer.lower()
    assert answer.endswith(b"3\r\nyes\r\n0\r\n\r\n")


async def test_a_second_request_on_the_connection_is_never_carried() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        seen.append(await reader.read())

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"*:{port}")
        one = f"GET http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n"
        two = f"GET http://b.test:{port}/secret HTTP/1.1\r\nHost: b.test:{port}\r\n\r\n"
        answer = await bench.ask((one + two).encode())
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"connection: close" in answer
        assert bench.names.asked == ["a.test"]

        async def heard() -> list[bytes]:
            return seen

        first, rest = await eventually(heard, lambda pieces: len(pieces) == 2)
        assert first.startswith(b"GET / ")
        assert rest == b""


async def test_an_origin_is_told_what_was_judged_whatever_ends_the_lines() -> None:
    """A bare LF may end a line (RFC 9112, 2.2); an origin that reads it otherwise never sees it."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await reader.read()

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        answer = await bench.ask(
            f"GET http://a.test:{port}/ HTTP/1.1\nHost: a.test:{port}\nX: one\r\n\n".encode()
        )
        assert answer.startswith(b"HTTP/1.1 204 ")
        assert bench.names.asked == ["a.test"]
    assert seen[0].count(b"\n") == seen[0].count(b"\r\n")
    assert sorted(seen[0].split(b"\r\n")[2:-2]) == [
        b"connection: close",
        b"via: 1.1 fairlead",
        b"x: one",
    ]


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\n\r\n",
        b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost : a.test\r\n\r\n",
        b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\nab",
        b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked, x\r\n\r\n",
        b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX: a\0b\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\nHost: b.test:443\r\n\r\n",
        b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nContent-Length: 9\r\n\r\nsmuggled!",
        b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0",
        b"CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"CONNECT 127.1:443 HTTP/1.1\r\nHost: 127.1:443\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"\x05\x01\x00 socks\r\n\r\n",
        b"GET http://a.test/" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: a.test\r\n\r\n",
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused(request_: bytes) -> None:
    async with egress_bench() as bench:
        bench.names.answers["a.test"] = bench.names.answers["b.test"] = [["127.0.0.1"]]
        bench.open("*", "*:80", "127.0.0.0/8")
        answer = await bench.ask(request_)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'details="request_invalid"' in answer
        assert bench.names.asked == []
        assert bench.last[2] == "request_invalid"


@pytest.mark.parametrize(
    ("allow", "authority", "reason"),
    [
        ([], "a.test:443", Reason.NOT_LISTED),
        (["b.test"], "a.test:443", Reason.NOT_LISTED),
        (["*.a.test"], "a.test:443", Reason.NOT_LISTED),
        (["a.test"], "a.test:22", Reason.PORT_NOT_LISTED),
        (["*"], "127.0.0.1:443", Reason.NOT_LISTED),
        (["*"], "[::1]:443", Reason.NOT_LISTED),
        (["*"], "nowhere.test:443", Reason.UNRESOLVED),
        (["*"], "private.test:443", Reason.ADDRESS_PRIVATE),
        (["*"], "mapped.test:443", Reason.ADDRESS_PRIVATE),
        (["*"], "metadata.test:80", Reason.ADDRESS_PRIVATE),
        (["*:7300"], "mesh.test:7300", Reason.MESH_PORT),
        (["10.0.0.0/8"], "10.0.0.1:443", Reason.ADDRESS_PRIVATE),
        (["169.254.169.254"], "169.254.169.254:80", Reason.ADDRESS_PRIVATE),
        (["::ffff:10.0.0.1"], "[::ffff:10.0.0.1]:443", Reason.ADDRESS_PRIVATE),
        (["127.0.0.1:1"], "127.0.0.1:1", Reason.UNREACHABLE),
    ],
)
async def test_refusals_say_why(allow: list[str], authority: str, reason: Reason) -> None:
    async with egress_bench() as bench:
        bench.names.answers = {
            "private.test": [["10.1.2.3"]],
            "mapped.test": [["::ffff:192.168.0.1"]],
            "metadata.test": [["169.254.169.254"]],
            "mesh.test": [["127.0.0.1"]],
        }
        bench.open(*allow)
        answer = await bench.ask(connect(authority))
        assert f'details="{reason}"'.encode() in answer
        assert answer.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 502 "))
        assert bench.counted == {reason: 1}
        port = authority.rpartition(":")[2]
        assert bench.last[1:] == (int(port), reason.value)
        if reason is Reason.NOT_LISTED:
            assert bench.names.asked == [], "what is not listed is not resolved"


async def test_only_the_addresses_that_may_be_dialled_are() -> None:
    async with egress_bench() as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["10.0.0.1", "169.254.169.254", "127.0.0.1"]]
        bench.open(f"a.test:{port}")
        reader, writer = await bench.tunnel(f"a.test:{port}")
        writer.write(b"hello\n")
        assert await reader.readline() == b"origin: hello\n"
        writer.transport.abort()
        assert bench.proxy.decisions(SANDBOX)[-1].address == "127.0.0.1"


async def test_a_name_is_resolved_once_for_each_connection() -> None:
    """DNS rebinding: the second answer is never asked for, and judged when it comes."""
    async with egress_bench() as bench, bench.origin() as port:
        bench.names.answers["a.test"] = [["127.0.0.1"], ["10.0.0.1"]]
        bench.open(f"a.test:{port}")
        reader, writer = await bench.tunnel(f"a.test:{port}")
        assert bench.names.asked == ["a.test"]
        answer = await bench.ask(connect(f"a.test:{port}"))
        assert b'details="address_private"' in answer
        writer.write(b"still\n")
        assert await reader.readline() == b"origin: still\n"
        writer.transport.abort()


async def test_many_bytes_and_a_half_closed_tunnel() -> None:
    sent = os.urandom(8 * 1024 * 1024)
    digest = hashlib.sha256()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            digest.update(piece)
        writer.write(sent)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        reader, writer = await bench.tunnel(f"a.test:{port}")
        writer.write(sent)
        await writer.drain()
        writer.write_eof()
        assert await reader.read() == sent
        writer.close()
    assert digest.digest() == hashlib.sha256(sent).digest()


async def test_a_refusal_is_heard_also_by_a_client_that_is_still_sending() -> None:
    async with egress_bench() as bench:
        bench.open()
        head = "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3000000\r\n\r\n"
        answer = await bench.ask(head.encode() + b"x" * 3_000_000)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert answer.endswith(b"not_listed.\n")


async def test_an_origin_that_answers_early_is_heard() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nmuch")
        await reader.read()

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        head = f"POST http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n"
        body = "Content-Length: 3000000\r\n\r\n" + "x" * 3_000_000
        answer = await bench.ask((head + body).encode())
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(b"much")


async def test_an_origin_that_speaks_no_http_is_a_bad_gateway() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test ready\r\n")
        await writer.drain()
        writer.close()

    async with egress_bench() as bench, served(serve) as port:
        bench.names.answers["a.test"] = [["127.0.0.1"]]
        bench.open(f"a.test:{port}")
        answer = await bench.ask(
            f"GET http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n".encode()
        )
        assert answer.startswith(b"HTTP/1.1 502 ")


async def test_the_last_decisions_are_kept() -> None:
    async with egress_bench() as bench:
        bench.open("a.test")
        for number in range(130):
            await bench.ask(connect(f"n{number}.test:443"))
        kept = bench.proxy.decisions(SANDBOX)
        assert [each.host for each in kept] == [f"n{number}.test" for number in range(2, 130)]
        assert {each.allowed for each in kept} == {False}
        await bench.proxy.close(SANDBOX)
        assert bench.proxy.decisions(SANDBOX) == ()
