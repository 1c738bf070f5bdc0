"""The network of walled sandboxes, tried from inside: there is none but the proxy, and ports inside
are reached from outside only by way of the sandbox's first process.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead_walls.survey import Survey
from sandbox_worker.isolation.init_link import InitEnclosure
from sandbox_worker.isolation.walled import WalledIsolation
from sandbox_worker.network.decision import Reason
from sandbox_worker.network.networks import Networks
from sandbox_worker.ports import ProgramOrder
from sandbox_worker.sandbox import Limits, NetworkMode, NetworkPolicy
from tests.fakes.egress_bench import EgressBench, certificate, egress_bench, served
from tests.fakes.walled import open_walled, run

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl inside the sandbox"),
]

_NONE = NetworkPolicy(NetworkMode.NONE)


@pytest_asyncio.fixture
async def isolation(walls: Survey) -> AsyncIterator[WalledIsolation]:
    async with open_walled(walls) as opened:
        yield opened


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[EgressBench]:
    async with egress_bench() as opened:
        opened.names.answers = {name: [["127.0.0.1"]] for name in ("a.test", "b.test")}
        yield opened


class Room:
    """Sandboxes whose networks are real."""

    def __init__(self, *, isolation: WalledIsolation, bench: EgressBench) -> None:
        self.isolation = isolation
        self.bench = bench
        self.networks = Networks(doors=bench.proxy)
        self.enclosures: dict[str, InitEnclosure] = {}

    async def make(self, policy: NetworkPolicy) -> tuple[str, InitEnclosure]:
        sandbox_id = random_id("sbx")
        enclosure = await self.isolation.enclose(
            sandbox_id, Limits(open_files=1024), policy, tenant="ada"
        )
        self.enclosures[sandbox_id] = enclosure
        await self.change(sandbox_id, policy)
        return sandbox_id, enclosure

    async def change(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        await self.networks.prepare(sandbox_id, self.enclosures[sandbox_id], policy)
        self.networks.apply(sandbox_id, policy)

    def reasons(self, sandbox_id: str) -> list[Reason]:
        return [each.reason for each in self.networks.decisions(sandbox_id)]


@pytest_asyncio.fixture
async def room(isolation: WalledIsolation, bench: EgressBench) -> AsyncIterator[Room]:
    opened = Room(isolation=isolation, bench=bench)
    try:
        yield opened
    finally:
        for sandbox_id, enclosure in opened.enclosures.items():
            await opened.networks.cut(sandbox_id)
            await enclosure.destroy()


def egress(*allow: str) -> NetworkPolicy:
    return NetworkPolicy(NetworkMode.EGRESS, allow)


async def hello_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
    await writer.drain()
    writer.close()


async def test_programs_find_the_proxy_and_reach_what_is_allowed(
    room: Room, tmp_path: Path
) -> None:
    server, trusted = certificate(tmp_path, "a.test", "b.test")
    async with served(hello_http) as plain, served(hello_http, server) as secure:
        sandbox_id, enclosure = await room.make(egress(f"a.test:{plain}", f"a.test:{secure}"))
        assert await run(enclosure, f"curl -s http://a.test:{plain}/") == "hello"
        trust = f"cat > /tmp/ca <<'X'\n{trusted.read_text()}X\n"
        curl = "curl -s --cacert /tmp/ca"
        assert await run(enclosure, f"{trust}{curl} https://a.test:{secure}/") == "hello"
        refused = await run(enclosure, f"curl -s http://b.test:{plain}/")
        assert refused == "The sandbox's network policy: not_listed.\n"
        # CONNECT to the one that is allowed, and the name of another one in the ClientHello.
        fronted = f"{curl} --connect-to b.test:{secure}:a.test:{secure} https://b.test:{secure}/"
        assert await run(enclosure, f"{trust}{fronted}; echo $?") == "35\n"
        assert room.reasons(sandbox_id) == [
            Reason.ALLOWED,
            Reason.ALLOWED,
            Reason.NOT_LISTED,
            Reason.ALLOWED,
            Reason.SNI_MISMATCH,
        ]


_TRY = """
for where in {where}; do
  curl -s --noproxy '*' -m 2 -o /dev/null "http://$where/" && echo "reached $where"
