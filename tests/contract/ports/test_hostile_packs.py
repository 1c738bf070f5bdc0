"""Packs that attack: each is refused for what it is, before anything is checked out, and nothing of
it stays.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, listing
from tests.fakes.hand_made_packs import (
    BLOB,
    COMMIT,
    OFFSET_DELTA,
    TREE,
    HandMade,
    commit,
    copies,
    doubling_chain,
    entry,
    object_id,
    offset,
    pack,
    path_bomb,
    tree,
)
from tests.fakes.provisioner_room import ProvisionerRoom, chunked, open_room
from workspace_provisioner.errors import PackInvalid, PackTooLarge
from workspace_provisioner.git.pack_caps import PackCaps
from workspace_provisioner.sources import Changes, Commits, Source

pytestmark = pytest.mark.asyncio

CAPS = PackCaps(inflated_bytes=40_000_000, object_bytes=20_000_000, paths=1000, chain=40)


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("f", b"line\n")
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host", caps=CAPS) as opened:
        yield opened


async def refused(
    room: ProvisionerRoom, client: GitClient, given: bytes, wanted: str = ""
) -> PackTooLarge:
    source = replace(client.source(), commit=wanted or client.head())
    with pytest.raises(PackTooLarge) as caught:
        await room.importer.receive(source, (), chunked(given))
    assert not room.leftovers()
    assert not await room.stores.holds(source.key)
    return caught.value


def whole_of(client: GitClient, extra: bytes) -> bytes:
    """Return the client's commit as a pack with more objects in it, padded beyond what is small."""
    content = [
        (kind, client.git("cat-file", name, oid))
        for kind, name, oid in (
            (COMMIT, "commit", "HEAD"),
            (TREE, "tree", "HEAD^{tree}"),
            (BLOB, "blob", "HEAD:f"),
        )
    ]
    padding = entry(BLOB, os.urandom(1_100_000))
    entries = [entry(kind, each) for kind, each in content]
    return pack([*entries, padding, extra] if extra else [*entries, padding])


@pytest.mark.parametrize("is_small", [True, False])
async def test_an_object_that_inflates_too_far(
    room: ProvisionerRoom, client: GitClient, is_small: bool
) -> None:
    bomb = entry(BLOB, bytes(21_000_000))
    given = pack([bomb]) if is_small else whole_of(client, bomb)
    error = await refused(room, client, given)
    assert error.fields == {"limit": "20000000", "exceeded": "bytes in one object"}


@pytest.mark.parametrize("is_small", [True, False])
async def test_deltas_that_become_too_much(
    room: ProvisionerRoom, client: GitClient, is_small: bool
) -> None:
    entries = doubling_chain(14, os.urandom(1200))
    padding = [] if is_small else [entry(BLOB, os.urandom(1_100_000))]
    given = pack([*padding, *entries, *doubling_chain(13, os.urandom(2300))])
    assert (len(given) < 8000) is is_small
    error = await refused(room, client, given)
    assert error.fields == {"limit": "40000000", "exceeded": "bytes when unpacked"}


@pytest.mark.parametrize("is_small", [True, False])
async def test_a_chain_of_deltas_that_is_too_long(
    room: ProvisionerRoom, client: GitClient, is_small: bool
) -> None:
    entries, length = [entry(BLOB, b"start")], 5
    for _ in range(41):
        delta = copies(length, length, 1)
        # Each adds a byte, so that no two are the same object.
        delta = delta[:1] + bytes([length + 1]) + delta[2:] + b"\x01x"
        entries.append(entry(OFFSET_DELTA, delta, base=offset(len(entries[-1]))))
        length += 1
    padding = [] if is_small else [entry(BLOB, os.urandom(1_100_000))]
    error = await refused(room, client, pack([*padding, *entries]))
    assert error.fields == {"limit": "40", "exceeded": "deltas on top of each other"}


async def test_a_tree_that_names_ten_thousand_million_paths(
    room: ProvisionerRoom, client: GitClient
) -> None:
    given, wanted = path_bomb(10, 10)
    assert len(given) < 2000
    error = await refused(room, client, given, wanted)
    assert error.fields == {"limit": "1000", "exceeded": "paths in one tree"}
    # Directories without a single file count too.
    made = HandMade()
    inner = made.add(TREE, b"")
    for _ in range(10):
        names = [b"%02d" % number for number in range(10)]
        inner = made.add(TREE, tree([(b"40000", name, inner) for name in names]))
    wanted = made.commit(inner)
    assert (await refused(room, client, made.pack(), wanted)).fields["limit"] == "1000"


async def test_a_large_file_that_is_checked_out_many_times(
    room: ProvisionerRoom, client: GitClient
) -> None:
    made = HandMade()
    blob = made.add(BLOB, bytes(10_000_000))
    root = made.add(TREE, tree([(b"100644", b"%d" % number, blob) for number in range(5)]))
    wanted = made.commit(root)
    error = await refused(room, client, made.pack(), wanted)
    assert error.fields == {"limit": "40000000", "exceeded": "bytes when unpacked"}


@pytest.mark.parametrize(
    ("names", "exceeded"),
    [
        ([b"n" * 256], "bytes in one name"),
        ([b"n" * 250] * 15, "bytes in one path"),
        ([b"d"] * 400, "directories inside each other"),
        ([b"d"] * 20_000, "directories inside each other"),
    ],
)
async def test_paths_that_cannot_be_opened(
    room: ProvisionerRoom, client: GitClient, names: list[bytes], exceeded: str
) -> None:
    made = HandMade()
    mode, inner = b"100644", made.add(BLOB, b"x")
    for name in names:
        inner = made.add(TREE, tree([(mode, name, inner)]))
        mode = b"40000"
    wanted = made.commit(inner)
    error = await refused(room, client, made.pack(), wanted)
    assert error.fields["exceeded"] == exceeded


