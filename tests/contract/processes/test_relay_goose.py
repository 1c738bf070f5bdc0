"""How GooseRelayVPN is reached by the relay's benchmark: by SOCKS5, from a checkout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from benchmarks.relay.go_program import can_be_built
from benchmarks.relay.goose import goose_path
from benchmarks.relay.load import ContentWrong, loaded

from fairlead_tunnel.socks5 import Asked, Reply, Socks5Server, encode_reply

SIZE = 2_000_000


@asynccontextmanager
async def socks_server(reply: Reply) -> AsyncIterator[str]:
    """Answer every client with that, and connect it where it wants to if that is a success."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
        writer.close()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Socks5Server(credentials=None)
        found = None
        while not isinstance(found, Asked):
            found = server.receive(await reader.read(65536))
            writer.write(server.take_outgoing())
        writer.write(encode_reply(reply))
        if reply is Reply.SUCCEEDED:
            far_reader, far_writer = await asyncio.open_connection(
                found.target.host or "127.0.0.1", found.target.port
            )
            far_writer.write(found.early)
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        writer.close()

    listener = await asyncio.start_server(meet, "127.0.0.1", 0)
    async with listener:
        yield f"socks5:127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@pytest.mark.asyncio
async def test_the_load_tool_goes_through_socks5() -> None:
    if not can_be_built():
        pytest.skip("the load tool is built with go, which is not here")
    async with loaded() as load, socks_server(Reply.SUCCEEDED) as front:
        for way in ("up", "down"):
            move = await load.move(way, f"{front},127.0.0.1:{load.target}", 2, SIZE)
            assert 0 < move.stall_ms <= move.seconds * 1000
    async with loaded() as load, socks_server(Reply.CONNECTION_REFUSED) as front:
        with pytest.raises(ContentWrong, match="refused"):
            await load.up(f"{front},127.0.0.1:{load.target}", 1, SIZE)


def test_a_note_says_how_it_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOSE_PATH", str(tmp_path))
    notes: list[str] = []
    assert goose_path(notes) is None
    assert "GOOSE_PATH" in notes[0]
    (tmp_path / "cmd" / "server").mkdir(parents=True)
    assert goose_path([]) == tmp_path
