from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devstack import state as state_module
from devstack.errors import StackError
from devstack.state import (
    StateDirectory,
    default_state,
    remove_tree,
    runtime_parent,
)


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(state_module, "runtime_parent", lambda: tmp_path)


def test_two_supervisors_never_share_a_directory(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path / "s"), StateDirectory(tmp_path / "s")
    assert first.acquire()
    assert not second.acquire()
    assert second.holder() == os.getpid()
    first.release()
    assert second.holder() is None
    assert second.acquire()
    second.release()


def test_what_a_stack_keeps_and_what_it_takes_along(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "s")
    state.acquire()
    runtime, secret = state.runtime, state.secret.read_text()
    assert runtime is not None
    assert runtime.stat().st_mode & 0o777 == 0o700
    assert state.secret.stat().st_mode & 0o777 == 0o600
    state.describe({"url": "http://x"})
    assert state.description.stat().st_mode & 0o777 == 0o600
    assert (state.path / ".gitignore").read_text() == "*\n"
    assert state.described() == {"url": "http://x"}
    state.release()
    assert not runtime.exists()
    assert not state.description.exists()
    assert state.described() is None
    state.acquire()
    assert state.secret.read_text() == secret
    state.release()


KILLED = """
import os, sys
from pathlib import Path
from devstack import state
state.runtime_parent = lambda: Path(sys.argv[2])
stack = state.StateDirectory(Path(sys.argv[1]))
stack.acquire()
stack.describe({"url": "http://gone"})
(stack.runtime / "redis.sock").touch()
print(stack.runtime, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_supervisor_left_is_no_running_stack_and_is_cleaned_up(
    tmp_path: Path,
) -> None:
    state = StateDirectory(tmp_path / "s")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(state.path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    left = Path(killed.stdout.strip())
    assert killed.returncode == -9
    assert (left / "redis.sock").exists()
    assert state.description.exists()
    assert state.described() is None
    assert state.acquire()
    assert not left.exists()
    assert not state.description.exists()
    state.release()


def test_only_directories_of_ours_are_taken_for_leftovers(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    state = StateDirectory(tmp_path / "s")
    state.path.mkdir()
    state.lock_file.write_text(json.dumps({"pid": 1, "runtime": str(precious)}))
    assert state.acquire()
    state.release()
    assert precious.exists()


def test_where_the_state_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRLEAD_STATE", str(tmp_path / "named"))
    assert default_state() == tmp_path / "named"
    monkeypatch.delenv("FAIRLEAD_STATE")
    monkeypatch.setattr(state_module, "checkout", lambda: tmp_path / "checkout")
    assert default_state() == tmp_path / "checkout" / ".fairlead"
    monkeypatch.setattr(state_module, "checkout", lambda: None)
    assert default_state() == tmp_path / "home" / "fairlead"


def test_a_state_directory_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match="cannot be used"):
        StateDirectory(tmp_path / "file" / "s").acquire()


def test_a_tree_goes_also_when_parts_of_it_are_read_only(tmp_path: Path) -> None:
    inner = tmp_path / "tree" / "objects" / "ab"
    inner.mkdir(parents=True)
    (inner / "file").touch(0o400)
    inner.chmod(0o500)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_a_link_is_not_followed_when_removing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "kept").exists()


def test_sockets_get_a_short_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{tmp_path}/{'x' * 80}")
    assert runtime_parent() == Path("/tmp")  # noqa: S108