@pytest.mark.parametrize(
    "name",
    [
        b"..", b".", b"", b".git", b".GIT", b".Git", b"git~1", b".g\xe2\x80\x8cit",
        b"a/b", b".git ",
    ],
)  # fmt: skip
async def test_names_that_would_lead_elsewhere(
    room: ProvisionerRoom, client: GitClient, name: bytes
) -> None:
    made = HandMade()
    blob = made.add(BLOB, b"evil")
    inner = made.add(TREE, tree([(b"100644", b"config", blob)]))
    wanted = made.commit(made.add(TREE, tree([(b"40000", name, inner)])))
    source = replace(client.source(), commit=wanted)
    with pytest.raises(PackInvalid):
        await room.importer.receive(source, (), chunked(made.pack()))
    assert not room.leftovers()


@pytest.mark.parametrize(
    "text",
    [
        '[submodule "../../x"]\n\tpath = s\n\turl = https://example.com/x\n',
        '[submodule "x"]\n\tpath = s\n\turl = --upload-pack=touch /tmp/x\n',
        '[submodule "x"]\n\tpath = -s\n\turl = https://example.com/x\n',
        '[submodule "x"]\n\tpath = s\n\turl = https://example.com/x\n\tupdate = !touch /tmp/x\n',
    ],
)
async def test_submodules_that_attack(room: ProvisionerRoom, client: GitClient, text: str) -> None:
    client.write(".gitmodules", text.encode())
    client.commit()
    with pytest.raises(PackInvalid):
        await room.upload(client)


async def test_links_out_of_the_tree_are_content_and_nothing_follows_them(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    made = HandMade()
    link = made.add(BLOB, os.fsencode(outside))
    deeper = made.add(BLOB, b"../../../../etc")
    root = made.add(TREE, tree([(b"120000", b"a", link), (b"120000", b"b", deeper)]))
    source = replace(client.source(), commit=made.commit(root))
    await room.importer.receive(source, (), chunked(made.pack()))
    workspace, path = await room.make("k", source)
    assert os.readlink(path / "a") == str(outside)
    # A file below what was a link: git must not write through it.
    inner = HandMade()
    blob = inner.add(BLOB, b"evil")
    below = inner.add(TREE, tree([(b"100644", b"f", blob)]))
    changed = inner.add(TREE, tree([(b"40000", b"a", below), (b"120000", b"b", deeper)]))
    changes = Changes(changed.hex(), inner.pack())
    _, path = await room.make("l", replace(source, changes=changes))
    assert (path / "a/f").read_bytes() == b"evil"
    assert list(outside.iterdir()) == []
    assert await room.provisioner.count_changes(workspace) == 0


async def test_an_object_that_is_not_what_the_store_has_under_its_name(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    forged = object_id(BLOB, b"the true content")
    loose = room.layout.store(client.source().key) / "objects" / forged.hex()[:2]
    loose.mkdir(exist_ok=True)
    (loose / forged.hex()[2:]).write_bytes(zlib.compress(b"blob 16\0the false contnt"))
    client.write("g", b"the true content")
    client.commit()
    with pytest.raises(PackInvalid):
        await room.upload(client)


def bomb_of_changes() -> Changes:
    """A pack of some hundred bytes with a tree of changes that has too many paths."""
    made = HandMade()
    inner = made.add(BLOB, b"x")
    mode = b"100644"
    for _ in range(10):
        names = [b"%02d" % number for number in range(10)]
        inner = made.add(TREE, tree([(mode, name, inner) for name in names]))
        mode = b"40000"
    return Changes(inner.hex(), made.pack())


def deltas_of_changes() -> Changes:
    """A pack whose objects become too large."""
    made = HandMade()
    inner = made.add(TREE, tree([(b"100644", b"f", made.add(BLOB, b"x"))]))
    return Changes(inner.hex(), pack([*made.entries, *doubling_chain(15, os.urandom(1200))]))


@pytest.mark.parametrize("changes", [bomb_of_changes(), deltas_of_changes()])
async def test_changes_inside_a_request_that_attack(
    room: ProvisionerRoom, client: GitClient, changes: Changes
) -> None:
    await room.upload(client)
    with pytest.raises(PackTooLarge):
        await room.ask("k", client.source(changes=changes))
    assert not list(room.layout.trees.iterdir())
    _, path = await room.make("l", client.source())
    assert listing(path) == listing(client.path)


async def test_commits_inside_a_request_that_attack(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    given, wanted = path_bomb(10, 10)
    source: Source = replace(
        client.source(), commit=wanted, commits=Commits((client.head(),), given)
    )
    with pytest.raises(PackTooLarge):
        await room.ask("k", source)
    assert not await room.stores.knows(source.key, wanted)


async def test_commits_of_the_past_are_measured_when_they_are_checked_out(
    room: ProvisionerRoom, client: GitClient
) -> None:
    made = HandMade()
    given, past = path_bomb(10, 10)
    root = made.add(TREE, tree([(b"100644", b"f", made.add(BLOB, b"y"))]))
    text = commit(root).replace(b"\nauthor", b"\nparent %s\nauthor" % past.encode(), 1)
    tip = made.add(COMMIT, text).hex()
    bomb = given[12:-20]
    count = int.from_bytes(given[8:12], "big") + len(made.entries)
    source = replace(client.source(), commit=tip)
    await room.importer.receive(source, (), chunked(pack([bomb, *made.entries], count=count)))
    _, path = await room.make("k", source)
    assert (path / "f").read_bytes() == b"y"
    with pytest.raises(PackTooLarge):
        await room.ask("l", replace(source, commit=past))
