"""Two trees are compared to what has to be written; what git should judge is left to git."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

import workspace_provisioner.git.tree_changes as module
from workspace_provisioner.git.pack_objects import Found, Unsuited, object_id
from workspace_provisioner.git.tree_changes import (
    MOST_CHANGES,
    MOST_TREE_BYTES,
    Entries,
    TreeChanges,
    Written,
    compared,
)
from workspace_provisioner.sources import ObjectFormat

SHA1 = ObjectFormat.SHA1
Content = bytes | tuple[bytes, bytes] | Mapping[bytes, "Content"]

pytestmark = pytest.mark.asyncio


class Objects:
    """A store in memory; a tree is a dict, a file its bytes, anything else a mode with bytes."""

    def __init__(self) -> None:
        self.found: dict[str, Found] = {}
        self.rounds = 0

    def add(self, kind: str, content: bytes) -> str:
        oid = object_id(SHA1, kind, content)
        self.found[oid] = (kind, content)
        return oid

    def tree(self, entries: Mapping[bytes, Content]) -> str:
        lines = []
        for name, content in entries.items():
            match content:
                case bytes():
                    line = (b"100644", self.add("blob", content))
                case tuple():
                    line = (content[0], self.add("blob", content[1]))
                case _:
                    line = (b"40000", self.tree(content))
            lines.append((name, *line))
        lines.sort(key=lambda line: line[0] + b"/" * (line[1] == b"40000"))
        return self.raw(lines)

    def raw(self, lines: Iterable[tuple[bytes, bytes, str]]) -> str:
        return self.add(
            "tree",
            b"".join(mode + b" " + name + b"\0" + bytes.fromhex(oid) for name, mode, oid in lines),
        )

    async def fetch(self, oids: Iterable[str]) -> Mapping[str, Found]:
        self.rounds += 1
        return {oid: self.found[oid] for oid in oids if oid in self.found}


def written(path: tuple[bytes, ...], mode: int | None, content: bytes) -> Written:
    return Written(path, mode, content, object_id(SHA1, "blob", content))


async def changes(before: Mapping[bytes, Content], after: Mapping[bytes, Content]) -> TreeChanges:
    store = Objects()
    return await compared(store.fetch, SHA1, store.tree(before), store.tree(after))


async def unsuited(entries: Mapping[bytes, Content]) -> str:
    with pytest.raises(Unsuited) as caught:
        await changes({b"a": b"1"}, entries)
    return str(caught.value)


async def test_files_links_and_directories() -> None:
    before: Mapping[bytes, Content] = {
        b"same": b"same",
        b"changed": b"1",
        b"gone": b"1",
        b"run": b"1",
        b"d": {b"e": {b"f": b"1", b"g": b"2"}, b"h": b"3"},
        b"old": {b"x": {b"y": b"4"}},
    }
    after: Mapping[bytes, Content] = {
        b"same": b"same",
        b"changed": b"2",
        b"run": (b"100755", b"1"),
        b"link": (b"120000", b"d/h"),
        b"d": {b"e": {b"f": b"5", b"g": b"2"}, b"h": b"3"},
        b"new": {b"x": {b"y": b"4"}},
    }
    found = await changes(before, after)
    assert sorted(found.gone) == [(b"gone",), (b"old",)]
    assert sorted(found.replaced) == [(b"changed",), (b"d", b"e", b"f"), (b"run",)]
    assert sorted(found.directories) == [(b"new",), (b"new", b"x")]
    assert sorted(found.written, key=lambda each: each.path) == [
        written((b"changed",), 0o644, b"2"),
        written((b"d", b"e", b"f"), 0o644, b"5"),
        written((b"link",), None, b"d/h"),
        written((b"new", b"x", b"y"), 0o644, b"4"),
        written((b"run",), 0o755, b"1"),
    ]


async def test_a_directory_becomes_a_file_and_a_file_a_directory() -> None:
    found = await changes({b"a": {b"b": b"1"}, b"c": b"2"}, {b"a": b"1", b"c": {b"d": b"2"}})
    assert found.gone == []
    assert sorted(found.replaced) == [(b"a",), (b"c",)]
    assert found.directories == [(b"c",)]
    assert {each.path for each in found.written} == {(b"a",), (b"c", b"d")}


async def test_only_what_differs_is_read() -> None:
    store = Objects()
    many: Mapping[bytes, Content] = {b"x%d" % n: {b"y": b"%d" % n} for n in range(50)}
    old, new = store.tree(many), store.tree({**many, b"x7": {b"y": b"other"}})
    asked: set[str] = set()

    async def fetch(oids: Iterable[str]) -> Mapping[str, Found]:
        asked.update(oids)
        return await store.fetch(oids)

    await compared(fetch, SHA1, old, new)
    assert len(asked) == 5
    assert store.rounds == 3


@pytest.mark.parametrize(
    "name",
    [b".git", b".GIT", b".git ", b".git.", b".git::$INDEX_ALLOCATION", b"git~1", b".gitmodules",
     b".gitattributes", b".g\xe2\x80\x8cit", b".", b"..", b"n" * 256],
)  # fmt: skip
async def test_delicate_names_are_left_to_git(name: bytes) -> None:
    assert await unsuited({b"a": b"1", name: b"x"}) == "a delicate name"
    assert await unsuited({b"a": b"1", b"sub": {name: b"x"}}) == "a delicate name"
    assert await unsuited({b"a": b"1", name: {b"config": b"x"}}) == "a delicate name"


async def test_unusual_entries_are_left_to_git() -> None:
    assert await unsuited({b"a": (b"100664", b"1")}) == "an unusual entry"
    assert await unsuited({b"module": (b"160000", b"1")}) == "an unusual entry"
    assert await unsuited({b"l": (b"120000", b"")}) == "a link that cannot be made"
    assert await unsuited({b"l": (b"120000", b"a\0b")}) == "a link that cannot be made"
    many: Mapping[bytes, Content] = {b"%d" % n: b"" for n in range(MOST_CHANGES + 1)}
    assert await unsuited(many) == "too many changes"
    deep: Content = b"x"
    for _ in range(101):
        deep = {b"d": deep}
    assert await unsuited({b"d": deep}) == "too deep"


async def test_a_large_tree_that_is_named_often_is_not_looked_at_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a new one, nor one that is there and changes a little in every place."""
    store = Objects()
    looked = 0
    parse = module._entries

    def counted(trees: Mapping[str, Found], oid: str, object_format: ObjectFormat) -> Entries:
        nonlocal looked
        found = parse(trees, oid, object_format)
        looked += len(found)
        return found

    monkeypatch.setattr(module, "_entries", counted)
    blob = store.add("blob", b"x")

    def large(*more: bytes) -> str:
        names = sorted([b"%05d" % number for number in range(5000)] + list(more))
        return store.raw((name, b"100644", blob) for name in names)

    def often(tree: str) -> str:
        return store.raw((b"d%04d" % number, b"40000", tree) for number in range(1500))

    one = large()
    with pytest.raises(Unsuited, match="too many changes"):
        await compared(store.fetch, SHA1, store.tree({}), often(one))
    assert looked < 10_000
    looked = 0
    with pytest.raises(Unsuited, match="too large trees"):
        await compared(store.fetch, SHA1, often(one), often(large(b"more")))
    assert looked < 2 * MOST_TREE_BYTES // 30


