"""The compose stack from outside: built, started, used with the CLI, hurt, used again, stopped.

Run by `make compose-test`; needs a container engine, so `make test` leaves it out.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.engine_door import engine_door

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "fairlead-compose-test"
ROOMS = ("signalling", "relay-gateway", "workspace-provisioner", "sandbox-worker")
PAGE = "served from inside the sandbox\n"
SERVER = f"printf '{PAGE}' > page.txt; exec python3 -m http.server 8765 --bind 127.0.0.1"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Stack:
    """A compose project of its own name and ports, driven by the two programs that a user has."""

    def __init__(self, *, program: list[str], engine: dict[str, str]) -> None:
        self.program = program
        self.http_port = free_port()
        self.environment = (
            os.environ
            | engine
            | {
                "FAIRLEAD_HTTP_PORT": str(self.http_port),
                "FAIRLEAD_GRPC_PORT": str(free_port()),
                "FAIRLEAD_RELAY_PORT": str(free_port()),
                "FAIRLEAD_TUNNEL_PORT": str(free_port()),
                "DOCKER_BUILDKIT": "0",
                "COMPOSE_DOCKER_CLI_BUILD": "0",
            }
        )
        self.key = ""

    def compose(self, *arguments: str, timeout: float = 600) -> str:
        done = subprocess.run(
            [*self.program, "-p", PROJECT, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def fairlead(self, *arguments: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("fairlead"), *arguments],
            env=self.client_environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @property
    def client_environment(self) -> dict[str, str]:
        return self.environment | {
            "FAIRLEAD_URL": f"http://127.0.0.1:{self.http_port}",
            "FAIRLEAD_API_KEY": self.key,
        }

    def await_healthy(self, *services: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        for service in services:
            while (state := self.health(service)) != "healthy":
                assert time.monotonic() < deadline, self.compose("logs", "--tail=80", service)
                assert state in ("starting", "unhealthy", "none"), f"{service} is {state}"
                time.sleep(1)

    def health(self, service: str) -> str:
        return self.inspected(service, "{{.State.Health.Status}}")

    def inspected(self, service: str, template: str) -> str:
        """Ask the engine itself: the compose program takes half a second to start."""
        labels = {"project": PROJECT, "service": service}
        filters = [f"--filter=label=com.docker.compose.{k}={v}" for k, v in labels.items()]
        container = docker("ps", "-aq", *filters)
        return docker("inspect", "-f", template, container) if container else "none"


@pytest.fixture(scope="module")
def made() -> Iterator[Stack]:
    """A stack that is not started, driven by the Compose that this machine has."""
    asked = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if asked.returncode == 0:
        yield Stack(program=["docker", "compose"], engine={})
        return
    with engine_door() as address:
        yield Stack(program=["docker-compose"], engine={"DOCKER_HOST": address})


@pytest.fixture(scope="module")
def stack(made: Stack) -> Iterator[Stack]:
    try:
        made.compose("build", timeout=800)
        made.compose("up", "-d")
        made.await_healthy("redis", *ROOMS)
        made.key = made.compose("exec", "-T", "signalling", "fairlead-key").strip()
        yield made
    finally:
        made.compose("down", "-v", "--remove-orphans")
    assert docker("ps", "-aq", f"--filter=label=com.docker.compose.project={PROJECT}") == ""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", path], check=True)
    (path / "committed.txt").write_text("committed\n")
    subprocess.run(["git", "-C", path, "add", "-A"], check=True)
    subprocess.run(["git", "-C", path, *identity, "commit", "-qm", "first"], check=True)
    (path / "untracked.txt").write_text("rides along\n")
    return path


def assert_launch_works(stack: Stack, repository: Path) -> None:
    done = stack.fairlead("launch", str(repository), "--", "cat", "committed.txt", "untracked.txt")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "committed\nrides along\n"


def forwarded_page(stack: Stack, launch_id: str) -> str:
    """Fetch the page that the launch serves, through `fairlead forward`."""
    port = free_port()
    program = str(Path(sys.executable).with_name("fairlead"))
    command = [program, "forward", launch_id, f"{port}:8765"]
    deadline = time.monotonic() + 40
    with subprocess.Popen(command, env=stack.client_environment) as forward:
        try:
            while (page := fetched(port)) is None:
                assert forward.poll() is None, "the forward ended by itself"
                assert time.monotonic() < deadline, "nothing was served in 40 s"
                time.sleep(0.3)
        finally:
            forward.terminate()
    return page


def fetched(port: int) -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/page.txt")
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def kept_launch(stack: Stack, repository: Path) -> str:
    done = stack.fairlead("launch", str(repository), "--keep")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_only_the_front_door_and_the_carrier_publish_ports(stack: Stack) -> None:
    published = {}
    for service in ("redis", *ROOMS):
        ports = json.loads(stack.inspected(service, "{{json .NetworkSettings.Ports}}"))
        published[service] = {b["HostIp"] for bindings in ports.values() for b in bindings or []}
    assert published == {
        "redis": set(),
        "signalling": {"127.0.0.1"},
        "relay-gateway": {"127.0.0.1"},
        "workspace-provisioner": set(),
        "sandbox-worker": set(),
    }


def test_no_container_of_ours_runs_as_root(stack: Stack) -> None:
    for room in ROOMS:
        assert stack.compose("exec", "-T", room, "id", "-u").strip() == "10001"


def test_redis_is_confined_and_asks_for_its_password(stack: Stack) -> None:
    confined = stack.inspected(
        "redis",
        "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}"
        " {{.HostConfig.SecurityOpt}}",
    )
    assert confined.strip() == "redis true [ALL] [no-new-privileges:true]"
    ask = ["exec", "-T", "redis", "redis-cli"]
    assert "NOAUTH" in stack.compose(*ask, "ping")
    assert "requirepass" not in stack.compose("exec", "-T", "redis", "cat", "/proc/1/cmdline")


def test_a_launch_is_walled_in(stack: Stack, repository: Path) -> None:
    assert_launch_works(stack, repository)
    listed = json.loads(stack.fairlead("ps", "--all", "-o", "json").stdout)
    assert {launch["isolation"] for launch in listed["launches"]} == {"walled"}
    looks = "hostname; pwd; ls /proc | grep -c '^[0-9]'; ls -d /var/lib/fairlead/secret; id -u"
    done = stack.fairlead("launch", str(repository), "--", "sh", "-c", looks)
    name, place, processes, user = done.stdout.split()
    assert (name, place, user) == ("sandbox", "/workspace", "1000")
    assert int(processes) < 8
    assert "No such file" in done.stderr


def test_a_port_of_a_kept_launch_is_reached_and_gone_after_kill(
    stack: Stack, repository: Path
) -> None:
    launch_id = kept_launch(stack, repository)
    server = subprocess.Popen(
        [Path(sys.executable).with_name("fairlead"), "exec", launch_id, "--", "sh", "-c", SERVER],
        env=stack.client_environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert forwarded_page(stack, launch_id) == PAGE
        assert stack.fairlead("kill", launch_id).returncode == 0
        assert server.wait(20) != 0
    finally:
        server.kill()
        server.wait()
    top = stack.compose("exec", "-T", "sandbox-worker", "sh", "-c", "cat /proc/[0-9]*/cmdline")
    assert "http.server" not in top


def test_launches_go_on_after_redis_restarts(stack: Stack, repository: Path) -> None:
    kept = kept_launch(stack, repository)
    stack.compose("restart", "-t", "2", "redis")
    stack.await_healthy("redis", *ROOMS)
    assert_launch_works(stack, repository)
    done = stack.fairlead("exec", kept, "--", "cat", "untracked.txt")
    assert done.stdout == "rides along\n", done.stderr
    assert stack.fairlead("kill", kept).returncode == 0


@pytest.mark.parametrize("room", ["sandbox-worker", "signalling"])
def test_launches_go_on_after_a_room_restarts(stack: Stack, repository: Path, room: str) -> None:
    stack.compose("restart", "-t", "5", room)
    stack.await_healthy(*ROOMS)
    assert_launch_works(stack, repository)
