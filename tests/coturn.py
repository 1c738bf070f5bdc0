"""A real coturn on loopback, which takes the credentials that signalling makes and knows no file of
the machine's configuration.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from signalling.ice_servers import IceServers

SECRET = "of-coturn-and-signalling"
REALM = "relay.test"
_STARTING_SECONDS = 60.0
_BINDING_REQUEST = bytes.fromhex("000100002112a442") + b"fairlead-012"


@dataclass(frozen=True, slots=True)
class Coturn:
    """A running server; `log` is what it says."""

    port: int
    log: Path

    @property
    def stun_url(self) -> str:
        """Return where it is asked for one's own address."""
        return f"stun:127.0.0.1:{self.port}"

    def turn_url(self, transport: str = "udp") -> str:
        """Return where it relays, over `udp` or `tcp`."""
        return f"turn:127.0.0.1:{self.port}?transport={transport}"

    def servers(self, *, lifetime: timedelta = timedelta(hours=1)) -> IceServers:
        """Return what signalling hands out when it knows this server, over both transports."""
        return IceServers(
            stun_urls=(self.stun_url,),
            turn_urls=(self.turn_url("udp"), self.turn_url("tcp")),
            turn_secret=SECRET,
            lifetime=lifetime,
        )


def turnserver_program() -> str:
    """Return the path of coturn's server; skips the test where there is none."""
    found = shutil.which("turnserver")
    if found is None:
        pytest.skip("needs coturn: the turnserver program is not on the path")
    return found


@contextmanager
def coturn_server(directory: Path, *options: str) -> Iterator[Coturn]:
    """Run a server until the block ends; `options` are of turnserver's command line."""
    program = turnserver_program()
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "coturn.log"
    port = _free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                program,
                *("-n", "--no-cli", "--no-tls", "--no-dtls", "--fingerprint"),
                *("--listening-ip", "127.0.0.1", "--relay-ip", "127.0.0.1"),
                *("--listening-port", str(port), "--allow-loopback-peers"),
                *("--use-auth-secret", "--static-auth-secret", SECRET, "--realm", REALM),
                *("--relay-threads", "1", "--log-file", "stdout"),
                *("--pidfile", str(directory / "pid"), "--userdb", str(directory / "users")),
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
    try:
        deadline = time.monotonic() + _STARTING_SECONDS
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"coturn did not start:\n{log.read_text(errors='replace')}")
        yield Coturn(port=port, log=log)
    finally:
        server.kill()
        server.wait()


def _free_port() -> int:
    """Return a port that is free over both UDP and TCP."""
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        stream.bind(("127.0.0.1", 0))
        port = int(stream.getsockname()[1])
        datagrams.bind(("127.0.0.1", port))
        return port


def _answers(port: int) -> bool:
    """Say whether the server answers over both transports; waits a little where it does not."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.1):
            pass
        with socket.socket(type=socket.SOCK_DGRAM) as probe:
            probe.settimeout(0.1)
            probe.connect(("127.0.0.1", port))
            probe.send(_BINDING_REQUEST)
            return probe.recv(1500)[:2] == b"\x01\x01"
    except OSError:
        time.sleep(0.01)
        return False
