"""What lies in the working directory arrives byte for byte, whatever git converts on the way."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead_sdk.repository import read_repository
from tests.fakes.git_client import GitClient, listing
from tests.fakes.mounted_layers import copy_out
from tests.fakes.provisioner_room import open_room
from workspace_provisioner.sources import Changes

ATTRIBUTES = [
    "*.bat text eol=crlf",
    "* text=auto",
    "*.txt text",
    "*.txt eol=lf",
    "*.id ident",
    "*.u working-tree-encoding=UTF-16LE",
    "*.up filter=upper",
    "*.bat binary",
    "[attr]win text eol=crlf\n*.txt win",
]
TEXTS = [b"a\nb\n", b"a\r\nb\r\n", b"a\r\nb\n", b"$Id$\n", b"$Id: known $\r\n", b"", b"\0\r\n"]
_BOTH_FILES_BYTES = 2 * 17
FILES = st.one_of(
    st.tuples(
        st.sampled_from(["a.bat", "b.bat", "a.txt", "d/b.txt", "a.id", "a.up", "plain"]),
        st.sampled_from(TEXTS),
    ),
    st.tuples(st.just("a.u"), st.sampled_from([b"a\0\n\0", b"a\0\r\0\n\0"])),
)


def configure(client: GitClient, autocrlf: str) -> None:
    client.git("config", "filter.upper.clean", "tr A-Z a-z")
    client.git("config", "filter.upper.smudge", "tr a-z A-Z")
    client.git("config", "core.safecrlf", "false")
    if autocrlf:
        client.git("config", "core.autocrlf", autocrlf)


def check_out_anew(client: GitClient) -> None:
    for name in os.listdir(client.path):
        if name != ".git":
            path = client.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    client.git("checkout", "-q", "HEAD", "--", ".")


async def arrived(
    client: GitClient, place: Path, *, overlay: bool
) -> dict[bytes, tuple[str, bytes]]:
    """Launch what is there twice over, as a client and a host do; nothing counts as changed."""
    found = read_repository(client.path)
    changes = None
    if found.changes is not None:
        assert found.changes.pack
        changes = Changes(found.changes.tree, found.changes.pack)
    found.close()
    async with open_room(place) as room:
        await room.upload(client)
        source = client.source(changes=changes)
        made, path = await room.make("made", source, overlay=overlay)
        if overlay and room.trees.can_overlay:
            assert await room.trees.count_changes(made) == 0
            return listing(copy_out(room.layout, made.workspace_id, place.with_name("seen")))
        for name in listing(path):
            os.utime(os.path.join(os.fsencode(path), name), (1, 1), follow_symlinks=False)
        assert await room.trees.count_changes(made) == 0
        return listing(path)


@given(
    attributes=st.lists(st.sampled_from(ATTRIBUTES), max_size=4),
    committed=st.lists(FILES, min_size=1, max_size=6),
    anew=st.booleans(),
    rewritten=st.lists(FILES, max_size=4),
    later=st.sampled_from(["", "", "*.txt text eol=crlf\n"]),
    autocrlf=st.sampled_from(["", "", "true", "input"]),
    overlay=st.booleans(),
)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_conversion_arrives_as_it_is(
    attributes: list[str],
    committed: list[tuple[str, bytes]],
    anew: bool,
    rewritten: list[tuple[str, bytes]],
    later: str,
    autocrlf: str,
    overlay: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base = tmp_path_factory.mktemp("example")
    client = GitClient(base / "laptop")
    configure(client, autocrlf)
    if attributes:
        client.write(".gitattributes", "".join(f"{line}\n" for line in attributes).encode())
    for name, content in committed:
        client.write(name, content)
    client.commit()
    if anew:
        check_out_anew(client)
    for name, content in rewritten:
        client.write(name, content)
    if later:
        client.write(".gitattributes", later.encode())
    wanted = listing(client.path)
    assert asyncio.run(arrived(client, base / "host", overlay=overlay)) == wanted
    shutil.rmtree(base)


@pytest.mark.parametrize("overlay", [True, False])
@pytest.mark.parametrize(
    ("attributes", "autocrlf", "content"),
    [
        (b"*.bat text eol=crlf\n", "", b"lf\n"),
        (b"*.bat text eol=crlf\n", "", b"crlf\r\n"),
        (b"*.bat text\n", "", b"crlf\r\n"),
        (b"", "true", b"crlf\r\n"),
        (b"*.bat filter=upper\n", "", b"UPPER\n"),
        (b"*.bat ident\n", "", b"$Id: mine $\n"),
    ],
)
def test_a_file_that_git_takes_for_unchanged_arrives_as_it_is(
    tmp_path: Path, overlay: bool, attributes: bytes, autocrlf: str, content: bytes
) -> None:
    client = GitClient(tmp_path / "laptop")
    configure(client, autocrlf)
    client.write(".gitattributes", attributes)
    client.write("a.bat", content)
    client.commit()
    assert client.git("status", "--porcelain") == b""
    found = asyncio.run(arrived(client, tmp_path / "host", overlay=overlay))
    assert found[b"a.bat"] == ("file", content)


def test_what_was_hashed_is_not_hashed_again_until_it_changes(tmp_path: Path) -> None:
    client = GitClient(tmp_path / "laptop")
    client.write(".gitattributes", b"* text=auto\n")
    path = client.write("a", b"one\r\n")
    client.commit()
    memo = client.path / ".git/fairlead/verbatim"

    def tree() -> str:
        found = read_repository(client.path)
        found.close()
        return found.changes.tree if found.changes is not None else ""

    first = tree()
    assert first
    # A file of the very tick in which it was hashed is hashed again: the clock has to move on.
    while not memo.exists() or len(memo.read_bytes()) < _BOTH_FILES_BYTES:
        assert tree() == first
    noted = memo.read_bytes()
    assert tree() == first
    assert memo.read_bytes() == noted
    facts = path.stat()
    path.write_bytes(b"one\n")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert tree() == ""
    path.unlink()
    path.write_bytes(b"one\r\n")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert tree() == first
