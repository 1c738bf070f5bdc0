"""A real OpenSSH server on loopback, with keys and configuration of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_SEPARATION = Path("/run/sshd")
_STARTING_SECONDS = 60.0


def sshd_program() -> str | None:
    """Return the path of sshd, which is seldom on the path of a user."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True, slots=True)
class OpenSshServer:
    """A running server; `program` is an ssh command that knows its key and may log in."""

    port: int
    pid: int
    directory: Path
    program: tuple[str, ...]

    def address(self, root: Path) -> str:
        """Return the address of a host whose directory is `root`."""
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{root}"

    def sessions(self) -> list[psutil.Process]:
        """Return the server's processes for connections."""
        return psutil.Process(self.pid).children()

    def hang_up(self) -> None:
        """Kill what serves the connections, and leave the server."""
        for session in self.sessions():
            for each in [session, *session.children(recursive=False)]:
                if each.name().startswith("sshd"):
                    each.kill()


def _key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def openssh_server(sshd: str, directory: Path, *settings: str) -> Iterator[OpenSshServer]:
    """Run a server for this user alone; `settings` are lines of sshd_config."""
    if os.geteuid() == 0:
        _SEPARATION.mkdir(mode=0o755, exist_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    _key(directory / "host_key")
    _key(directory / "user_key")
    shutil.copy(directory / "user_key.pub", directory / "authorized_keys")
    host_key = (directory / "host_key.pub").read_text().split()
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key[0]} {host_key[1]}\n")
    (directory / "sshd_config").write_text(
        f"""ListenAddress 127.0.0.1
Port {port}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 100
"""
        + "".join(f"{line}\n" for line in settings)
    )
    (directory / "ssh_config").write_text(
        f"""Host *
    IdentityFile {directory}/user_key
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {directory}/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
"""
    )
    with (directory / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", directory / "sshd_config"], stdout=log, stderr=log
        )
    try:
        _wait_until_it_listens(process, port)
        program = ("ssh", "-F", str(directory / "ssh_config"))
        yield OpenSshServer(port, process.pid, directory, program)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.name().startswith("sshd"):
                    child.kill()
        process.terminate()
        process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _STARTING_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.02)
