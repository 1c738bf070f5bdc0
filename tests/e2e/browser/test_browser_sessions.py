"""A browser reaches ports of a sandbox: REST, WebRTC and `fairlead.bytes.v1`, on a whole stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page

from fairlead_sdk import Fairlead
from fairlead_sdk.blocking_sandboxes import Sandbox
from tests.e2e.browser.in_page import failure_of, outcome, run
from tests.e2e.mesh_client import MeshClient
from tests.e2e.running_stack import RunningStack, eventually

pytestmark = pytest.mark.chromium

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


@pytest.fixture(scope="module")
def inside(stack: RunningStack) -> Iterator[Inside]:
    with (
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        fairlead.sandboxes.create() as sandbox,
    ):
        served = sandbox.commands.run(["sh", "-c", _SERVE, "sh", _SERVER], timeout=30)
        echo, flood = map(int, served.stdout.split())
        yield Inside(sandbox, echo, flood)


def opened(page: Page, inside: Inside) -> str:
    """Have the page open a session, in its variable `session`, and return the session's id."""
    return str(
        run(
            page,
            """async target => {
                window.session = await Session.open({ door, target });
                show(`session ${session.id}: ${session.state}`);
                return session.id;
            }""",
            inside.target,
        )
    )


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


def test_megabytes_come_back_unharmed(page: Page, stack: RunningStack, inside: Inside) -> None:
    session_id = opened(page, inside)
    echoes(page, inside, 4 * 1024 * 1024)
    with MeshClient(stack=stack) as mesh:
        assert mesh.get(f"/v1/sessions/{session_id}")["state"] == "connected"
        run(page, "() => session.close()")
        closed = mesh.get(f"/v1/sessions/{session_id}")
        assert (closed["state"], closed["close_reason"]) == ("closed", "requested")


def test_a_connection_that_is_not_read_stalls_only_itself(page: Page, inside: Inside) -> None:
    opened(page, inside)
    run(
        page,
        """async port => {
            window.flood = session.connect(port);
            await flood.ready;
        }""",
        inside.flood,
    )
    echoes(page, inside, 1024 * 1024)
    received = run(
        page,
        """async () => {
            const reader = flood.readable.getReader();
            let received = 0;
            while (received < 4 * 1024 * 1024) received += (await reader.read()).value.byteLength;
            await reader.cancel();
            return received;
        }""",
    )
    assert isinstance(received, int)
    assert 4 * 1024 * 1024 <= received < 5 * 1024 * 1024
    echoes(page, inside, 1000)


def test_many_connections_at_once_and_one_after_the_other(page: Page, inside: Inside) -> None:
    opened(page, inside)
    whole = run(
        page,
        """async port => {
            let whole = 0;
            const one = async size => {
                const bytes = content(size);
                const echoed = await echo(session, port, bytes);
                whole += await digest(echoed) === await digest(bytes);
            };
            await Promise.all(Array.from({ length: 20 }, (_, at) => one(60000 + at)));
            for (let at = 0; at < 40; at++) await one(at);
            show(`${whole} connections`);
            return whole;
        }""",
        inside.echo,
    )
    assert whole == 60


def test_a_refusal_says_why(page: Page, inside: Inside) -> None:
    opened(page, inside)
    reached = failure_of(page, "port => session.connect(port).ready", 1)
    assert reached == ("StreamReset", "port_refused")
    unknown = failure_of(page, "() => Session.open({ door, target: 'sbx_unknown' })")
    assert unknown == ("Refused", "sandbox_not_found")
    keyless = failure_of(
        page, "() => new FrontDoor(location.origin, 'no').call('GET', '/v1/hosts')"
    )
    assert keyless == ("Refused", "key_invalid")


def test_a_page_that_goes_away_leaves_no_session(
    page: Page, stack: RunningStack, inside: Inside
) -> None:
    session_id = opened(page, inside)
    run(page, "async port => { await session.connect(port).ready }", inside.echo)
    page.goto("about:blank")
    with MeshClient(stack=stack) as mesh:

        def close_reason() -> object:
            return mesh.get(f"/v1/sessions/{session_id}")["close_reason"]

        assert eventually(lambda: close_reason() == "peer_closed", 15), close_reason()