async def test_a_tree_that_is_too_large_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Objects()
    old, large = store.tree({}), store.add("tree", bytes(MOST_TREE_BYTES + 1))
    monkeypatch.setattr(module, "_entries", None)
    with pytest.raises(Unsuited, match="too large trees"):
        await compared(store.fetch, SHA1, old, large)


async def test_directories_that_change_are_limited_too() -> None:
    names = [b"%04d" % number for number in range(MOST_CHANGES + 1)]
    before: Mapping[bytes, Content] = {name: {b"a": b"1"} for name in names}
    after: Mapping[bytes, Content] = {name: {b"a": b"1", b"b": {}} for name in names}
    with pytest.raises(Unsuited, match="too many changes"):
        await changes(before, after)


async def test_trees_that_are_none() -> None:
    store = Objects()
    old, blob = store.tree({b"a": b"1"}), store.add("blob", b"x")
    for lines in (
        [(b"b", b"100644", blob), (b"a", b"100644", blob)],
        [(b"a", b"100644", blob), (b"a", b"100755", blob)],
        [(b"a/b", b"100644", blob)],
        [(b"", b"100644", blob)],
        [(b"a", b"100644", blob[:-2])],
    ):
        with pytest.raises(Unsuited, match="not a tree"):
            await compared(store.fetch, SHA1, old, store.raw(lines))
    with pytest.raises(Unsuited, match="a tree is lacking"):
        await compared(store.fetch, SHA1, old, blob)
    with pytest.raises(Unsuited, match="a tree is lacking"):
        await compared(store.fetch, SHA1, old, "f" * 40)
    with pytest.raises(Unsuited, match="a file is lacking"):
        await compared(store.fetch, SHA1, old, store.raw([(b"a", b"100644", "f" * 40)]))
