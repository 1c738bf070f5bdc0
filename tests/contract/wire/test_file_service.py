"""FileService of a worker, with real sandboxes: names, contents, trees, watches and their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider

from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.rpc_channel import open_channel
from fairlead.file.v1 import file_pb2 as pb
from tests.contract.wire.file_room import (
    TENANT,
    FileRoom,
    Place,
    left_out_of,
    member,
    names_in,
    reason_of,
    rest_of,
    tar_of,
    watchers,
)
from tests.contract.wire.sandbox_room import room_in_process, room_settings
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio
in_every_tier = pytest.mark.parametrize("place", ["process", "walled"], indirect=True)


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, sockets: Path
) -> AsyncIterator[Place]:
    settings = room_settings(tmp_path, sockets)
    async with (
        room_in_process(settings) as room,
        open_channel(settings.bind, tracer_provider=TracerProvider()) as channel,
    ):
        isolation = getattr(request, "param", "process")
        try:
            sandbox = await room.create(isolation=isolation)
        except FairleadError as error:
            pytest.skip(f"no sandbox is {isolation} here: {error.reason}")
        workspace_id = random_id("wsp")
        room.tree(workspace_id).mkdir(parents=True)
        sandbox = await room.bind(sandbox.sandbox_id, workspace_id)
        files = FileRoom(channel=channel, sandbox_id=sandbox.sandbox_id)
        tree = room.tree(sandbox.workspace_id)
        yield Place(room, sandbox.sandbox_id, files, tree, settings.bind)


@in_every_tier
async def test_bytes_go_in_and_come_out(place: Place) -> None:
    content = os.urandom(1_500_000)
    stat = await place.files.write(b"a/b\xff.bin", content, parents=True)
    assert (stat.kind, stat.size_bytes, stat.permissions) == (
        pb.FILE_KIND_FILE,
        len(content),
        0o644,
    )
    assert await place.files.read(b"a/b\xff.bin") == content
    assert await place.files.read(b"a/b\xff.bin", offset=-7) == content[-7:]
    assert await place.files.read(b"a/b\xff.bin", offset=5, length=9) == content[5:14]
    assert await place.files.read(b"a/b\xff.bin", offset=len(content) + 1) == b""
    assert (place.tree / "a" / os.fsdecode(b"b\xff.bin")).read_bytes() == content
    assert await place.files.names(b"a") == [b"b\xff.bin"]


@in_every_tier
async def test_programs_see_what_was_written(place: Place) -> None:
    await place.files.write(b"run.sh", b"#!/bin/sh\necho seen > made\n", permissions=0o755)
    output = await place.room.run(place.sandbox_id, "./run.sh")
    assert output.exit.code == 0
    assert await place.files.read(b"made") == b"seen\n"


async def test_a_file_is_replaced_whole_with_its_permissions_kept(place: Place) -> None:
    await place.files.write(b"f", b"one", permissions=0o750)
    before = os.open(place.tree / "f", os.O_RDONLY)
    try:
        stat = await place.files.write(b"f", b"second")
        assert os.read(before, 10) == b"one"
    finally:
        os.close(before)
    assert stat.permissions == 0o750
    assert await place.files.names() == [b"f"]


@in_every_tier
async def test_writing_in_ranges(place: Place) -> None:
    range_ = pb.WRITE_MODE_RANGE
    await place.files.write(b"f", b"0123456789")
    await place.files.write(b"f", b"xx", mode=range_, offset=3)
    assert await place.files.read(b"f") == b"012xx56789"
    await place.files.write(b"f", b"y", mode=range_, offset=6, truncate=True)
    assert await place.files.read(b"f") == b"012xx5y"
    await place.files.write(b"g", b"z", mode=range_, offset=4)
    assert await place.files.read(b"g") == b"\0\0\0\0z"
    assert await reason_of(place.files.write(b"f", b"", offset=3)) == "argument_invalid"


async def test_create_and_if_match(place: Place) -> None:
    create = pb.WRITE_MODE_CREATE
    stat = await place.files.write(b"f", b"1", mode=create)
    assert await reason_of(place.files.write(b"f", b"2", mode=create)) == "file_exists"
    second = await place.files.write(b"f", b"22", if_match=stat.etag)
    assert second.etag != stat.etag
    assert await reason_of(place.files.write(b"f", b"3", if_match=stat.etag)) == "file_changed"
    assert await reason_of(place.files.write(b"g", b"3", if_match=stat.etag)) == "file_changed"
    assert await place.files.read(b"f") == b"22"
    assert await place.files.names() == [b"f"]


async def test_a_stream_that_breaks_changes_nothing(place: Place) -> None:
    await place.files.write(b"f", b"whole")

    async def broken() -> AsyncIterator[pb.WriteFileRequest]:
        yield pb.WriteFileRequest(
            open=pb.WriteFileOpening(tenant=TENANT, sandbox_id=place.sandbox_id, path=b"f")
        )
        yield pb.WriteFileRequest(content=b"half")

    call = place.files.stub.WriteFile(broken())
    with pytest.raises(Exception, match="too early"):
        await call
    assert await place.files.read(b"f") == b"whole"

    async def clean() -> list[bytes]:
        return await place.files.names()

    await eventually(clean, lambda names: names == [b"f"])


async def test_a_client_that_leaves_changes_nothing(place: Place) -> None:
    await place.files.write(b"f", b"whole")
    sent = asyncio.Event()

    async def endless() -> AsyncIterator[pb.WriteFileRequest]:
        yield pb.WriteFileRequest(
            open=pb.WriteFileOpening(tenant=TENANT, sandbox_id=place.sandbox_id, path=b"f")
        )
        yield pb.WriteFileRequest(content=b"half")
        sent.set()
        await asyncio.Event().wait()

    call = place.files.stub.WriteFile(endless())
    await sent.wait()
    growing = await eventually(place.files.names, lambda names: len(names) == 2)
    assert growing[0].startswith(b".fairlead-")
    call.cancel()
    await eventually(place.files.names, lambda names: names == [b"f"])
    assert await place.files.read(b"f") == b"whole"


async def test_names_and_what_is_wrong_with_them(place: Place) -> None:
    files = place.files
    await files.mkdir(b"d/e", parents=True)
    await files.write(b"d/f", b"")
    assert await reason_of(files.stat(b"nope")) == "file_not_found"
    assert await reason_of(files.read(b"nope/x")) == "file_not_found"
    assert await reason_of(files.names(b"d/f")) == "not_a_directory"
    assert await reason_of(files.stat(b"d/f/x")) == "not_a_directory"
    assert await reason_of(files.read(b"d")) == "is_a_directory"
    assert await reason_of(files.write(b"d", b"")) == "is_a_directory"
    assert await reason_of(files.mkdir(b"d")) == "file_exists"
    assert await reason_of(files.mkdir(b"d/f", parents=True)) == "not_a_directory"
    assert await reason_of(files.write(b"x/y", b"")) == "file_not_found"
    assert await reason_of(files.stat(b"n" * 256)) == "path_invalid"
    assert await reason_of(files.stat(b"n/" * 3000)) == "path_invalid"
    assert await reason_of(files.stat(b"a\0b")) == "path_invalid"
    assert await reason_of(files.remove(b"")) == "path_invalid"
    assert await reason_of(files.remove(b"d/..", recursive=True)) == "path_invalid"
    assert await reason_of(files.remove(b"d")) == "directory_not_empty"
    assert await reason_of(files.names(b"d", size=5000)) == "page_size_invalid"
    await files.remove(b"d", recursive=True)
    assert await files.names() == []


async def test_lists_are_paged_by_name(place: Place) -> None:
    names = sorted([b"n%03d" % number for number in range(25)] + [b"\xfe", b"\x01", "é".encode()])
    for name in names:
        (place.tree / os.fsdecode(name)).touch()
    assert await place.files.names(size=7) == names
    assert await place.files.names() == names


@in_every_tier
async def test_moves(place: Place) -> None:
    files = place.files
    await files.write(b"a", b"A")
    await files.write(b"b", b"B")
    await files.mkdir(b"d/e", parents=True)
    assert await reason_of(files.move(b"a", b"b")) == "file_exists"
    await files.move(b"a", b"b", overwrite=True)
    assert await files.read(b"b") == b"A"
    stat = await files.move(b"b", b"d/c")
    assert stat.name == b"d/c"
    assert await reason_of(files.move(b"d", b"d/e/f")) == "path_invalid"
    await files.write(b"f", b"")
    assert await reason_of(files.move(b"f", b"d", overwrite=True)) == "is_a_directory"
    assert await reason_of(files.move(b"../f", b"x")) == "path_outside"


@in_every_tier
async def test_links_stay_beneath(place: Place) -> None:
    files, tree = place.files, place.tree
    (tree / "d").mkdir()
    (tree / "d" / "f").write_bytes(b"inside")
    (tree / "in").symlink_to("d/f")
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "up").symlink_to("../..")
    assert await files.read(b"in") == b"inside"
    await files.write(b"in", b"through")
    assert (tree / "in").is_symlink()
    assert (tree / "d" / "f").read_bytes() == b"through"
    view = os.fsencode(await place.view())
    assert await files.read(view + b"/d/f") == b"through"
    for path in (b"out", b"up", b"up/x", b"..", b"d/../../x", b"/etc/passwd", view + b"x"):
        assert await reason_of(files.stat(path)) == "path_outside"
        assert await reason_of(files.read(path)) == "path_outside"
    for path in (b"out", b"up/x", b"d/../../x", b"/tmp/x"):
        assert await reason_of(files.write(path, b"x")) == "path_outside"
    assert await reason_of(files.remove(b"up/x", recursive=True)) == "path_outside"
    stat = await files.stat(b"out", no_follow=True)
    assert (stat.kind, stat.target) == (pb.FILE_KIND_LINK, b"/etc/passwd")
    await files.remove(b"out")
    await files.remove(b"up")
    assert await files.names() == [b"d", b"in"]


@in_every_tier
async def test_trees_come_back_as_they_were(place: Place) -> None:
    tar = tar_of(
        (member("d", kind=b"5", mode=0o750), b""),
        (member("d/run", mode=0o4755), b"#!/bin/sh\n"),
        (member("d/link", kind=b"2", target="run"), b""),
        (member("d/same", kind=b"1", target="d/run"), b""),
        (member("n\udcff"), bytes(700_000)),
    )
    answer = await place.files.upload(b"up", tar)
    assert (answer.entries, answer.content_bytes) == (5, 700_010)
    run = (place.tree / "up" / "d" / "run").stat()
    assert (run.st_mode & 0o7777, run.st_mtime, run.st_nlink) == (0o755, 1_700_000_000, 2)
    assert (place.tree / "up" / "d").stat().st_mtime == 1_700_000_000
    assert os.readlink(place.tree / "up" / "d" / "link") == "run"
    back = await place.files.download(b"up")
    assert names_in(back) == ["d", "d/link", "d/run", "d/same", "n\udcff"]
    await place.files.upload(b"copy", back)
    assert await place.files.download(b"copy") == back
    assert names_in(await place.files.download(b"up/d/run")) == ["run"]
    script = "cd up; mkdir shut; mkfifo pipe; chmod 0 shut"
    await place.room.run(place.sandbox_id, "sh", "-c", script)
    partial = await place.files.download(b"up")
    assert left_out_of(partial) - {"shut"} == {"pipe"}
    assert ("shut" in left_out_of(partial)) is ("shut" not in names_in(partial))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([(member("/abs"), b"x")], "path_outside"),
        ([(member("../x"), b"x")], "path_outside"),
        ([(member("a/../../x"), b"x")], "path_outside"),
        ([(member("l", kind=b"2", target="/etc/passwd"), b"")], "path_outside"),
        ([(member("l", kind=b"2", target="../x"), b"")], "path_outside"),
        ([(member("h", kind=b"1", target="../x"), b"")], "path_outside"),
        ([(member("h", kind=b"1", target="nope"), b"")], "file_not_found"),
        ([(member("dev", kind=b"3"), b"")], "tree_invalid"),
        ([(member("fifo", kind=b"6"), b"")], "tree_invalid"),
        ([(member("big", kind=b"x"), bytes(300_000))], "tree_invalid"),
        ([(member("n" * 300), b"x")], "path_invalid"),
        ([(member("f"), b"x"), (member("f/g"), b"x")], "not_a_directory"),
    ],
)
async def test_hostile_trees_leave_nothing(
    place: Place, members: list[tuple[tarfile.TarInfo, bytes]], reason: str
) -> None:
    tar = tar_of((member("first"), b"1"), *members)
    assert await reason_of(place.files.upload(b"up", tar)) == reason
    assert await reason_of(place.files.upload(b"up", b"no tar" * 999)) == "tree_invalid"
    assert await reason_of(place.files.upload(b"up", tar[:700])) == "tree_invalid"
    assert await place.files.names() == []


@in_every_tier
async def test_a_watch_tells_what_changes(place: Place) -> None:
    (place.tree / "d").mkdir()
    watch = place.files.watch(recursive=True)
    started = await anext(watch)
    assert started.started.directories == 2

    async def told() -> tuple[int, int, bytes, bytes, bool]:
        event = (await anext(watch)).event
        return event.sequence, event.change, event.path, event.source, event.directory

    (place.tree / "d" / "f").write_bytes(b"x")
    assert await told() == (1, pb.FILE_CHANGE_CREATED, b"d/f", b"", False)
    assert await told() == (2, pb.FILE_CHANGE_MODIFIED, b"d/f", b"", False)
    (place.tree / "d" / "f").rename(place.tree / "g")
    assert await told() == (3, pb.FILE_CHANGE_MOVED, b"g", b"d/f", False)
    (place.tree / "d").rename(place.tree / "e")
    assert await told() == (4, pb.FILE_CHANGE_MOVED, b"e", b"d", True)
    (place.tree / "e" / "x").mkdir()
    assert await told() == (5, pb.FILE_CHANGE_CREATED, b"e/x", b"", True)
    (place.tree / "e" / "x").rmdir()
    assert await told() == (6, pb.FILE_CHANGE_REMOVED, b"e/x", b"", True)
    (place.tree / "g").unlink()
    assert await told() == (7, pb.FILE_CHANGE_REMOVED, b"g", b"", False)
    await place.room.release(place.sandbox_id)
    end = await anext(watch)
    assert (end.end.last_sequence, end.end.reason) == (7, pb.WATCH_END_REASON_RELEASED)
    assert await anext(watch, None) is None


async def test_a_watch_ends_with_its_directory(place: Place) -> None:
    await place.files.mkdir(b"d")
    watch = place.files.watch(b"d")
    assert (await anext(watch)).HasField("started")
    (place.tree / "d").rmdir()
    assert (await anext(watch)).end.reason == pb.WATCH_END_REASON_REMOVED
    assert await anext(watch, None) is None


@in_every_tier
async def test_a_release_ends_what_is_under_way(place: Place) -> None:
    sent, released = asyncio.Event(), asyncio.Event()

    async def content() -> AsyncIterator[pb.UploadTreeRequest]:
        opening = pb.UploadTreeOpening(tenant=TENANT, sandbox_id=place.sandbox_id, path=b"up")
        yield pb.UploadTreeRequest(open=opening)
        yield pb.UploadTreeRequest(content=tar_of((member("f"), bytes(3_000_000)))[:400_000])
        sent.set()
        # Not for ever: a client that writes when the status comes does not learn it (grpcio 1.85).
        while not released.is_set():
            yield pb.UploadTreeRequest(content=bytes(100_000))
        yield pb.UploadTreeRequest(content=bytes(100_000))

    with (place.tree / "big").open("wb") as big:
        big.truncate(2**34)
    download = place.files.stub.DownloadTree(
        pb.DownloadTreeRequest(tenant=TENANT, sandbox_id=place.sandbox_id, path=b"big")
    )
    upload = place.files.stub.UploadTree(content())
    assert (await anext(aiter(download))).content == b""
    await sent.wait()
    await place.room.release(place.sandbox_id)
    released.set()
    with pytest.raises(Exception, match="no such sandbox"):
        await upload
    assert await reason_of(rest_of(download)) == "sandbox_not_found"
    assert await reason_of(place.files.stat(b"")) == "sandbox_not_found"


@in_every_tier
async def test_a_killed_agent_is_a_typed_error_and_the_next_is_fresh(place: Place) -> None:
    async with aclosing(place.files.watch()) as watch:
        assert (await anext(watch)).HasField("started")
        (agent,) = watchers()
        os.kill(agent, signal.SIGKILL)
        assert await reason_of(anext(watch)) == "file_agent_lost"
    assert (await place.files.stat(b"")).kind == pb.FILE_KIND_DIRECTORY


async def test_foreign_sandboxes_are_not_found(place: Place) -> None:
    async with open_channel(place.address, tracer_provider=TracerProvider()) as channel:
        foreign = FileRoom(channel=channel, sandbox_id=place.sandbox_id, tenant="other")
        assert await reason_of(foreign.stat(b"")) == "sandbox_not_found"
        assert await reason_of(foreign.write(b"x", b"")) == "sandbox_not_found"
        assert await reason_of(anext(foreign.watch())) == "sandbox_not_found"
    assert await place.files.names() == []
