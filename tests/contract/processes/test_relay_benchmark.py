"""The relay's benchmark believes no tunnel: one that changes what it carries fails it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from benchmarks.recording import Recording
from benchmarks.relay import bulk
from benchmarks.relay.bulk import Measured
from benchmarks.relay.go_program import built, can_be_built
from benchmarks.relay.load import SOURCE, ContentWrong, Load, loaded
from benchmarks.relay.ours import pumps_natively
from benchmarks.relay.peers import Peer, Tunnel, installed

SIZE = 2_000_000
Change = Callable[[list[bytes]], list[bytes]]


@pytest_asyncio.fixture
async def load() -> AsyncIterator[Load]:
    """The tool, built from its source."""
    if not can_be_built():
        pytest.skip("the load tool is built with go, which is not here")
    async with loaded() as tool:
        yield tool


@asynccontextmanager
async def hop(target: int, change: Change) -> AsyncIterator[str]:
    """A forward that holds the first eight pieces of an upload and changes them."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
        writer.close()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        back = asyncio.create_task(copy(far_reader, writer))
        head = await reader.readexactly(9)
        far_writer.writelines([head, *change([await reader.readexactly(1) for _ in range(8)])])
        await copy(reader, far_writer)
        await back

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.asyncio
async def test_a_tunnel_that_changes_nothing_passes(load: Load) -> None:
    async with hop(load.target, lambda pieces: pieces) as address:
        assert await load.up(address, 2, SIZE) > 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda pieces: pieces[::-1], id="early bytes reversed"),
        pytest.param(lambda pieces: [*pieces[:-1], b"?"], id="a byte changed"),
    ],
)
async def test_a_tunnel_that_changes_early_bytes_fails_it(load: Load, change: Change) -> None:
    async with hop(load.target, change) as address:
        with pytest.raises(ContentWrong):
            await load.up(address, 1, SIZE)


@pytest.mark.asyncio
async def test_the_target_ends_with_who_started_it() -> None:
    if not can_be_built():
        pytest.skip("the load tool is built with go, which is not here")
    async with built(SOURCE) as tool:
        serving = await asyncio.create_subprocess_exec(
            tool, "serve", "127.0.0.1", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert serving.stdin is not None
        serving.stdin.close()
        async with asyncio.timeout(10):
            assert await serving.wait() == 0


@pytest.mark.asyncio
async def test_every_peer_that_is_here_moves_what_it_is_given(load: Load) -> None:
    for peer in installed([]):
        async with peer.opened(load.target) as tunnel:
            await load.up(tunnel.address, 2, SIZE)
            await load.down(tunnel.address, 2, SIZE)
            assert await load.ping(tunnel.address, 10) > 0
            async with load.idle(tunnel.address, 3):
                assert await _takes_more(tunnel)


async def _takes_more(tunnel: Tunnel) -> bool:
    host, _, port = tunnel.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
    return True


@pytest.mark.parametrize(("name", "is_native"), [("fairlead-pump", True), ("cat", False)])
def test_a_process_is_asked_which_pump_it_has(tmp_path: Path, name: str, is_native: bool) -> None:
    program = tmp_path / name  # its only thread is called so, once it runs
    shutil.copy("/bin/cat", program)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"runs\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"runs\n"
        assert pumps_natively(process.pid) == is_native


def test_ratios_are_those_to_the_best_of_the_others() -> None:
    def measured(name: str, value: float, *, is_encrypted: bool = True) -> Measured:
        names = (*bulk.BULK, *bulk.OPENS, bulk.PING)
        peer = Peer(name, is_encrypted, lambda _: hop(0, lambda pieces: pieces))  # type: ignore[arg-type,return-value]
        return Measured(peer, dict.fromkeys(names, value))

    recording = Recording(name="relay", runs=1)
    found = [
        measured("native", 30),
        measured("chisel", 10),
        measured("wstunnel", 20),
        measured("socat", 40, is_encrypted=False),
        measured("direct", 100, is_encrypted=False),
    ]
    bulk.report(recording, found, ["native"])
    assert recording.metrics["native_vs_best_peer_min"] == 1.5
    assert recording.metrics["native_vs_chisel_frp_rathole_min"] == 3
    assert recording.metrics["native_opens_per_s_50_vs_best_peer"] == 0.75
    assert recording.metrics["native_ping_vs_best_peer"] == 3
    assert recording.peers["direct_up_1"] == 100
