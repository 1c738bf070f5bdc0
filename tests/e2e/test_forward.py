"""`fairlead forward` against a whole stack: in the background, listed, stopped, closed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fairlead_sdk import Fairlead
from signalling.api_keys import ApiKeys
from tests.e2e.running_stack import RunningStack
from tests.e2e.test_sessions import serving as started


@pytest.fixture
def serving(stack: RunningStack) -> Iterator[tuple[str, int]]:
    """A sandbox and the port of an echo in it."""
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create()
        try:
            yield sandbox.sandbox_id, started(sandbox)
        finally:
            sandbox.release()


def echoes(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as inside:
        inside.sendall(b"x")
        return inside.recv(1) == b"x"


def without_flow(stack: RunningStack) -> list[dict[str, object]]:
    listed = json.loads(stack.cli("forward", "--list", "-o", "json").stdout)["forwards"]
    for each in listed:
        assert each.pop("flow").keys() >= {"carrier", "send_rate", "receive_rate"}
    return list(listed)


def eventually_flows(stack: RunningStack, carrier: str) -> None:
    """Wait until the processes have told what goes through."""
    flows: list[dict[str, object]] = []
    while [each["carrier"] for each in flows] != [carrier] * 2:
        listed = json.loads(stack.cli("forward", "--list", "-o", "json").stdout)["forwards"]
        flows = [each["flow"] for each in listed]
    assert [each["received"] for each in flows] == [1, 1]


def test_it_goes_on_in_the_background_until_it_is_stopped(
    stack: RunningStack, serving: tuple[str, int]
) -> None:
    sandbox_id, port = serving
    begun = stack.cli("forward", "--detach", "-o", "json", sandbox_id, f"0:{port}", f"0:{port}")
    assert begun.returncode == 0, begun.stderr
    made, beside = [json.loads(line) for line in begun.stdout.splitlines()]
    assert echoes(made["port"])
    assert without_flow(stack) == sorted([made, beside], key=lambda each: int(each["port"]))
    eventually_flows(stack, "tcp")
    assert stack.cli("forward", "--stop", str(beside["port"])).returncode == 0
    with pytest.raises(ConnectionRefusedError):
        echoes(beside["port"])
    assert echoes(made["port"])
    assert without_flow(stack) == [made]
    listed = stack.cli("session", "ls").stdout
    assert f"127.0.0.1:{made['port']} (pid {made['pid']})" in listed
    taken = stack.cli("forward", "-o", "json", sandbox_id, f"{made['port']}:{port}")
    problem = json.loads(taken.stdout)
    assert (taken.returncode, problem["reason"]) == (1, "local_port_taken")
    assert problem["pid"] == str(made["pid"])
    failed = stack.cli("forward", "--detach", "-o", "json", sandbox_id, f"{made['port']}:{port}")
    assert json.loads(failed.stdout)["reason"] == "local_port_taken"
    assert failed.returncode == 1
    another = json.loads(
        stack.cli("forward", "--detach", "-o", "json", sandbox_id, f"0:{port}").stdout
    )
    assert stack.cli("forward", "--stop", sandbox_id).returncode == 1  # two are meant
    stopped = stack.cli("forward", "--stop", f"localhost:{made['port']}")
    assert stopped.returncode == 0, stopped.stderr
    with pytest.raises(ConnectionRefusedError):
        echoes(made["port"])
    assert echoes(another["port"])
    assert stack.cli("forward", "--stop", "--all", sandbox_id).returncode == 0
    assert stack.cli("forward", "--stop", sandbox_id).returncode == 1
    assert without_flow(stack) == []


@pytest.mark.parametrize(("is_admin", "status"), [(True, 79), (False, 0)])
def test_its_exit_status_says_who_closed_the_session(
    stack: RunningStack, serving: tuple[str, int], is_admin: bool, status: int
) -> None:
    sandbox_id, port = serving
    forwarding = subprocess.Popen(
        [sys.executable, "-m", "fairlead_sdk", "forward", "-o", "json", sandbox_id, f"0:{port}"],
        env=stack.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with forwarding:
        try:
            assert forwarding.stdout is not None
            made = json.loads(forwarding.stdout.readline())
            key, message = stack.api_key, ""
            if is_admin:
                keys = ApiKeys(state=stack.state / "signalling")
                key, message = keys.add("operators", is_admin=True), "Upkeep."
            with Fairlead(url=stack.url, api_key=key) as fairlead:
                fairlead.sessions.close(made["session_id"], as_admin=is_admin, message=message)
            rest = forwarding.communicate(timeout=60)[0]
            assert forwarding.returncode == status
            if is_admin:
                assert json.loads(rest)["detail"] == "Upkeep."
        finally:
            forwarding.kill()
