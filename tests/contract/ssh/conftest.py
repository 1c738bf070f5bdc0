"""A real OpenSSH server, and a repository to launch there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead_sdk import ssh_connection
from fairlead_sdk.ssh_program import HostProgram, make_host_program
from tests.fakes.local_repository import LocalRepository
from tests.openssh import OpenSshServer, openssh_server, sshd_program


@pytest.fixture(scope="session")
def sshd() -> str:
    """The path of sshd; skips the test where there is none."""
    found = sshd_program()
    if found is None:
        pytest.skip("needs sshd (Debian: openssh-server)")
    return found


@pytest.fixture(scope="session")
def program() -> HostProgram:
    """What is sent to the host."""
    return make_host_program()


@pytest.fixture(autouse=True)
def same_program(program: HostProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the same program in every test, also when somebody edits its sources meanwhile."""
    monkeypatch.setattr(ssh_connection, "make_host_program", lambda: program)


@pytest.fixture
def server(sshd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenSshServer]:
    """A server of this test alone, which `ssh` reaches through FAIRLEAD_SSH."""
    with openssh_server(sshd, tmp_path / "ssh") as running:
        monkeypatch.setenv("FAIRLEAD_SSH", " ".join(running.program))
        monkeypatch.setenv("FAIRLEAD_AGENT", "0")
        yield running


@pytest.fixture
def repository(tmp_path: Path) -> LocalRepository:
    """A repository with two commits' files, one of them changed since."""
    made = LocalRepository.make(tmp_path / "repository")
    made.write("README", b"first\n")
    made.write("sub/file", b"below\n")
    made.git("add", ".")
    made.git("commit", "-q", "-m", "first")
    made.write("README", b"changed\n")
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The host's directory, which does not exist yet."""
    return tmp_path / "host"
