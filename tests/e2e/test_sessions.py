"""Sessions through a whole stack: opened, restarted, closed by others, and without signalling."""

from __future__ import annotations

import hashlib
import os
import signal
import socket

import pytest

from fairlead_sdk import Fairlead
from fairlead_sdk.blocking_sandboxes import Sandbox
from fairlead_tunnel.cores import cores
from tests.e2e.running_stack import RunningStack

pytestmark = pytest.mark.slow

_ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    connection = server.accept()[0]
    while content := connection.recv(65536):
        connection.sendall(content)
    connection.close()
"""
_SERVE = 'python3 -c "$1" > port & until [ -s port ]; do sleep 0.05; done; cat port'
CONTENT = os.urandom(2_000_000)
TRICKLES = any(core.can_trickle for core in cores())


def serving(sandbox: Sandbox) -> int:
    return int(sandbox.commands.run(["sh", "-c", _SERVE, "sh", _ECHO]).stdout)


def received(inside: socket.socket, count: int) -> bytes:
    pieces = []
    while count:
        piece = inside.recv(min(count, 65536))
        assert piece
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("mode", ["complete", *(["trickle"] if TRICKLES else [])])
def test_a_session_carries_bytes_unharmed_and_restarts_where_it_can(
    stack: RunningStack, mode: str
) -> None:
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create()
        port = serving(sandbox)
        with (
            fairlead.sessions.open(sandbox.sandbox_id, mode=mode) as session,
            session.forward(remote_port=port) as local,
            socket.create_connection((local.host, local.port), timeout=60) as inside,
        ):
            assert fairlead.sessions.get(session.session_id).mode == mode
            got = b""
            for half in (CONTENT[:1_000_000], CONTENT[1_000_000:]):
                for start in range(0, len(half), 50_000):
                    piece = half[start : start + 50_000]
                    inside.sendall(piece)
                    got += received(inside, len(piece))
                if mode == "trickle" and session.round == 1:
                    session.restart()
            assert hashlib.sha256(got).digest() == hashlib.sha256(CONTENT).digest()
            record = fairlead.sessions.get(session.session_id)
            assert record.round == session.round == (2 if mode == "trickle" else 1)
            assert record.state == "connected"
        closed = fairlead.sessions.get(session.session_id)
        assert closed.state == "closed"
        assert closed.close_reason in {"requested", "peer_closed"}  # whichever word comes first
        sandbox.release()


def test_a_session_that_somebody_closes_ends_here_with_its_reason(stack: RunningStack) -> None:
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create()
        port = serving(sandbox)
        with (
            fairlead.sessions.open(sandbox.sandbox_id) as session,
            session.forward(remote_port=port) as local,
            socket.create_connection((local.host, local.port), timeout=60) as inside,
        ):
            inside.sendall(b"x")
            assert inside.recv(1) == b"x"
            fairlead.sessions.close(session.session_id)
            with pytest.raises(ConnectionResetError):
                inside.recv(1)
            session.wait_lost()
        sandbox.release()


def test_a_session_ends_when_the_lease_of_its_sandbox_does(stack: RunningStack) -> None:
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create(lease=60)
        with fairlead.sessions.open(sandbox.sandbox_id) as session:
            sandbox.renew(lease=1)
            session.wait_lost()
            closed = fairlead.sessions.get(session.session_id)
            assert (closed.state, closed.close_reason) == ("closed", "launch_ended")


def test_a_signalling_that_is_killed_ends_no_session(fresh_stack: RunningStack) -> None:
    with Fairlead(url=fresh_stack.url, api_key=fresh_stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create()
        port = serving(sandbox)
        with (
            fairlead.sessions.open(sandbox.sandbox_id) as session,
            session.forward(remote_port=port) as local,
            socket.create_connection((local.host, local.port), timeout=60) as inside,
        ):
            # The channel stands: one that is being opened waits for signalling, for a while.
            inside.sendall(b"x")
            assert inside.recv(1) == b"x"
            os.kill(fresh_stack.pids["signalling"], signal.SIGKILL)
            for _ in range(20):
                inside.sendall(b"y" * 10_000)
                assert received(inside, 10_000) == b"y" * 10_000
            if session.mode == "trickle":
                session.restart()
                inside.sendall(b"z")
                assert inside.recv(1) == b"z"
