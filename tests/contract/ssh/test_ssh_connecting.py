"""Connecting to a host over SSH: noise is skipped, and every obstacle has its own reason."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.ssh_bootstrap import mark
from fairlead_sdk.ssh_host import AsyncSshHost
from tests.openssh import OpenSshServer, openssh_server

pytestmark = pytest.mark.asyncio


async def met(address: str) -> FairleadError:
    """Return the error that connecting meets."""
    with pytest.raises(FairleadError) as refused:
        async with AsyncSshHost(address) as host:
            await host.workspaces()
    return refused.value


async def test_the_noise_of_login_scripts_is_no_frame(
    sshd: str, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = tmp_path / "noise"
    hello = b'{"id":0,"type":"hello","version":1}'
    noise.write_bytes(
        b"Welcome!\r\n\0\xff"
        + mark("")
        + b"S"
        + (len(hello) + 4).to_bytes(4, "big")
        + len(hello).to_bytes(4, "big")
        + hello
        + b"Host key verification failed.\nR" * 20_000
    )
    # What a login script writes comes first, also the command itself as `set -v` shows it.
    force = (
        f"ForceCommand cat {noise}; cat {noise} >&2;"
        ' printf "%s" "$SSH_ORIGINAL_COMMAND"; eval "$SSH_ORIGINAL_COMMAND"'
    )
    with openssh_server(sshd, tmp_path / "ssh", force) as server:
        monkeypatch.setenv("FAIRLEAD_SSH", " ".join(server.program))
        async with AsyncSshHost(server.address(root)) as host:
            assert await host.workspaces() == ()


async def test_a_login_script_that_never_ends_its_talk_is_given_up(
    sshd: str, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with openssh_server(sshd, tmp_path / "ssh", "ForceCommand yes") as server:
        monkeypatch.setenv("FAIRLEAD_SSH", " ".join(server.program))
        error = await met(server.address(root))
    assert error.reason == "ssh_unreachable"
    assert "login scripts" in error.message


async def test_an_unknown_host_key_is_not_accepted(server: OpenSshServer, root: Path) -> None:
    (server.directory / "known_hosts").write_text("")
    error = await met(server.address(root))
    assert error.reason == "host_key_unknown"
    assert os.listdir(root.parent) == ["ssh"]


async def test_another_host_key_is_not_accepted(server: OpenSshServer, root: Path) -> None:
    known = server.directory / "known_hosts"
    host = known.read_text().split()[0]
    other = (server.directory / "user_key.pub").read_text().split()
    known.write_text(f"{host} {other[0]} {other[1]}\n")
    assert (await met(server.address(root))).reason == "host_key_changed"


async def test_a_key_that_is_not_let_in_is_told(server: OpenSshServer, root: Path) -> None:
    (server.directory / "authorized_keys").write_text("")
    error = await met(server.address(root))
    assert error.reason == "ssh_unauthorized"
    assert "ssh-copy-id" in error.remedy


async def test_a_host_that_is_away_is_told(
    sshd: str, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A port that is bound and not listened on is nobody else's meanwhile.
    with openssh_server(sshd, tmp_path / "ssh") as server, socket.socket() as away:
        away.bind(("127.0.0.1", 0))
        monkeypatch.setenv("FAIRLEAD_SSH", " ".join(server.program))
        error = await met(replace(server, port=away.getsockname()[1]).address(root))
    assert error.reason == "ssh_unreachable"
    assert "Connection refused" in error.message


OLD = "#!/bin/sh\nexit 1\n"
NEW = f'#!/bin/sh\nexec {sys.executable} "$@"\n'


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({}, "python_missing"),
        ({"python3": OLD}, "python_too_old"),
        ({"python3": NEW}, "git_missing"),
        ({"python3": OLD, "python3.12": NEW}, "git_missing"),
        ({"python3": NEW, "git": "#!/bin/sh\necho git version 2.20.1\n"}, "git_too_old"),
    ],
)
async def test_a_host_that_lacks_a_program_is_told_which(
    sshd: str,
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    programs: dict[str, str],
    reason: str,
) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    (path / "sh").symlink_to("/bin/sh")
    for name, script in programs.items():
        (path / name).write_text(script)
        (path / name).chmod(0o755)
    force = f'ForceCommand PATH={path}; export PATH; eval "$SSH_ORIGINAL_COMMAND"'
    with openssh_server(sshd, tmp_path / "ssh", force) as server:
        monkeypatch.setenv("FAIRLEAD_SSH", " ".join(server.program))
        error = await met(server.address(root))
    assert error.reason == reason
    assert error.remedy


async def test_a_directory_that_cannot_be_is_told(server: OpenSshServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = await met(server.address(tmp_path / "file" / "host"))
    assert error.reason == "host_root_unusable"
    assert "Not a directory" in error.message


async def test_a_program_that_others_could_replace_is_not_started(
    server: OpenSshServer, root: Path
) -> None:
    kept = os.path.join(root, ".resident")
    os.makedirs(kept)
    os.chmod(kept, 0o777)  # noqa: S103 - what this test is about
    error = await met(server.address(root))
    assert error.reason == "host_root_unusable"
    assert "others may write" in error.message
    assert os.listdir(kept) == []


async def test_no_ssh_on_this_machine_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_SSH", "/nonexistent/ssh")
    error = await met(f"ssh://ada@box{root}")
    assert error.reason == "ssh_missing"
