"""Gateways that are restarted in turn, or killed, while clients send bytes through tunnels."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import psutil
import pytest

from fairlead_sdk import Fairlead
from fairlead_sdk.blocking_sandboxes import Sandbox
from signalling.mesh_rest_api import GatewayList
from tests.e2e.mesh_client import MeshClient
from tests.e2e.running_stack import RunningStack, eventually, places, running_stack
from tests.e2e.test_socks import made_by, running
from tests.eventually import SECONDS

pytestmark = pytest.mark.slow

_ECHO = """
import socketserver

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            while content := self.request.recv(65536):
                self.request.sendall(content)
        except OSError:
            pass

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

server = Server(("127.0.0.1", 0), Echo)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
_SERVE = 'python3 -c "$1" > port & until [ -s port ]; do sleep 0.05; done; cat port'
CONTENT = os.urandom(1_000_000)


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with places() as where:
        where.extra = {
            "FAIRLEAD_DRAIN_SECONDS": "30",
            "FAIRLEAD_SIGNALLING_GATEWAY_HEARTBEAT_SECONDS": "1",
        }
        with running_stack(where) as made:
            yield made


@dataclass
class Load:
    """Connections through a local port, one after the other in each of some threads: `whole` came
    back with all of their bytes, `cut` by a reset; whatever else happened is in `faults`.
    """

    port: int
    whole: int = 0
    cut: int = 0
    faults: list[str] = field(default_factory=list)
    stops: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send and compare until it is stopped."""
        while not self.stops.is_set():
            try:
                received = echoed(self.port)
            except ConnectionResetError:
                self.cut += 1
            except OSError as error:
                self.faults.append(repr(error))
            else:
                if received == CONTENT:
                    self.whole += 1
                else:
                    self.faults.append(f"an end after {len(received)} bytes")

    def goes_on(self, count: int = 3) -> bool:
        """Wait until some more have come back whole."""
        wanted = self.whole + count
        return eventually(lambda: self.whole >= wanted, SECONDS)


def serving(sandbox: Sandbox) -> int:
    """Serve an echo in a sandbox; returns its port."""
    return int(sandbox.commands.run(["sh", "-c", _SERVE, "sh", _ECHO]).stdout)


def echoed(port: int) -> bytes:
    """Send CONTENT and its end, and return what comes back until the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:

        def send() -> None:
            with suppress(OSError):  # whoever reads is told
                client.sendall(CONTENT)
                client.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        try:
            received = bytearray()
            while content := client.recv(65536):
                received += content
            return bytes(received)
        finally:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            sending.join()


@contextmanager
def loaded(stack: RunningStack, *, clients: int) -> Iterator[list[Load]]:
    """Have some forwards into a sandbox, with two connections at a time through each."""
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead, ExitStack() as held:
        sandbox = fairlead.sandboxes.create()
        held.callback(sandbox.release)
        port = serving(sandbox)
        loads = []
        for _ in range(clients):
            process = held.enter_context(running(stack, "forward", sandbox.sandbox_id, f"0:{port}"))
            load = Load(int(str(made_by(process)["port"])))
            loads.append(load)
            for _ in range(2):
                thread = threading.Thread(target=load.run)
                thread.start()
                held.callback(thread.join)
                held.callback(load.stops.set)
        yield loads


@contextmanager
def second_gateway(stack: RunningStack) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gateway beside the one that the stack has."""
    runtime = stack.described()["runtime"]
    process = subprocess.Popen(
        [sys.executable, "-m", "relay_gateway"],
        env={
            **stack.places.environment,
            "FAIRLEAD_SECRET_FILE": str(stack.state / "secret"),
            "FAIRLEAD_RELAY_SIGNALLING": f"unix:{runtime}/signalling.sock",
            "FAIRLEAD_RELAY_WORKERS_BIND": f"unix:{stack.places.root}/second.sock",
            "FAIRLEAD_RELAY_HTTP_BIND": "127.0.0.1:0",
            "FAIRLEAD_RELAY_TCP_BIND": "127.0.0.1:0",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
        if process.poll() is None:
            process.terminate()
            assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def gateways(stack: RunningStack) -> list[str]:
    """Return the ids of the gateways that are there and not about to stop."""
    with MeshClient(stack=stack) as mesh:
        found = GatewayList.model_validate(mesh.get("/v1/gateways")).gateways
        return [each.gateway_id for each in found if not each.draining]


def registered(stack: RunningStack, count: int) -> bool:
    """Wait until there are so many gateways."""
    return eventually(lambda: len(gateways(stack)) == count, SECONDS)


def restarted(stack: RunningStack) -> bool:
    """Have the stack's own gateway end well, and wait until another one is in its place."""
    pid = stack.pids["relay-gateway"]
    os.kill(pid, signal.SIGTERM)
    return eventually(lambda: stack.pids["relay-gateway"] != pid, SECONDS)


def test_gateways_that_are_restarted_in_turn_lose_nothing(stack: RunningStack) -> None:
    with ExitStack() as held:
        second = held.enter_context(ExitStack())
        second.enter_context(second_gateway(stack))
        assert registered(stack, 2)
        loads = held.enter_context(loaded(stack, clients=2))
        assert all(each.goes_on() for each in loads)
        assert restarted(stack)
        assert registered(stack, 2)
        assert all(each.goes_on() for each in loads)
        second.close()
        second.enter_context(second_gateway(stack))
        assert registered(stack, 2)
        assert all(each.goes_on() for each in loads)
        assert [(each.cut, each.faults) for each in loads] == [(0, [])] * 2


def test_a_gateway_that_is_killed_cuts_what_is_open_and_nothing_else(stack: RunningStack) -> None:
    with loaded(stack, clients=2) as loads:
        assert all(each.goes_on() for each in loads)
        pid = stack.pids["relay-gateway"]
        os.kill(pid, signal.SIGKILL)
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(SECONDS)
        assert all(each.goes_on() for each in loads)
        # Each had two connections open; the one after may have been opened before it was noticed.
        assert all(each.cut <= 4 and not each.faults for each in loads), loads


def test_who_can_reach_another_gateway_goes_on_there_when_its_own_is_killed(
    stack: RunningStack,
) -> None:
    assert registered(stack, 1)
    (first,) = gateways(stack)
    with (
        second_gateway(stack) as second,
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        ExitStack() as held,
    ):
        assert registered(stack, 2)
        sandbox = fairlead.sandboxes.create()
        held.callback(sandbox.release)
        port = serving(sandbox)
        gateway = first
        while gateway == first:
            made = made_by(
                held.enter_context(running(stack, "forward", sandbox.sandbox_id, f"0:{port}"))
            )
            gateway = fairlead.sessions.get(str(made["session_id"])).gateway_id
        local = int(str(made["port"]))
        assert echoed(local) == CONTENT
        second.kill()
        second.wait()
        assert [echoed(local) == CONTENT for _ in range(3)] == [True] * 3
