"""File agents and who asks them: any bytes, many at once, stops, lies, a full disk."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chassis.errors import FairleadError
from sandbox_worker.file import (
    FileKind,
    FileStat,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    StatFile,
    TreeSize,
    WriteFile,
    WriteMode,
    WriteOrder,
)
from sandbox_worker.file_agent.frames import ANSWER, CONTENT, FAILURE, frame, join
from sandbox_worker.file_line import FileLine
from sandbox_worker.files import Files
from tests.contract.wire.file_room import member, tar_of
from tests.fakes.file_service import SANDBOX, TENANT, OneSandbox


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[OneSandbox]:
    root = tmp_path / "workspace"
    root.mkdir()
    made = OneSandbox(root=root)
    yield made
    made.enclosure.agents.end()


class Client:
    """The files of the one sandbox."""

    def __init__(self, sandbox: OneSandbox, *, silence: float = 20.0) -> None:
        self.files = Files(sandboxes=sandbox, silence=silence, wait=silence)

    async def write(self, path: bytes, content: bytes, **order: object) -> FileStat:
        async def pieces() -> AsyncIterator[bytes]:
            yield content

        return await self.files.write(
            tenant=TENANT,
            sandbox_id=SANDBOX,
            order=WriteOrder(path=path, **order),  # type: ignore[arg-type]
            content=pieces(),
        )

    async def read(self, path: bytes, offset: int = 0, length: int | None = None) -> bytes:
        found = self.files.read(
            tenant=TENANT, sandbox_id=SANDBOX, path=path, offset=offset, length=length
        )
        async with aclosing(found) as frames:
            return b"".join([each async for each in frames if isinstance(each, bytes)])

    async def upload(self, path: bytes, tree: bytes) -> TreeSize:
        async def pieces() -> AsyncIterator[bytes]:
            yield tree

        return await self.files.upload(
            tenant=TENANT, sandbox_id=SANDBOX, path=path, parents=False, content=pieces()
        )

    async def stat(self, path: bytes) -> FileStat:
        return await self.files.stat(tenant=TENANT, sandbox_id=SANDBOX, path=path)


async def reason_of(work: Awaitable[object]) -> str:
    with pytest.raises(FairleadError) as caught:
        await work
    return caught.value.reason


PATHS = st.lists(
    st.binary(min_size=1, max_size=40).filter(
        lambda name: not (set(name) & {0, ord("/")}) and name not in (b".", b"..")
    ),
    min_size=1,
    max_size=3,
).map(b"/".join)


@pytest.mark.asyncio
async def test_any_bytes_under_any_name(sandbox: OneSandbox) -> None:
    client = Client(sandbox)
    examples: list[tuple[bytes, bytes]] = []

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(PATHS, st.binary(max_size=600_000))
    def collect(path: bytes, content: bytes) -> None:
        examples.append((path, content))

    await asyncio.to_thread(collect)
    for number, (path, content) in enumerate(examples):
        place = b"%d/%s" % (number, path)
        stat = await client.write(place, content, parents=True)
        assert stat.size == len(content)
        assert await client.read(place) == content
        start = len(content) // 3
        assert await client.read(place, start, 1000) == content[start : start + 1000]


@pytest.mark.asyncio
async def test_steps_of_a_batch(sandbox: OneSandbox) -> None:
    files = Client(sandbox).files

    async def perform(operation: object) -> object:
        return await files.perform(
            tenant=TENANT,
            sandbox_id=SANDBOX,
            operation=operation,  # type: ignore[arg-type]
        )

    await perform(MakeDirectory(b"d/e", parents=True))
    await perform(WriteFile(b"d/f", b"content", permissions=0o600))
    await perform(MoveFile(b"d/f", b"d/g"))
    read = await files.perform(tenant=TENANT, sandbox_id=SANDBOX, operation=ReadFile(b"d/g"))
    assert read.content == b"content"
    stat = await files.perform(tenant=TENANT, sandbox_id=SANDBOX, operation=StatFile(b"d"))
    assert stat.stat is not None
    assert stat.stat.kind is FileKind.DIRECTORY
    await perform(RemoveFile(b"d", recursive=True))
    (sandbox.root / "big").write_bytes(bytes(1024 * 1024 + 1))
    assert await reason_of(perform(ReadFile(b"big"))) == "file_too_large"
    assert os.listdir(sandbox.root) == ["big"]


@pytest.mark.asyncio
async def test_many_at_once_and_a_slow_reader(sandbox: OneSandbox) -> None:
    client = Client(sandbox)
    (sandbox.root / "big").write_bytes(os.urandom(4_000_000))
    slow = client.files.read(tenant=TENANT, sandbox_id=SANDBOX, path=b"big", offset=0, length=None)
    assert isinstance(await anext(slow), FileStat)
    stats = await asyncio.gather(*(client.stat(b"") for _ in range(24)))
    assert {stat.kind for stat in stats} == {FileKind.DIRECTORY}
    assert sum([len(each) async for each in slow if isinstance(each, bytes)]) == 4_000_000


@pytest.mark.asyncio
async def test_an_agent_that_says_nothing_is_killed(sandbox: OneSandbox) -> None:
    near, far = socket.socketpair()
    with far:
        sandbox.enclosure.agents.next_line = near
        assert await reason_of(Client(sandbox, silence=0.01).stat(b"x")) == "file_agent_silent"
    assert sandbox.enclosure.agents.killed.is_set()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage that is no frame",
        b"A" + (2**31).to_bytes(4, "big"),
        frame(b"Z"),
        frame(CONTENT, b"not asked for"),
        frame(ANSWER, join(b"too", b"few")),
        frame(ANSWER, join(b"n", b"nonsense", 1, 1, 1, b"", b"e")),
        frame(ANSWER, join(b"n", b"file", b"1e9", 1, 1, b"", b"e")),
        frame(ANSWER, join(b"n", b"file", b"9" * 30, 1, 1, b"", b"e")),
        frame(ANSWER, join(b"n", b"file", 1, 1, 1, b"", b'"\n')),
        frame(FAILURE, b"one"),
    ],
)
async def test_an_agent_that_lies(sandbox: OneSandbox, said: bytes) -> None:
    near, far = socket.socketpair()
    with far:
        far.sendall(said)
        far.shutdown(socket.SHUT_WR)
        sandbox.enclosure.agents.next_line = near
        assert await reason_of(Client(sandbox).stat(b"x")) == "file_agent_lost"


@pytest.mark.asyncio
async def test_an_unknown_failure_is_ours(sandbox: OneSandbox) -> None:
    near, far = socket.socketpair()
    with far:
        far.sendall(frame(FAILURE, join(b"made_up", b"x", b"EWHAT")))
        sandbox.enclosure.agents.next_line = near
        assert await reason_of(Client(sandbox).stat(b"x")) == "file_failed"


@pytest.mark.asyncio
async def test_an_early_refusal_reaches_who_still_writes(sandbox: OneSandbox) -> None:
    client = Client(sandbox)
    await client.write(b"f", b"old")

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(200_000)

    order = WriteOrder(path=b"f", mode=WriteMode.CREATE)
    assert (
        await reason_of(
            client.files.write(tenant=TENANT, sandbox_id=SANDBOX, order=order, content=endless())
        )
        == "file_exists"
    )
    assert await client.read(b"f") == b"old"


@pytest.mark.asyncio
async def test_a_line_can_be_closed_twice() -> None:
    near, far = socket.socketpair()

    async def kill() -> None:
        raise AssertionError("nothing is silent")

    with far:
        line = FileLine(link=near, kill=kill, silence=1)
        line.close()
        line.close()
        assert far.recv(1) == b""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.root
@pytest.mark.asyncio
async def test_a_full_disk_keeps_what_was_there(small_disk: Path) -> None:
    sandbox = OneSandbox(root=small_disk)
    client = Client(sandbox)
    try:
        await client.write(b"f", b"old" * 1000)
        assert await reason_of(client.write(b"f", bytes(4_000_000))) == "no_space"
        assert await reason_of(client.write(b"g", bytes(4_000_000))) == "no_space"
        tree = tar_of((member("d/a"), b"a" * 1_000_000), (member("d/b"), b"b" * 2_000_000))
        assert await reason_of(client.upload(b"up", tree)) == "no_space"
        assert os.listdir(small_disk) == ["f"]
        assert await client.read(b"f") == b"old" * 1000
        await client.write(b"g", bytes(1_000_000))
    finally:
        sandbox.enclosure.agents.end()
