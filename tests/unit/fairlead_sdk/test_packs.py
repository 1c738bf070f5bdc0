"""The pack for a miss makes a host whole, and holds nothing that the host has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.packs import stream_pack
from fairlead_sdk.repository import read_repository
from tests.fakes.local_repository import LocalRepository


@pytest.fixture
def host(tmp_path: Path) -> LocalRepository:
    """An empty store."""
    return LocalRepository.make(tmp_path / "host", "--bare")


def objects_in(pack: bytes) -> int:
    return int.from_bytes(pack[8:12], "big") if pack else 0


def test_a_first_pack_holds_every_head_and_the_changes(
    repository: LocalRepository, host: LocalRepository, tmp_path: Path
) -> None:
    repository.git("checkout", "-q", "-b", "side", "HEAD~1")
    side = repository.commit("aside")
    repository.git("checkout", "-q", "main")
    repository.write("large", os.urandom(400_000))
    found = read_repository(repository.path)
    assert found.changes is not None
    assert found.changes.pack == b""
    host.receive(b"".join(stream_pack(found)))
    for commit in (found.commit, side):
        host.git("rev-list", "--objects", commit)
    assert host.checked_out(found.changes.tree, tmp_path / "out") == repository.files()
    found.close()


def test_what_the_host_has_is_left_out(repository: LocalRepository, host: LocalRepository) -> None:
    first = read_repository(repository.path)
    host.receive(b"".join(stream_pack(first)))
    repository.write("readme.txt", b"three\n")
    repository.commit("third")
    found = read_repository(repository.path)
    pack = b"".join(stream_pack(found, host_tips=["f" * 40, first.commit, "no id at all"]))
    assert objects_in(pack) == 3, "commit, tree and blob"
    host.receive(pack)
    host.git("rev-list", "--objects", found.commit)


def test_nothing_is_sent_when_nothing_is_lacking(repository: LocalRepository) -> None:
    found = read_repository(repository.path)
    assert list(stream_pack(found, host_tips=[found.commit])) == []


def test_a_repository_with_holes_says_so(repository: LocalRepository) -> None:
    found = read_repository(repository.path)
    blob = repository.git("rev-parse", "HEAD:source/main.py")
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(RepositoryError) as caught:
        list(stream_pack(found))
    assert caught.value.reason == "objects_missing"
    assert "git fsck" in caught.value.remedy


def test_a_pack_that_nobody_reads_to_the_end_leaves_no_process(repository: LocalRepository) -> None:
    repository.write("large", os.urandom(3_000_000))
    repository.commit()
    pack = stream_pack(read_repository(repository.path))
    assert next(pack).startswith(b"PACK")
    pack.close()
    assert list(pack) == []
