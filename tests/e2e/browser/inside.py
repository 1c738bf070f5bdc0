"""Servers in a sandbox, and what a page does with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page

from fairlead_sdk import Fairlead
from fairlead_sdk.blocking_sandboxes import Sandbox
from tests.e2e.browser.in_page import outcome
from tests.e2e.running_stack import RunningStack

_SERVER = r"""
import os, socket, socketserver, threading

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while content := self.request.recv(65536):
            self.request.sendall(content)

class Flood(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            self.request.sendall(bytes(65536))

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

servers = [Server(("127.0.0.1", 0), kind) for kind in (Echo, Flood)]
for server in servers:
    threading.Thread(target=server.serve_forever).start()
with open("ports.part", "w") as file:
    file.write(" ".join(str(server.server_address[1]) for server in servers))
os.rename("ports.part", "ports")
"""
_SERVE = 'python3 -c "$1" >/dev/null 2>&1 & until [ -s ports ]; do sleep 0.05; done; cat ports'


@dataclass(frozen=True, slots=True)
class Inside:
    """A sandbox with servers in it."""

    sandbox: Sandbox
    echo: int
    flood: int

    @property
    def target(self) -> str:
        """What sessions are opened for."""
        return self.sandbox.sandbox_id


@contextmanager
def servers(stack: RunningStack) -> Iterator[Inside]:
    """Start them in a sandbox of their own."""
    with (
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        fairlead.sandboxes.create() as sandbox,
    ):
        served = sandbox.commands.run(["sh", "-c", _SERVE, "sh", _SERVER], timeout=30)
        echo, flood = map(int, served.stdout.split())
        yield Inside(sandbox, echo, flood)


def opened(page: Page, inside: Inside, mode: str = "complete") -> str:
    """Have the page open a session, in its variable `session`, and return the session's id; skips
    the test where no gateway can trickle.
    """
    found = outcome(
        page,
        """async ([target, mode]) => {
            try {
                window.session = await Session.open({ door, target, mode });
            } catch (error) {
                if (error.reason !== "mode_unsupported") throw error;
                return { id: "" };
            }
            show(`session ${session.id}, ${mode}`);
            return { id: session.id };
        }""",
        [inside.target, mode],
    )
    if not found["id"]:
        pytest.skip("no gateway here can trickle: `make native` builds the core that can")
    return str(found["id"])


def echoes(page: Page, inside: Inside, size: int) -> None:
    """Have the page send bytes to the echo server and compare what comes back."""
    found = outcome(
        page,
        """async ([port, size]) => {
            const bytes = content(size);
            const started = performance.now();
            const echoed = await echo(session, port, bytes);
            const rate = size / (performance.now() - started) / 1000;
            const [sent, received] = [await digest(bytes), await digest(echoed)];
            show(`echo of ${echoed.byteLength} bytes, ${rate.toFixed(1)} MB/s: ${received}`);
            return { sent, received };
        }""",
        [inside.echo, size],
    )
    assert found["received"] == found["sent"]
