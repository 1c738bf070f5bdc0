"""SOCKS5 over a tunnel: curl, git and ssh as they are, and what a client may get wrong."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import os
import secrets
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead_tunnel.socks5 import Credentials, Reply, encode_reply
from tests.contract.tunnel.line_world import World, echo, world
from tests.eventually import SECONDS, eventually
from tests.openssh import OpenSshServer, openssh_server, sshd_program

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runs_on")]
CONTENT = secrets.token_bytes(8 * 1024 * 1024)
CREDENTIALS = Credentials(b"ada", b"enigma")
DONE = encode_reply(Reply.SUCCEEDED)


def request(host: str, port: int, *, command: int = 1) -> bytes:
    return b"\x05\x01\x00" + bytes((5, command, 0, 3, len(host))) + host.encode() + port.to_bytes(2)


async def serving(it: World, credentials: Credentials | None = None) -> int:
    return await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=credentials)


async def ran(*command: str, env: dict[str, str] | None = None) -> tuple[int, bytes, bytes]:
    """Run a program to its end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output, errors


async def curl(proxy: int, url: str, *options: str, scheme: str = "socks5h") -> tuple[int, bytes]:
    status, output, _ = await ran(
        "curl", "-sS", "--noproxy", "", "-x", f"{scheme}://127.0.0.1:{proxy}", *options, url
    )
    return status, output


