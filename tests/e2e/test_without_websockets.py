"""A proxy that knows no WebSockets before the front door: what needs one goes over a session."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fairlead_sdk import Fairlead, TerminalOwned
from fairlead_tunnel.cores import cores
from tests.e2e.running_stack import RunningStack
from tests.e2e.seated import Network, seated
from tests.e2e.test_sessions import serving
from tests.fakes.git_client import GitClient


@pytest.fixture
def proxy(stack: RunningStack) -> Iterator[Network]:
    port = urlsplit(stack.url).port
    assert port is not None
    network = Network(port=port, strips_upgrades=True)
    yield network
    network.close()


@pytest.fixture
def environment(stack: RunningStack, proxy: Network) -> dict[str, str]:
    return {
        **stack.environment,
        "FAIRLEAD_URL": f"http://127.0.0.1:{proxy.port}",
        "FAIRLEAD_API_KEY": stack.api_key,
    }


def test_a_shell_feels_the_same(
    environment: dict[str, str], proxy: Network, stack: RunningStack, tmp_path: Path
) -> None:
    laptop = GitClient(tmp_path / "laptop")
    laptop.write("file", b"one\n")
    laptop.commit()
    launched = stack.cli("launch", str(laptop.path))
    assert launched.returncode == 0, launched.stderr
    launch_id = launched.stdout.strip()
    directory = str(laptop.path)
    with seated("shell", launch_id, environment=environment, cwd=directory) as person:
        person.until(r"[$#] ")
        assert proxy.stripped
        person.resize(40, 120)
        person.type('until [ "$(stty size)" = "40 120" ]; do sleep 0.05; done; echo "re"sized\r')
        person.until("resized")
        person.type("PS1=; stty -echo; echo 'rea'dy\r")
        person.until("ready")
        person.type("for i in $(seq 1 20000); do echo line-$i-; done; echo al''l\r")
        person.until("all\r\n")
        numbers = re.findall(rb"line-(\d+)-", person.heard())
        assert numbers == [b"%d" % number for number in range(1, 20001)]
        person.type("kept=value\r\r~.")
        execution_id = person.until(r"fairlead shell (exe_\w+)").group(1).decode()
        assert person.ended() == 0
        assert person.is_restored
    with seated("shell", execution_id, environment=environment, cwd=directory) as again:
        again.type('echo "still:$kept"\r')
        again.until("still:value")
        again.type("exit 7\r")
        assert again.ended() == 7
    stack.cli("kill", launch_id)


def test_ways_to_a_terminal_share_its_owner(
    stack: RunningStack, environment: dict[str, str]
) -> None:
    with (
        Fairlead(url=stack.url, api_key=stack.api_key) as near,
        Fairlead(url=environment["FAIRLEAD_URL"], api_key=stack.api_key) as far,
    ):
        sandbox = near.sandboxes.create()
        with sandbox.pty.create(["sh", "-c", "stty -echo; echo ready; cat"]) as terminal:
            over_session = far.sandboxes.get(sandbox.sandbox_id)
            with pytest.raises(TerminalOwned):
                over_session.pty.attach(terminal.execution_id)
            with over_session.pty.attach(terminal.execution_id, take_over=True) as other:
                other.send(b"typed\n")
                shown = b""
                for piece in other.output():
                    shown += piece
                    if b"typed" in shown:
                        break
        # Its end is told over the channel, also when the sandbox is what ends.
        with over_session.pty.create(["sh", "-c", "echo ready; sleep 600"]) as sleeper:
            assert next(iter(sleeper.output()))
            sandbox.release()
            assert sleeper.wait().reason == "released"


def test_ports_are_forwarded(stack: RunningStack, environment: dict[str, str]) -> None:
    with Fairlead(url=stack.url, api_key=stack.api_key) as near:
        sandbox = near.sandboxes.create()
        port = serving(sandbox)
        with Fairlead(url=environment["FAIRLEAD_URL"], api_key=stack.api_key) as far:
            mode = "trickle" if any(core.can_trickle for core in cores()) else "complete"
            with (
                far.sessions.open(sandbox.sandbox_id, mode=mode) as session,
                session.forward(remote_port=port) as local,
                socket.create_connection((local.host, local.port), timeout=60) as inside,
            ):
                inside.sendall(b"through")
                assert inside.recv(64) == b"through"
        forwarding = subprocess.Popen(
            [sys.executable, "-m", "fairlead_sdk", "forward", sandbox.sandbox_id, f"0:{port}"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert forwarding.stderr is not None
        try:
            said = forwarding.stderr.readline()
            found = re.search(r"127\.0\.0\.1:(\d+) leads to", said)
            assert found, said
            with socket.create_connection(("127.0.0.1", int(found[1])), timeout=60) as inside:
                inside.sendall(b"by the command line")
                assert inside.recv(64) == b"by the command line"
            forwarding.send_signal(signal.SIGINT)
            assert forwarding.wait(30) == 0
        finally:
            forwarding.kill()
            forwarding.communicate()
        sandbox.release()
