"""Network policies through a worker's own API, in real walled sandboxes where there are walls."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.rpc_errors import neighbour_errors
from fairlead.sandbox.v1 import sandbox_pb2 as pb
from tests.contract.wire.sandbox_room import TENANT, SandboxRoom, room_in_process, room_settings
from tests.fakes.egress_bench import served
from tests.fakes.walled import survey

pytestmark = pytest.mark.asyncio

NONE = pb.NetworkPolicy(mode=pb.NETWORK_MODE_NONE)
HOST = pb.NetworkPolicy(mode=pb.NETWORK_MODE_HOST)


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    settings = room_settings(tmp_path, sockets, egress_allow="127.0.0.1/32", pool_size=0)
    async with room_in_process(settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def walled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where sandboxes cannot be walled."""
    survey(tmp_path_factory.mktemp("walls"))


def egress(*allow: str) -> pb.NetworkPolicy:
    return pb.NetworkPolicy(mode=pb.NETWORK_MODE_EGRESS, allow=allow)


async def create(
    room: SandboxRoom, isolation: str, network: pb.NetworkPolicy | None = None
) -> pb.Sandbox:
    with neighbour_errors("worker"):
        answer = await room.sandboxes.CreateSandbox(
            pb.CreateSandboxRequest(
                tenant=TENANT,
                idempotency_key=random_id("lch"),
                isolation=isolation,
                network=network,
            )
        )
    return answer.sandbox


async def set_network(
    room: SandboxRoom, sandbox: pb.Sandbox, network: pb.NetworkPolicy, tenant: str = TENANT
) -> pb.Sandbox:
    with neighbour_errors("worker"):
        answer = await room.sandboxes.SetNetworkPolicy(
            pb.SetNetworkPolicyRequest(
                tenant=tenant, sandbox_id=sandbox.sandbox_id, network=network
            )
        )
    return answer.sandbox


async def network_of(room: SandboxRoom, sandbox: pb.Sandbox) -> pb.GetNetworkResponse:
    with neighbour_errors("worker"):
        return await room.sandboxes.GetNetwork(
            pb.GetNetworkRequest(tenant=TENANT, sandbox_id=sandbox.sandbox_id)
        )


async def test_a_plain_process_is_on_the_hosts_network_and_nowhere_else(
    room: SandboxRoom,
) -> None:
    sandbox = await create(room, "process")
    assert sandbox.network == HOST
    for refused in (NONE, egress("a.test")):
        with pytest.raises(FairleadError) as caught:
            await create(room, "process", refused)
        assert caught.value.reason == "network_unavailable"
        assert caught.value.fields["available"] == "host"
        with pytest.raises(FairleadError) as caught:
            await set_network(room, sandbox, refused)
        assert caught.value.reason == "network_unavailable"
    assert (await network_of(room, sandbox)) == pb.GetNetworkResponse(network=HOST)


@pytest.mark.usefixtures("walled")
async def test_a_walled_one_has_none_unless_it_asks_for_egress(room: SandboxRoom) -> None:
    sandbox = await create(room, "walled")
    assert sandbox.network == NONE
    with pytest.raises(FairleadError) as caught:
        await create(room, "walled", HOST)
    assert (caught.value.reason, caught.value.fields["most"]) == ("network_exceeded", "egress")
    with pytest.raises(FairleadError) as caught:
        await set_network(room, sandbox, HOST)
    assert caught.value.reason == "network_exceeded"
    with pytest.raises(FairleadError) as caught:
        await set_network(room, sandbox, egress("a b"))
    assert (caught.value.reason, caught.value.fields["entry"]) == ("allow_entry_invalid", "a b")
    with pytest.raises(FairleadError) as caught:
        await set_network(room, sandbox, egress("a.test"), tenant="somebody")
    assert caught.value.reason == "sandbox_not_found"


@pytest.mark.usefixtures("walled")
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl inside the sandbox")
async def test_what_a_program_may_reach_changes_and_every_decision_is_shown(
    room: SandboxRoom,
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    async with served(serve) as port:
        url = f"http://127.0.0.1:{port}/"
        sandbox = await create(room, "walled", egress(f"127.0.0.1:{port}"))
        # Programs that honour NO_PROXY would not ask the proxy for their own loopback.
        curl = ["curl", "-s", "--noproxy", "", url]
        assert (await room.run(sandbox.sandbox_id, *curl)).stdout == b"ok"
        changed = await set_network(room, sandbox, egress("a.test"))
        assert changed.network == egress("a.test")
        refused = (await room.run(sandbox.sandbox_id, *curl)).stdout
        assert refused == b"The sandbox's network policy: not_listed.\n"
        seen = await network_of(room, sandbox)
        assert seen.network == egress("a.test")
        assert [(each.host, each.port, each.address, each.reason) for each in seen.decisions] == [
            ("127.0.0.1", port, "127.0.0.1", "allowed"),
            ("127.0.0.1", port, "", "not_listed"),
        ]
        assert all(each.at.seconds for each in seen.decisions)
        assert await room.release(sandbox.sandbox_id)
        with pytest.raises(FairleadError) as caught:
            await network_of(room, sandbox)
        assert caught.value.reason == "sandbox_not_found"