async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request with CONTENT, or with the digest of what is posted."""
    head = await reader.readuntil(b"\r\n\r\n")
    answer = CONTENT
    if head.startswith(b"POST"):
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        answer = hashlib.sha256(await reader.readexactly(length)).hexdigest().encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("host", "label"),
    [
        ("localhost", "tcp:{port}"),
        ("127.0.0.1", "tcp:{port}"),
        ("[::1]", "tcp:{port}"),
        ("sandbox", "tcp:{port}"),
        ("exit.test", "tcp:exit.test:{port}"),
        ("10.9.8.7", "tcp:10.9.8.7:{port}"),
        ("[2001:db8::7]", "tcp:[2001:db8::7]:{port}"),
    ],
)
async def test_curl_downloads_by_name_and_address(host: str, label: str) -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await it.serve(page)
        found = await curl(await serving(it), f"http://{host}:{port}/")
        assert found == (0, CONTENT)
        assert it.exit.wants == [label.format(port=port)]
        await it.ports.traffic.wait_idle()


async def test_curl_uploads(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(CONTENT)
    async with asyncio.timeout(SECONDS), world() as it:
        url = f"http://exit.test:{await it.serve(page)}/"
        sent = await curl(
            await serving(it), url, "-H", "Expect:", "--data-binary", f"@{tmp_path}/content"
        )
        assert sent == (0, hashlib.sha256(CONTENT).hexdigest().encode())


async def test_a_hundred_requests_at_once_each_get_their_answer() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        proxy, port = await serving(it), await it.serve(echo)

        async def asked(number: int) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
            content = number.to_bytes(4) * 1000
            writer.write(request("exit.test", port) + content)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            assert answer == b"\x05\x00" + DONE + content
            return answer

        await asyncio.gather(*map(asked, range(100)))


@pytest.mark.parametrize(
    ("host", "code"),
    [("denied.test", Reply.NOT_ALLOWED), ("nowhere.test", Reply.HOST_UNREACHABLE)],
)
async def test_the_answer_says_why_not(host: str, code: Reply) -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(request(host, 80))
        assert await reader.read() == b"\x05\x00" + encode_reply(code)
        writer.close()
        status, _ = await curl(await serving(it), f"http://{host}/")
        assert status == 97  # CURLE_PROXY
        assert len(it.refusals) == 2


async def test_a_port_that_nobody_listens_on_is_refused() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(request("localhost", port))
        assert await reader.read() == b"\x05\x00" + encode_reply(Reply.CONNECTION_REFUSED)
        writer.close()
        assert it.refusals == ["dial_refused"]


@pytest.mark.parametrize("command", [2, 3])
async def test_bind_and_udp_are_refused_with_their_code(command: int) -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(request("exit.test", 80, command=command))
        assert await reader.read() == b"\x05\x00" + encode_reply(Reply.COMMAND_UNSUPPORTED)
        writer.close()
        assert it.exit.wants == []


async def test_nothing_is_answered_before_the_target_is_there_and_early_bytes_ride_along() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        it.exit.dials.clear()
        port = await it.serve(echo)
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(request("exit.test", port) + b"early")
        assert await reader.readexactly(2) == b"\x05\x00"

        async def early() -> int:
            streams = it.exit.driver._streams.values()
            return sum(len(piece) for stream in streams for piece in stream.early)

        assert await eventually(early) == 5
        answer = asyncio.ensure_future(reader.read())
        writer.write_eof()
        await asyncio.wait((answer,), timeout=0)
        assert not answer.done()
        it.exit.dials.set()
        assert await answer == DONE + b"early"
        writer.close()


async def test_a_client_that_leaves_before_the_target_is_there_leaves_nothing() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        it.exit.dials.clear()
        port = await it.serve(echo)
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(request("exit.test", port))
        assert await reader.readexactly(2) == b"\x05\x00"

        async def wants() -> int:
            return len(it.exit.wants)

        await eventually(wants)
        plug = writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by RST
        writer.transport.abort()
        await it.ports.traffic.wait_idle()
        it.exit.dials.set()

        async def endings() -> list[str]:
            return it.exit.endings

        assert await eventually(endings) == ["connection_reset"]
        assert it.refusals == []


async def test_each_direction_ends_by_itself() -> None:
    async def summed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hashlib.sha256(await reader.read()).digest())
        writer.close()

    async with asyncio.timeout(SECONDS), world() as it:
        port = await it.serve(summed)
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(request("sandbox", port) + CONTENT)
        writer.write_eof()
        assert await reader.read() == b"\x05\x00" + DONE + hashlib.sha256(CONTENT).digest()
        writer.close()


async def test_curl_with_the_password_gets_in_and_others_do_not() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        url = f"http://exit.test:{await it.serve(page)}/"
        proxy = await serving(it, CREDENTIALS)
        assert await curl(proxy, url, "--proxy-user", "ada:enigma") == (0, CONTENT)
        for options in ((), ("--proxy-user", "ada:enigme"), ("--proxy-user", "bob:enigma")):
            status, _ = await curl(proxy, url, *options)
            assert status == 97  # CURLE_PROXY
        assert it.refusals == ["client_refused"] * 3


async def test_what_is_no_socks_is_dropped() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        await it.ports.traffic.wait_idle()


async def test_a_client_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead_sdk.local_connection.GREETING_SECONDS", 0.01)
    async with asyncio.timeout(SECONDS), world() as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(b"\x05")
        assert await reader.read() == b""
        writer.close()
        await it.ports.traffic.wait_idle()


async def test_a_tunnel_that_goes_while_a_client_waits_is_a_failure_that_is_answered() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        it.exit.dials.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving(it))
        writer.write(request("exit.test", await it.serve(echo)))
        assert await reader.readexactly(2) == b"\x05\x00"

        async def wants() -> int:
            return len(it.exit.wants)

        await eventually(wants)
        await it.gateway.stop()
        await it.gateway.start()
        assert await reader.read() == encode_reply(Reply.GENERAL_FAILURE)
        writer.close()


async def test_a_client_that_comes_between_two_tunnels_is_answered_when_there_is_one() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port, proxy = await it.serve(echo), await serving(it)
        it.exit.driver.close("expired", "It was idle.")
        await it.gateway.stop()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        writer.write(request("exit.test", port) + b"early")
        assert await reader.readexactly(2) == b"\x05\x00"
        await it.gateway.start()
        writer.write_eof()
        assert await reader.read() == DONE + b"early"
        writer.close()


async def test_a_client_that_waits_too_long_for_a_tunnel_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead_sdk.local_connection.WAIT_SECONDS", 0.01)
    async with asyncio.timeout(SECONDS), world() as it:
        proxy = await serving(it)
        it.exit.driver.close("expired", "It was idle.")
        await it.gateway.stop()

        async def said() -> list[str]:
            return it.said

        await eventually(said)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        writer.write(request("exit.test", 80))
        assert await reader.read() == b"\x05\x00" + encode_reply(Reply.NETWORK_UNREACHABLE)
        writer.close()


# Programs as they are


async def test_git_clones_over_http(tmp_path: Path) -> None:
    source, bare, copy = tmp_path / "source", tmp_path / "www" / "it.git", tmp_path / "copy"
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    source.mkdir()
    (source / "content").write_bytes(CONTENT)
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "One")):
        assert (await ran("git", "-C", str(source), *command))[0] == 0
    assert (await ran("git", "clone", "-q", "--bare", str(source), str(bare)))[0] == 0
    assert (await ran("git", "-C", str(bare), "update-server-info"))[0] == 0
    web = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"),
        cwd=bare.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert web.stdout is not None
        port = int((await web.stdout.readline()).split(b" port ")[1].split()[0])
        async with asyncio.timeout(SECONDS), world() as it:
            proxy = f"http.proxy=socks5h://127.0.0.1:{await serving(it)}"
            url = f"http://exit.test:{port}/it.git"
            status, _, errors = await ran("git", "-c", proxy, "clone", "-q", url, str(copy))
            assert status == 0, errors
            assert set(it.exit.wants) == {f"tcp:exit.test:{port}"}
    finally:
        web.kill()
        await web.wait()
    assert (copy / "content").read_bytes() == CONTENT


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[OpenSshServer]:
    program = sshd_program()
    if program is None:
        pytest.skip("no sshd is installed")
    with openssh_server(program, tmp_path / "ssh") as server:
        yield server


_JOIN = """
import os, socket, sys, threading
host, port, proxy = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
there = socket.create_connection(("127.0.0.1", proxy))
name = bytes([len(host)]) + host.encode()
there.sendall(b"\\5\\1\\0" + b"\\5\\1\\0\\3" + name + port.to_bytes(2))
answer = b""
while len(answer) < 12:
    answer += there.recv(12 - len(answer))
assert answer[3] == 0, answer
def up():
    while content := os.read(0, 65536):
        there.sendall(content)
    there.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while content := there.recv(65536):
    while content:
        content = content[os.write(1, content):]
"""


async def test_ssh_goes_through_it_as_a_proxy_command(sshd: OpenSshServer, tmp_path: Path) -> None:
    (tmp_path / "join.py").write_text(_JOIN)
    (tmp_path / "content").write_bytes(CONTENT)
    async with asyncio.timeout(SECONDS), world() as it:
        proxy = f"ProxyCommand={sys.executable} {tmp_path}/join.py %h %p {await serving(it)}"
        program = [shutil.which(sshd.program[0]) or sshd.program[0], *sshd.program[1:]]
        where = (
            *("-o", proxy, "-o", "HostKeyAlias=[127.0.0.1]:" + str(sshd.port)),
            *("-p", str(sshd.port), f"{getpass.getuser()}@exit.test"),
        )
        status, output, errors = await ran(*program, *where, f"cat {tmp_path}/content")
        assert status == 0, errors
        assert output == CONTENT
        assert it.exit.wants == [f"tcp:exit.test:{sshd.port}"]
