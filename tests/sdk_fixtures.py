"""What the SDK's tests share: git without the configuration of whoever runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.local_repository import LocalRepository


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the machine's git configuration and meshes away."""
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    for name in ("FAIRLEAD_URL", "FAIRLEAD_STATE", "FAIRLEAD_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def repository(tmp_path: Path) -> LocalRepository:
    """A repository with two commits and some files."""
    made = LocalRepository.make(tmp_path / "work")
    made.write("readme.txt", b"one\n")
    made.commit("first")
    made.write("source/main.py", b"print('hello')\n" * 50)
    made.write("source/deep/er/file.txt", b"deep\n")
    made.write("empty")
    made.commit("second")
    return made
