"""The fast reading of heads is what git prints, byte for byte, or it is none."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead_sdk import refs_reader as module
from fairlead_sdk.git_place import find_place
from fairlead_sdk.refs_reader import Unsure, read_heads
from fairlead_sdk.repository import read_repository
from tests.fakes.local_repository import LocalRepository

State = Callable[[LocalRepository], None]
ZEROES = "0" * 40


def git_listing(repository: LocalRepository) -> bytes | None:
    """Give what git prints; `None` when it refuses."""
    try:
        return repository.git_bytes("show-ref", "--heads")
    except subprocess.CalledProcessError as error:
        return None if error.stderr else b""


def fast_listing(repository: LocalRepository) -> bytes | None:
    common = repository.git("rev-parse", "--path-format=absolute", "--git-common-dir")
    try:
        return read_heads(common).listing
    except Unsure:
        return None


def write_head(repository: LocalRepository, name: str, content: str) -> None:
    place = repository.path / ".git" / "refs" / "heads" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content)


def loose(repository: LocalRepository) -> None:
    for name in ("a-b", "a.b", "a/b", "a0", "Z", "z/y/x"):
        repository.git("branch", name)


def packed(repository: LocalRepository) -> None:
    loose(repository)
    repository.git("pack-refs", "--all", "--prune")


def loose_over_packed(repository: LocalRepository) -> None:
    packed(repository)
    repository.git("branch", "-f", "a.b", "HEAD~1")
    repository.git("branch", "later")


def packed_and_deleted(repository: LocalRepository) -> None:
    packed(repository)
    repository.git("branch", "-D", "a/b")


def tags_with_peeled_lines(repository: LocalRepository) -> None:
    repository.git("tag", "-a", "-m", "noted", "v1")
    repository.git("tag", "light")
    packed(repository)


def stale_lock(repository: LocalRepository) -> None:
    loose(repository)
    write_head(repository, "a-b.lock", f"{ZEROES}\n")
    write_head(repository, "side.lock", "")


def hidden_file(repository: LocalRepository) -> None:
    write_head(repository, ".swp", "anything")


def symbolic(repository: LocalRepository) -> None:
    repository.git("branch", "target")
    repository.git("symbolic-ref", "refs/heads/alias", "refs/heads/target")


def packed_objects(repository: LocalRepository) -> None:
    loose(repository)
    repository.git("gc", "-q")
    repository.git("branch", "after-gc")


def detached(repository: LocalRepository) -> None:
    loose(repository)
    repository.git("checkout", "-q", "--detach")


def no_heads(repository: LocalRepository) -> None:
    repository.git("checkout", "-q", "--detach")
    repository.git("branch", "-D", "main")


def borrowed_objects(repository: LocalRepository) -> None:
    repository.git("clone", "-q", "--bare", ".", str(repository.path.with_name("lender")))
    alternates = repository.path / ".git" / "objects" / "info" / "alternates"
    alternates.write_text(f"{repository.path.with_name('lender')}/objects\n")
    repository.git("repack", "-a", "-d", "-l", "-q")
    repository.git("prune-packed", "-q")


@pytest.mark.parametrize(
    "state",
    [
        loose,
        packed,
        loose_over_packed,
        packed_and_deleted,
        tags_with_peeled_lines,
        stale_lock,
        hidden_file,
        symbolic,
        packed_objects,
        detached,
        no_heads,
        borrowed_objects,
    ],
)
def test_it_reads_what_git_prints(state: State, repository: LocalRepository) -> None:
    state(repository)
    listing = git_listing(repository)
    assert listing is not None
    assert fast_listing(repository) == listing


def missing_object(repository: LocalRepository) -> None:
    write_head(repository, "broken", f"{'1' * 40}\n")


def missing_packed_object(repository: LocalRepository) -> None:
    repository.git("gc", "-q")
    with open(repository.path / ".git" / "packed-refs", "a") as file:
        file.write(f"{'f' * 40} refs/heads/zz\n")


def empty_ref(repository: LocalRepository) -> None:
    write_head(repository, "broken", "")


def broken_ref(repository: LocalRepository) -> None:
    write_head(repository, "broken", "this is no id\n")


def forbidden_name(repository: LocalRepository) -> None:
    write_head(repository, "bad name", repository.git("rev-parse", "HEAD"))


@pytest.mark.parametrize(
    "state", [missing_object, missing_packed_object, empty_ref, broken_ref, forbidden_name]
)
def test_where_git_refuses_there_is_a_reason_and_the_launch_goes_on(
    state: State, repository: LocalRepository
) -> None:
    state(repository)
    assert git_listing(repository) is None
    assert fast_listing(repository) is None
    found = read_repository(repository.path)
    assert found.noticed == ("client_refs_unreadable",)
    assert found.digest == ""
    assert found.commit == repository.git("rev-parse", "HEAD")
    assert "git fsck" in found.warnings[0]


def symbolic_to_nowhere(repository: LocalRepository) -> None:
    repository.git("symbolic-ref", "refs/heads/alias", "refs/heads/gone")


def symbolic_to_a_tag(repository: LocalRepository) -> None:
    repository.git("tag", "light")
    repository.git("symbolic-ref", "refs/heads/alias", "refs/tags/light")


def linked_file(repository: LocalRepository) -> None:
    (repository.path / ".git" / "refs" / "heads" / "alias").symlink_to("main")


def upper_case(repository: LocalRepository) -> None:
    write_head(repository, "loud", repository.git("rev-parse", "HEAD").upper())


def without_line_break_in_packed(repository: LocalRepository) -> None:
    packed(repository)
    place = repository.path / ".git" / "packed-refs"
    place.write_text(place.read_text().rstrip("\n"))


@pytest.mark.parametrize(
    "state",
    [symbolic_to_nowhere, symbolic_to_a_tag, linked_file, upper_case],
)
def test_what_it_is_not_sure_of_is_left_to_git(state: State, repository: LocalRepository) -> None:
    state(repository)
    assert fast_listing(repository) is None
    listing = git_listing(repository)
    digest = hashlib.sha256(listing).hexdigest() if listing else ""
    assert read_repository(repository.path).digest == digest


def test_packed_refs_that_were_cut_off_are_not_read(repository: LocalRepository) -> None:
    without_line_break_in_packed(repository)
    assert fast_listing(repository) is None


def test_many_heads_are_left_to_git(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose(repository)
    monkeypatch.setattr(module, "MOST_HEADS", 6)
    assert fast_listing(repository) is None
    monkeypatch.setattr(module, "MOST_HEADS", 7)
    assert fast_listing(repository) == git_listing(repository)


def test_refs_that_are_packed_while_they_are_read_are_not_lost(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose(repository)
    listing = git_listing(repository)
    walk = module.loose_refs
    walks: list[bytes] = []

    def packed_meanwhile(common: bytes, prefix: bytes) -> list[tuple[bytes, bytes]]:
        if not walks:
            walks.append(prefix)
            repository.git("pack-refs", "--all", "--prune")
        return list(walk(common, prefix))

    monkeypatch.setattr(module, "loose_refs", packed_meanwhile)
    assert fast_listing(repository) == listing


def test_packed_refs_that_change_while_they_are_read_are_read_again(
    repository: LocalRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(repository)
    version, asked = module._version, []

    def changing(path: bytes) -> tuple[int, int, int, int] | None:
        asked.append(path)
        if len(asked) == 2:
            repository.git("branch", "-D", "Z")
        return version(path)

    monkeypatch.setattr(module, "_version", changing)
    assert fast_listing(repository) == git_listing(repository)
    assert len(asked) == 4


def test_a_linked_worktree_has_the_same_heads(repository: LocalRepository, tmp_path: Path) -> None:
    repository.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    linked = LocalRepository(tmp_path / "linked")
    found = find_place(str(linked.path), environment={})
    assert (found.branch, found.commit) == ("side", linked.git("rev-parse", "HEAD"))
    assert found.heads.listing == git_listing(repository)
    assert read_repository(linked.path).digest == read_repository(repository.path).digest


def test_the_digest_is_of_the_heads_alone(repository: LocalRepository) -> None:
    before = read_repository(repository.path)
    repository.git("tag", "-a", "-m", "noted", "v1")
    repository.write("readme.txt", b"edited")
    assert read_repository(repository.path).digest == before.digest
    repository.git("checkout", "-q", "--detach")
    assert read_repository(repository.path).digest == before.digest
    repository.git("branch", "side")
    assert read_repository(repository.path).digest != before.digest


BRANCHES = st.sampled_from(["a", "b", "a-b", "a.b", "c/d", "c/e", "c-d", "Z", "é", "main2"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["branch", "back", "delete", "alias", "tag", "lock"]), BRANCHES),
    st.tuples(st.sampled_from(["pack", "gc", "empty", "junk", "gone", "detach"]), BRANCHES),
)


def step(repository: LocalRepository, what: str, name: str) -> None:
    match what:
        case "branch":
            repository.git("branch", "-f", name)
        case "back":
            repository.git("branch", "-f", name, "HEAD~1")
        case "delete":
            repository.git("branch", "-D", name)
        case "alias":
            repository.git("symbolic-ref", f"refs/heads/{name}", "refs/heads/main")
        case "tag":
            repository.git("tag", "-a", "-m", "noted", name)
        case "lock":
            write_head(repository, f"{name}.lock", "")
        case "pack":
            repository.git("pack-refs", "--all", "--prune")
        case "gc":
            repository.git("gc", "-q")
        case "empty":
            write_head(repository, name, "")
        case "junk":
            write_head(repository, name, f"{name} is no id")
        case "gone":
            write_head(repository, name, "2" * 40)
        case "detach":
            repository.git("checkout", "-q", "--detach")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=8))
def test_whatever_is_done_to_the_refs_it_is_gits_answer_or_none(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    repository = LocalRepository.make(tmp_path_factory.mktemp("refs"))
    repository.commit("first")
    repository.commit("second")
    for what, name in steps:
        try:
            step(repository, what, name)
        except (subprocess.CalledProcessError, OSError):
            continue
    listing, fast = git_listing(repository), fast_listing(repository)
    assert fast is None or fast == listing
    if not {what for what, _ in steps} & {"empty", "junk", "gone", "alias"}:
        assert fast == listing
    assert os.path.isdir(repository.path)
