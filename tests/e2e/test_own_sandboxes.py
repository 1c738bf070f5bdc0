"""Sandboxes that need no launch, on a whole stack: made, worked in, held, given back."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from fairlead_sdk import AsyncFairlead, Fairlead, SandboxNotFound
from fairlead_sdk import json_form as form
from tests.e2e.mesh_client import MeshClient
from tests.e2e.running_stack import RunningStack, eventually
from tests.fakes.git_client import GitClient

_SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"hello from inside")
    connection.close()
"""
_SERVE = 'python3 -c "$1" > port & until [ -s port ]; do sleep 0.05; done; cat port'


@pytest.fixture(scope="module")
def isolations(stack: RunningStack) -> list[str]:
    """What the one host has, best first."""
    with MeshClient(stack=stack) as mesh:
        (host,) = form.children(mesh.get("/v1/hosts"), "hosts")
    assert "default" in form.texts(host, "profiles")
    return list(form.texts(host, "isolation"))


@pytest.fixture
def workspace(stack: RunningStack, tmp_path: Path) -> str:
    laptop = GitClient(tmp_path / "laptop")
    laptop.write("file", b"one\n")
    laptop.commit()
    made = stack.cli("workspace", "create", str(laptop.path))
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_a_sandbox_lives_without_a_launch(stack: RunningStack, isolations: list[str]) -> None:
    isolation = isolations[0]
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        with fairlead.sandboxes.create(isolation=isolation, lease=60) as sandbox:
            result = sandbox.commands.run("cat; echo err >&2; exit 3", stdin=b"in")
            assert (result.stdout, result.stderr, result.exit_code) == (b"in", b"err\n", 3)
            record = fairlead.sandboxes.get(sandbox.sandbox_id).record
            assert (record.isolation, record.profile, record.launch_id) == (
                isolation,
                "default",
                "",
            )
            assert record.walls
            assert all(wall.stands or wall.reason for wall in record.walls)
            assert sandbox.renew(lease=600).expires_at > record.expires_at
            assert sandbox.sandbox_id in [each.sandbox_id for each in fairlead.sandboxes.list()]
        with pytest.raises(SandboxNotFound):
            fairlead.sandboxes.get(sandbox.sandbox_id)
        with pytest.raises(SandboxNotFound):
            sandbox.commands.run("true")


def test_a_port_in_it_is_reached(stack: RunningStack) -> None:
    with (
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        fairlead.sandboxes.create() as sandbox,
    ):
        if sandbox.commands.run("command -v python3").exit_code != 0:
            pytest.skip("there is no python3 in a sandbox")
        port = int(sandbox.commands.run(["sh", "-c", _SERVE, "sh", _SERVER]).stdout)
        with (
            sandbox.forward(remote_port=port) as local,
            socket.create_connection((local.host, local.port), timeout=10) as inside,
        ):
            assert inside.recv(100) == b"hello from inside"


def test_the_command_line_makes_one_in_a_workspace(stack: RunningStack, workspace: str) -> None:
    made = stack.cli("sandbox", "create", "--workspace", workspace, "--limit", "open_files=128")
    assert made.returncode == 0, made.stderr
    sandbox_id = made.stdout.strip()
    ran = stack.cli("exec", sandbox_id, "--", "sh", "-c", "cat file; ulimit -n")
    assert ran.stdout == "one\n128\n", ran.stderr
    shown = json.loads(stack.cli("sandbox", "show", "-o", "json", sandbox_id[:12]).stdout)
    assert (shown["sandbox_id"], shown["workspace_id"]) == (sandbox_id, workspace)
    assert stack.cli("sandbox", "renew", sandbox_id, "--lease", "90").returncode == 0
    assert sandbox_id in stack.cli("sandbox", "ls").stdout
    removed = stack.cli("sandbox", "rm", sandbox_id)
    assert removed.returncode == 0, removed.stderr
    assert sandbox_id not in stack.cli("sandbox", "ls").stdout
    assert stack.cli("workspace", "rm", workspace).returncode == 0


