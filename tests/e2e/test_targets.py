"""`fairlead forward` to a host beside the sandbox, on a stack whose operator allows one port."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from fairlead_sdk import Fairlead
from tests.e2e.running_stack import RunningStack, places, running_stack
from tests.eventually import SECONDS


@contextmanager
def _greeter() -> Iterator[int]:
    """A server that greets whoever comes."""

    def greet() -> None:
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                connection.sendall(b"hello")
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def _forwarding(
    stack: RunningStack, sandbox_id: str, way: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead_sdk", "forward", sandbox_id, way, "-o", "json"],
        env=stack.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, int(json.loads(process.stdout.readline())["port"])
    finally:
        process.kill()
        process.communicate()


def _received(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        return connection.recv(64)


def test_a_host_that_is_allowed_is_reached_and_another_is_not() -> None:
    with _greeter() as port, _greeter() as other, places() as where:
        allowed = replace(where, extra={"FAIRLEAD_RELAY_TARGETS": f"127.0.0.1:{port}"})
        with (
            running_stack(allowed) as stack,
            Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        ):
            sandbox_id = fairlead.sandboxes.create().sandbox_id
            with _forwarding(stack, sandbox_id, f"0:127.0.0.1:{port}") as (process, local):
                assert _received(local) == b"hello"
                process.send_signal(signal.SIGINT)
                assert process.wait(SECONDS) == 0
            with _forwarding(stack, sandbox_id, f"0:127.0.0.1:{other}") as (process, local):
                with suppress(ConnectionResetError):
                    assert _received(local) == b""
                assert process.stderr is not None
                assert "FAIRLEAD_RELAY_TARGETS" in process.stderr.readline()
                process.send_signal(signal.SIGINT)
                assert process.wait(SECONDS) == 0
