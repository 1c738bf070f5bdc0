"""Whatever somebody does to a working directory, the same files arrive."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead_sdk.repository import read_repository
from tests.fakes.local_repository import LocalRepository

NAMES = st.sampled_from(
    [b"a", b"b", b"dir", b"dir/a", b"dir/sub/x", b"a/x", b"-f", b"\xff\xfe", b"sp ace", b'q"q']
)
CONTENTS = st.sampled_from([b"", b"1\n", b"dos\r\n", b"\0binary\0", b"long line\n" * 400])
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), NAMES, CONTENTS),
    st.tuples(st.just("remove"), NAMES, st.just(b"")),
    st.tuples(st.just("link"), NAMES, st.sampled_from([b"a", b"dir", b"../out"])),
    st.tuples(st.just("chmod"), NAMES, st.just(b"")),
    st.tuples(st.just("stage"), NAMES, st.just(b"")),
    st.tuples(st.just("unstage"), NAMES, st.just(b"")),
)


def clear(place: bytes) -> None:
    if os.path.islink(place) or os.path.isfile(place):
        os.unlink(place)
    elif os.path.isdir(place):
        shutil.rmtree(place)


def apply(repository: LocalRepository, operation: str, name: bytes, content: bytes) -> None:
    root = os.fsencode(repository.path)
    place = os.path.join(root, name)
    parent = os.path.dirname(name)
    if operation in {"write", "link"}:
        while parent:
            if os.path.islink(os.path.join(root, parent)) or os.path.isfile(
                os.path.join(root, parent)
            ):
                clear(os.path.join(root, parent))
            parent = os.path.dirname(parent)
        clear(place)
    match operation:
        case "write":
            repository.write(name, content)
        case "link":
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(content, place)
        case "remove":
            clear(place)
        case "chmod" if os.path.isfile(place) and not os.path.islink(place):
            os.chmod(place, os.stat(place).st_mode ^ 0o111)
        case "stage":
            repository.git("add", "-A", "--", "." if not os.path.lexists(place) else "./")
        case "unstage":
            repository.git("reset", "-q")
        case _:
            return


@given(
    committed=st.lists(OPERATIONS, max_size=5),
    uncommitted=st.lists(OPERATIONS, max_size=6),
)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_working_directory_arrives_as_it_is(
    committed: list[tuple[str, bytes, bytes]],
    uncommitted: list[tuple[str, bytes, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base = tmp_path_factory.mktemp("example")
    repository = LocalRepository.make(base / "work")
    for operation in committed:
        apply(repository, *operation)
    commit = repository.commit()
    for operation in uncommitted:
        apply(repository, *operation)
    before, files = repository.fingerprint(), repository.files()
    found = read_repository(repository.path)
    try:
        assert repository.fingerprint() == before
        repository.git("clone", "-q", "--bare", "--no-local", ".", str(base / "host"))
        host = LocalRepository(base / "host")
        tree = f"{commit}^{{tree}}"
        if found.changes is not None:
            host.receive(found.changes.pack)
            tree = found.changes.tree
        assert host.checked_out(tree, base / "checkout") == files
    finally:
        found.close()
        shutil.rmtree(base)
