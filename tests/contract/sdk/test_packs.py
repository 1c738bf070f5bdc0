"""The pack for a miss makes a host whole, and holds nothing that the host has."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead_limits.table import TIPS, UPLOAD_HEAD_BYTES
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.packs import PackMaking, Part, pack_commits, stream_pack, tips_of
from fairlead_sdk.repository import Repository, Tip, read_repository
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
    host.receive(b"".join(stream_pack(found, tips=tips_of(found))))
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
    assert caught.value.reason == "client_objects_missing"
    assert "git fsck" in caught.value.remedy


def test_a_pack_that_nobody_reads_to_the_end_leaves_no_process(repository: LocalRepository) -> None:
    repository.write("large", os.urandom(3_000_000))
    repository.commit()
    pack = stream_pack(read_repository(repository.path))
    assert next(pack).startswith(b"PACK")
    pack.close()
    assert list(pack) == []


def with_heads(repository: LocalRepository, *names: str) -> Repository:
    found = read_repository(repository.path)
    heads = [Tip(ref=f"refs/heads/{name}", commit=found.commit) for name in names]
    return replace(found, tips=(*heads, *found.tips))


def test_the_tips_fit_the_first_line_of_an_upload(repository: LocalRepository) -> None:
    long = with_heads(repository, *(f"{number:0200}" for number in range(4500)))
    tips = tips_of(long)
    assert tips[0].ref == "refs/heads/main", "the branch here goes before all others"
    assert 3000 < len(tips) < 4500
    line = json.dumps({"tips": [{"ref": tip.ref, "commit": tip.commit} for tip in tips]})
    assert len(line) < UPLOAD_HEAD_BYTES
    short = with_heads(repository, *map(str, range(6000)))
    assert len(tips_of(short)) == TIPS.count


def test_names_that_no_host_takes_stop_no_upload(repository: LocalRepository) -> None:
    whole = "/".join(["p" * 200] * 5)
    names = ("a" * 251, "a" * 250, "é" * 126, whole, "caf\N{REPLACEMENT CHARACTER}", "short")
    refs = [tip.ref for tip in tips_of(with_heads(repository, *names))]
    assert refs == ["refs/heads/main", f"refs/heads/{'a' * 250}", "refs/heads/short"]


def test_the_files_go_first_and_the_history_makes_them_whole(
    repository: LocalRepository, host: LocalRepository, tmp_path: Path
) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.write("readme.txt", b"changed since\n")
    repository.commit()
    repository.git("tag", "-a", "-m", "noted", "v1", first)
    found = read_repository(repository.path)
    tips = tips_of(found)
    files = b"".join(stream_pack(found, tips=tips, part=Part.FILES))
    host.git("unpack-objects", stdin=files)
    commit = found.commit
    assert host.checked_out(f"{commit}^{{tree}}", tmp_path / "out") == repository.files()
    assert subprocess_fails(host, "cat-file", "-e", first)
    history = b"".join(stream_pack(found, tips=tips, part=Part.HISTORY))
    host.git("index-pack", "--stdin", "--fix-thin", stdin=history)
    host.git("rev-list", "--objects", commit)
    blob = repository.git("rev-parse", "HEAD:readme.txt")
    names = {line.split()[0] for line in host.git("verify-pack", "-v", *indexes(host)).splitlines()}
    assert blob not in names, "what the first pack held is not sent twice"


def subprocess_fails(repository: LocalRepository, *arguments: str) -> bool:
    try:
        repository.git(*arguments)
    except subprocess.CalledProcessError:
        return True
    return False


def indexes(host: LocalRepository) -> list[str]:
    return [str(path) for path in (host.path / "objects" / "pack").glob("*.idx")]


def test_tags_travel_as_tips_and_annotated_ones_as_themselves(
    repository: LocalRepository, host: LocalRepository
) -> None:
    repository.git("tag", "light", "HEAD~1")
    repository.git("tag", "-a", "-m", "noted", "noted", "HEAD~1")
    repository.git("tag", "blob", "HEAD:readme.txt")
    found = read_repository(repository.path)
    tips = {tip.ref: tip.commit for tip in tips_of(found)}
    assert tips == {
        "refs/heads/main": found.commit,
        "refs/tags/light": repository.git("rev-parse", "HEAD~1"),
        "refs/tags/noted": repository.git("rev-parse", "refs/tags/noted"),
    }
    host.receive(b"".join(stream_pack(found, tips=tips_of(found))))
    assert host.git("cat-file", "-t", tips["refs/tags/noted"]) == "tag"


def test_commits_since_the_nearest_known_one_go_inline(
    repository: LocalRepository, host: LocalRepository
) -> None:
    old = read_repository(repository.path)
    host.receive(b"".join(stream_pack(old)))
    repository.write("readme.txt", b"a third line\n")
    repository.commit()
    repository.write("readme.txt", b"a fourth line\n")
    repository.commit()
    found = read_repository(repository.path)
    older = repository.git("rev-parse", "HEAD~3")
    commits = pack_commits(found, [older, "f" * 40, old.commit])
    assert commits is not None
    assert commits.against == (old.commit,)
    assert objects_in(commits.pack) == 6, "two commits, their trees and blobs"
    host.receive(commits.pack)
    host.git("rev-list", "--objects", found.commit)


def test_nothing_goes_inline_when_it_is_there_or_unknown_or_too_large(
    repository: LocalRepository,
) -> None:
    found = read_repository(repository.path)
    assert pack_commits(found, [found.commit]) is None
    assert pack_commits(found, []) is None
    assert pack_commits(found, ["f" * 40]) is None
    repository.write("large", os.urandom(300_000))
    repository.commit()
    assert pack_commits(read_repository(repository.path), [found.commit]) is None


def test_inline_commits_with_holes_say_so(repository: LocalRepository) -> None:
    old = repository.git("rev-parse", "HEAD~1")
    found = read_repository(repository.path)
    blob = repository.git("rev-parse", "HEAD:source/main.py")
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(RepositoryError) as caught:
        pack_commits(found, [old])
    assert caught.value.reason == "client_objects_missing"


def test_the_last_pack_borrows_nothing(repository: LocalRepository, host: LocalRepository) -> None:
    first = read_repository(repository.path)
    repository.write("readme.txt", b"three\n")
    repository.commit()
    found = read_repository(repository.path)
    host.git("index-pack", "--stdin", "--strict", stdin=b"".join(stream_pack(found, is_thin=False)))
    host.git("rev-list", "--objects", found.commit)
    assert first.commit != found.commit


def test_the_making_of_a_pack_says_how_far_it_is(repository: LocalRepository) -> None:
    making = PackMaking()
    list(stream_pack(read_repository(repository.path), making=making))
    assert making.written == 100
