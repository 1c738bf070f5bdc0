"""The four rooms under the supervisor: started, hurt, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import time
import urllib.request
from pathlib import Path

import pytest

from fairlead_sdk import Fairlead
from tests.e2e.running_stack import (
    Places,
    RunningStack,
    eventually,
    running_stack,
    start_supervisor,
)
from tests.eventually import SECONDS

pytestmark = pytest.mark.slow

ROOMS = ("signalling", "workspace-provisioner", "sandbox-worker", "relay-gateway")


def is_whole(stack: RunningStack) -> bool:
    """Say whether a host and a gateway have registered with signalling."""
    return all(bool(listed(stack, noun)) for noun in ("hosts", "gateways"))


def listed(stack: RunningStack, noun: str) -> list[object]:
    """List hosts or gateways; empty also while signalling is away."""
    request = urllib.request.Request(  # noqa: S310 - the stack's own URL
        f"{stack.url}/v1/{noun}", headers={"Authorization": f"Bearer {stack.api_key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            found = json.load(answer)[noun]
    except OSError:
        return []
    assert isinstance(found, list)
    return found


def test_a_ready_stack_is_whole_and_private(stack: RunningStack) -> None:
    assert set(stack.pids) == {"redis", *ROOMS}
    assert len(listed(stack, "hosts")) == 1
    assert stack.described()["span_store"]
    for name in ("api-key", "secret", "stack.json"):
        assert stat.S_IMODE((stack.state / name).stat().st_mode) == 0o600
    runtime = Path(str(stack.described()["runtime"]))
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    for path in runtime.iterdir():
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(list(runtime.iterdir())) >= 5


def test_stopping_leaves_nothing_and_keeps_the_key(own_places: Places) -> None:
    with running_stack(own_places) as running:
        key = running.api_key
        assert running.stop(signal.SIGINT) == 0
    assert own_places.leftovers() == []
    with running_stack(own_places) as again:
        assert again.api_key == key
        assert listed(again, "hosts")


def test_killing_the_supervisor_leaves_no_process(fresh_stack: RunningStack) -> None:
    fresh_stack.stop(signal.SIGKILL)
    assert eventually(lambda: not fresh_stack.places.processes()), fresh_stack.places.commands()


def test_killed_rooms_and_redis_come_back_and_find_each_other(fresh_stack: RunningStack) -> None:
    before = fresh_stack.pids
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not set(fresh_stack.pids.values()) & set(before.values())), (
        fresh_stack.pids
    )
    assert eventually(lambda: is_whole(fresh_stack))


_ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection = server.accept()[0]
while content := connection.recv(65536):
    connection.sendall(content)
"""
_SERVE = 'python3 -c "$1" > port & until [ -s port ]; do sleep 0.05; done; cat port'


@pytest.mark.parametrize("room", ["sandbox-worker", "relay-gateway"])
def test_a_room_that_is_killed_never_looks_like_the_end_of_a_connection(
    fresh_stack: RunningStack, room: str
) -> None:
    with Fairlead(url=fresh_stack.url, api_key=fresh_stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create()
        port = int(sandbox.commands.run(["sh", "-c", _SERVE, "sh", _ECHO]).stdout)
        with (
            sandbox.forward(remote_port=port) as local,
            socket.create_connection((local.host, local.port), timeout=60) as inside,
        ):
            inside.sendall(b"x")
            assert inside.recv(1) == b"x"
            os.kill(fresh_stack.pids[room], signal.SIGKILL)
            with pytest.raises(ConnectionResetError):
                inside.recv(1)


@pytest.mark.parametrize("moment", [0.2, 0.8, 1.5, 2.5])
def test_ctrl_c_while_the_rooms_start_leaves_nothing(own_places: Places, moment: float) -> None:
    supervisor = start_supervisor(own_places)
    time.sleep(moment)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(SECONDS) in {0, 130, -signal.SIGINT}
    assert own_places.leftovers() == []


def test_two_stacks_at_once(stack: RunningStack, fresh_stack: RunningStack) -> None:
    assert stack.url != fresh_stack.url
    assert listed(stack, "hosts")
    assert listed(fresh_stack, "hosts")