done
curl -s --noproxy '*' -m 2 -o /dev/null http://example.org/ && echo resolved
getent hosts example.org && echo resolved
cat /proc/net/route | tail -n +2
echo done
"""


@pytest.mark.parametrize("policy", [_NONE, egress("*")], ids=["none", "egress"])
async def test_nothing_leaves_but_by_the_proxy(room: Room, policy: NetworkPolicy) -> None:
    """Metadata, the host's loopback and its other addresses, and the mesh's own ports."""
    reached: list[object] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(writer.get_extra_info("peername"))
        await hello_http(reader, writer)

    async with served(serve) as port:
        own = socket.gethostbyname(socket.gethostname())
        where = [
            "169.254.169.254", "100.100.100.200", f"127.0.0.1:{port}", f"localhost:{port}",
            f"[::1]:{port}", f"{own}:{port}", "127.0.0.1:7300", "127.0.0.1:7330", "10.0.0.1",
            "0.0.0.0:" + str(port), "1.1.1.1", "[2606:4700:4700::1111]",
        ]  # fmt: skip
        _, enclosure = await room.make(policy)
        tried = await run(enclosure, _TRY.format(where=" ".join(f"'{each}'" for each in where)))
        assert tried == "done\n"
    assert reached == []


async def test_the_proxy_refuses_what_only_the_host_may_reach(room: Room) -> None:
    sandbox_id, enclosure = await room.make(egress("*:7300", "169.254.169.254", "10.0.0.0/8"))
    for url in ("http://169.254.169.254/latest/", "http://10.0.0.1/", "http://a.test:7300/"):
        await run(enclosure, f"curl -s {url}")
    assert room.reasons(sandbox_id) == [
        Reason.ADDRESS_PRIVATE,
        Reason.ADDRESS_PRIVATE,
        Reason.MESH_PORT,
    ]


async def test_a_policy_changes_while_programs_run(room: Room) -> None:
    async with served(hello_http) as port:
        sandbox_id, enclosure = await room.make(_NONE)
        assert await run(enclosure, "env | grep -ci proxy") == "0\n"
        # The sandbox is sealed by now; its first process still gives it a way out.
        await room.change(sandbox_id, egress(f"a.test:{port}"))
        fetch = f"curl -s http://a.test:{port}/"
        assert await run(enclosure, fetch) == "hello"
        await room.change(sandbox_id, _NONE)
        assert "network_none" in await run(enclosure, fetch)
        await room.change(sandbox_id, egress(f"*.test:{port}"))
        assert await run(enclosure, fetch) == "hello"


async def test_sandboxes_are_told_apart(room: Room) -> None:
    async with served(hello_http) as port:
        one, inside_one = await room.make(egress(f"a.test:{port}"))
        two, inside_two = await room.make(egress())
        assert await run(inside_one, f"curl -s http://a.test:{port}/") == "hello"
        door = await run(inside_one, "echo -n ${http_proxy##*:}")
        refused = await run(inside_two, f"curl -s http://a.test:{port}/")
        assert "not_listed" in refused
        # The other one's door is in the other one's network.
        stolen = await run(
            inside_two, f"curl -s -x http://127.0.0.1:{door} http://a.test:{port}/; echo $?"
        )
        assert stolen != "hello"
        assert room.reasons(one) == [Reason.ALLOWED]
        assert set(room.reasons(two)) == {Reason.NOT_LISTED}


async def test_a_release_ends_what_is_open(room: Room) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        finally:
            ended.set()

    async with served(serve) as port:
        sandbox_id, enclosure = await room.make(egress(f"a.test:{port}"))
        running = asyncio.create_task(
            run(enclosure, f"curl -s http://a.test:{port}/ -o /dev/null; echo $?")
        )
        await room.bench.decided(Reason.ALLOWED)
        await room.networks.cut(sandbox_id)
        await enclosure.destroy()
        await running
        await ended.wait()
        del room.enclosures[sandbox_id]


async def test_the_hosts_network_is_had_where_it_is_configured(walls: Survey) -> None:
    host = NetworkPolicy(NetworkMode.HOST)
    async with served(hello_http) as port:
        fetch = f"curl -s -m 5 http://127.0.0.1:{port}/; echo ' '$?"
        async with open_walled(walls) as isolation:
            assert host.mode not in isolation.networks
            with pytest.raises(FairleadError) as caught:
                await isolation.enclose(random_id("sbx"), Limits(), host, tenant="ada")
            assert caught.value.reason == "network_unavailable"
        async with open_walled(walls, host_network=True, pool_size=1) as isolation:
            assert isolation.networks == (NetworkMode.NONE, NetworkMode.EGRESS, NetworkMode.HOST)
            for policy, reached, stands in ((host, "hello 0\n", False), (_NONE, " 7\n", True)):
                enclosure = await isolation.enclose(
                    random_id("sbx"), Limits(), policy, tenant="ada"
                )
                assert await run(enclosure, fetch) == reached
                (wall,) = (each for each in enclosure.walls if each.name == "network")
                assert wall.stands is stands
                assert stands or wall.reason
                await enclosure.destroy()


_LISTEN = """
import json, socket
found = []
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    listener = socket.socket(family)
    listener.bind((address, 0))
    listener.listen()
    found.append((listener, listener.getsockname()[1]))
print(json.dumps([port for _, port in found]), flush=True)
for listener, _ in found:
    connection, _ = listener.accept()
    connection.sendall(b"inside")
    connection.close()
"""


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's Python")
async def test_ports_inside_are_reached_through_the_first_process(room: Room) -> None:
    _, enclosure = await room.make(_NONE)
    program = await enclosure.start(
        ProgramOrder(
            execution_id=random_id("exe"),
            arguments=("/usr/bin/python3", "-c", _LISTEN),
            environment={},
            directory="",
            stdin=False,
        )
    )
    (piece,) = await program.read()
    loop = asyncio.get_running_loop()
    for port in json.loads(piece.content):
        connection = await enclosure.connect(port)
        assert connection is not None
        with connection:
            connection.setblocking(False)
            assert await loop.sock_recv(connection, 100) == b"inside"
    program.close()
    async with served(hello_http) as port:
        assert await enclosure.connect(port) is None, "the host's ports are not the sandbox's"