def test_a_launch_into_a_workspace_leaves_it(stack: RunningStack, workspace: str) -> None:
    first = stack.cli("launch", "--workspace", workspace, "--", "sh", "-c", "echo two > new")
    assert first.returncode == 0, first.stderr
    assert "discarded" not in first.stderr
    second = stack.cli("launch", "--workspace", workspace, "-o", "json", "--", "cat", "file", "new")
    events = [json.loads(line) for line in second.stdout.splitlines()]
    (made,) = [
        event["step"]["sandbox"]
        for event in events
        if event["type"] == "step" and event["step"]["sandbox"]
    ]
    assert made["isolation"]
    assert made["launch_id"] == events[0]["snapshot"]["launch_id"]
    assert stack.cli("workspace", "rm", "--force", workspace).returncode == 0


def test_a_launch_gets_the_isolation_that_it_demands(
    stack: RunningStack, tmp_path: Path, isolations: list[str]
) -> None:
    laptop = GitClient(tmp_path / "laptop")
    laptop.write("file", b"one\n")
    laptop.commit()
    for isolation in isolations:
        held = stack.cli("launch", str(laptop.path), "--isolation", isolation, "-o", "json")
        assert held.returncode == 0, held.stdout + held.stderr
        last = json.loads(held.stdout.splitlines()[-1])
        launch = last["provisioned"]["launch"]
        assert launch["isolation"] == isolation
        assert stack.cli("kill", launch["launch_id"]).returncode == 0
    refused = stack.cli("launch", str(laptop.path), "--isolation", "gvisor", "--", "true")
    assert refused.returncode == 1
    assert isolations[-1] in refused.stderr


def test_doctor_names_the_walls_of_each_host(stack: RunningStack, isolations: list[str]) -> None:
    checks = json.loads(stack.cli("doctor", "-o", "json").stdout)["checks"]
    (walls,) = [each for each in checks if each["check"] == "walls"]
    assert walls["ok"]
    for isolation in isolations:
        assert isolation in walls["detail"]
    (limits,) = [each for each in checks if each["check"] == "limits"]
    assert "default: " in limits["detail"]
    assert "processes" in limits["detail"]


def test_a_detached_command_is_followed_and_ended(stack: RunningStack) -> None:
    sandbox_id = stack.cli("sandbox", "create").stdout.strip()
    started = stack.cli("exec", "--detach", sandbox_id, "--", "sh", "-c", "echo first; sleep 100")
    assert started.returncode == 0, started.stderr
    execution_id = started.stdout.strip()
    assert execution_id.startswith("exe_")
    assert eventually(lambda: stack.cli("logs", execution_id).stdout == "first\n")
    assert stack.cli("kill", execution_id).returncode == 0
    followed = stack.cli("logs", "-f", execution_id)
    assert (followed.stdout, "SIGTERM" in followed.stderr) == ("first\n", True)
    assert stack.cli("sandbox", "rm", sandbox_id).returncode == 0


@pytest.mark.asyncio
async def test_the_executions_of_a_sandbox_are_listed(stack: RunningStack) -> None:
    async with AsyncFairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        sandbox = await fairlead.sandboxes.create()
        started = [await sandbox.commands.start(["sleep", "60"]) for _ in range(3)]
        ids = sorted(each.execution_id for each in started)
        found = await fairlead.executions.list(sandbox.sandbox_id)
        assert [each.execution_id for each in found] == ids
        assert {each.state for each in found} == {"running"}
        found = await fairlead.executions.list(sandbox.sandbox_id, limit=2)
        assert [each.execution_id for each in found] == ids[:2]
        await sandbox.release()
        with pytest.raises(SandboxNotFound):
            await fairlead.executions.list(f"sbx_{'z' * 26}")
