"""`fairlead socks`, and `fairlead forward` over a tunnel, against a whole stack."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from fairlead_sdk import Fairlead
from tests.e2e.running_stack import RunningStack, eventually, places, running_stack
from tests.eventually import SECONDS

pytestmark = pytest.mark.slow

CONTENT = os.urandom(3_000_000)
_SERVE = """
python3 -u -m http.server 0 --bind 127.0.0.1 > said 2> /dev/null &
until grep -q port said; do sleep 0.05; done
sed 's/.* port \\([0-9]*\\).*/\\1/' said
"""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer with CONTENT."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def _page(host: str) -> Iterator[int]:
    """A page beside the sandbox, on an address of this machine; gives its port."""
    server = ThreadingHTTPServer((host, 0), _Page)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def running(
    stack: RunningStack, *arguments: str, pump: str = "auto"
) -> Iterator[subprocess.Popen[str]]:
    """Run `fairlead` until Ctrl-C, which ends it well."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead_sdk", *arguments, "-o", "json"],
        env={**stack.environment, "FAIRLEAD_TUNNEL_PUMP": pump},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def made_by(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    assert isinstance(found, dict)
    assert "port" in found, found
    return found


def _curl(proxy: object, url: str) -> tuple[int, bytes]:
    command = ["curl", "-sS", "--noproxy", "", "-x", f"socks5h://127.0.0.1:{proxy}", url]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout


def _code(proxy: object, host: str, port: int) -> int:
    """Return the code that a request is answered with."""
    with socket.create_connection(("127.0.0.1", int(str(proxy))), timeout=60) as client:
        name = bytes((len(host),)) + host.encode()
        client.sendall(b"\x05\x01\x00" + b"\x05\x01\x00\x03" + name + port.to_bytes(2))
        answer = b""
        while len(answer) < 12:
            answer += client.recv(12 - len(answer)) or b"\xff" * 12
        return answer[3]


@pytest.fixture(params=["python", "auto"])
def pump(request: pytest.FixtureRequest) -> str:
    """What tunnels run on: the event loop, and what there is."""
    return str(request.param)


@pytest.fixture(scope="module")
def pages() -> Iterator[tuple[int, int]]:
    with _page("127.0.0.2") as allowed, _page("127.0.0.3") as denied:
        yield allowed, denied


@pytest.fixture(scope="module")
def stack(pages: tuple[int, int]) -> Iterator[RunningStack]:
    with (
        places() as where,
        running_stack(
            replace(where, extra={"FAIRLEAD_RELAY_TARGETS": f"127.0.0.2:{pages[0]}"})
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def sandbox(stack: RunningStack) -> Iterator[tuple[str, int]]:
    """A sandbox and the port of a web server in it."""
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        made = fairlead.sandboxes.create()
        yield made.sandbox_id, int(made.commands.run(["sh", "-c", _SERVE]).stdout)
        made.release()


def _answers(connection: socket.socket) -> bool:
    """Say whether a web server answers."""
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    return connection.recv(16).startswith(b"HTTP/1.0 200")


def test_a_proxy_leads_into_the_sandbox_and_where_the_operator_allows(
    stack: RunningStack, sandbox: tuple[str, int], pages: tuple[int, int], pump: str
) -> None:
    sandbox_id, port = sandbox
    with running(stack, "socks", sandbox_id, "--port", "0", pump=pump) as process:
        made = made_by(process)
        proxy = made["port"]
        status, listing = _curl(proxy, f"http://sandbox:{port}/")
        assert (status, b"Directory listing" in listing) == (0, True)
        assert _code(proxy, "sandbox", 1) == 5
        assert _curl(proxy, f"http://127.0.0.2:{pages[0]}/") == (0, CONTENT)
        assert _code(proxy, "127.0.0.3", pages[1]) == 2
        listed = json.loads(stack.cli("forward", "--list", "-o", "json").stdout)["forwards"]
        assert [{name: each[name] for name in made} for each in listed] == [made]
        session = json.loads(
            stack.cli("session", "show", "-o", "json", str(made["session_id"])).stdout
        )
        assert (session["mode"], session["state"]) == ("tunnel", "connected")
        taken = stack.cli("socks", sandbox_id, "--port", str(proxy), "-o", "json")
        problem = json.loads(taken.stdout)
        assert (taken.returncode, problem["reason"]) == (1, "local_port_taken")
        assert problem["pid"] == str(process.pid)
    assert json.loads(stack.cli("forward", "--list", "-o", "json").stdout)["forwards"] == []


def test_a_gateway_that_starts_anew_gets_another_tunnel(
    stack: RunningStack, sandbox: tuple[str, int], pump: str
) -> None:
    sandbox_id, port = sandbox
    with running(stack, "socks", sandbox_id, "--port", "0", pump=pump) as process:
        proxy = made_by(process)["port"]
        assert _code(proxy, "sandbox", port) == 0
        os.kill(stack.pids["relay-gateway"], signal.SIGKILL)

        def answers() -> bool:
            with suppress(OSError):
                return _code(proxy, "sandbox", port) == 0
            return False

        assert eventually(answers)


def test_a_forward_goes_over_a_tunnel_with_several_ports_and_sockets(
    stack: RunningStack, sandbox: tuple[str, int], pump: str
) -> None:
    sandbox_id, port = sandbox
    path = stack.places.root / "web.sock"
    with running(stack, "forward", sandbox_id, f"0:{port}", f"{path}:{port}", pump=pump) as process:
        made, at = made_by(process), made_by(process)
        with socket.create_connection(("127.0.0.1", int(str(made["port"])))) as inside:
            assert _answers(inside)
        with socket.socket(socket.AF_UNIX) as inside:
            inside.connect(str(path))
            assert _answers(inside)
        assert at["path"] == str(path)
        session = json.loads(
            stack.cli("session", "show", "-o", "json", str(made["session_id"])).stdout
        )
        assert session["mode"] == "tunnel"
    assert not path.exists()


def test_where_no_url_of_a_gateway_can_be_reached_tunnels_go_over_a_data_channel() -> None:
    nowhere = {"FAIRLEAD_RELAY_PUBLIC_URLS": "tcp://127.0.0.1:1,http://127.0.0.1:1"}
    with (
        places() as where,
        running_stack(replace(where, extra=nowhere)) as stack,
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
    ):
        made = fairlead.sandboxes.create()
        port = int(made.commands.run(["sh", "-c", _SERVE]).stdout)
        path = where.root / "web.sock"
        with running(stack, "forward", made.sandbox_id, f"0:{port}", f"{path}:{port}") as process:
            local = made_by(process)
            with socket.create_connection(("127.0.0.1", int(str(local["port"])))) as inside:
                assert _answers(inside)
            with socket.socket(socket.AF_UNIX) as inside:
                inside.connect(str(path))
                assert _answers(inside)
            tunnel = fairlead.sessions.get(str(local["session_id"]))
            assert (tunnel.mode, tunnel.state) == ("tunnel", "connected")
            (carrying,) = (
                each for each in fairlead.sessions.list() if each.session_id != tunnel.session_id
            )
            assert (carrying.gateway_id, carrying.state) == (tunnel.gateway_id, "connected")
        assert fairlead.sessions.list() == ()
        with running(stack, "socks", made.sandbox_id, "--port", "0") as process:
            local = made_by(process)
            status, listing = _curl(local["port"], f"http://sandbox:{port}/")
            assert (status, b"Directory listing" in listing) == (0, True)
            fairlead.sessions.close(str(local["session_id"]))
            process.wait(SECONDS)
        assert fairlead.sessions.list() == ()
        made.release()
