"""What `fairlead launch` imports: on its own what a launch needs, by the agent next to nothing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.agent_shell import Shell, launches, make_shell, with_agent
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Script, serve

_BY_AGENT = ("agent_client", "agent_place", "cli", "cli.app", "cli.standard_input")
_FOREIGN = frozenset(
    {"aiortc", "anyio", "fastapi", "google", "grpc", "httpx", "httpx2", "opentelemetry", "pydantic"}
    | {"redis", "rich", "fairlead_tunnel", "chassis", "signalling", "workspace_provisioner"}
)
_IN_A_LAUNCH = """
import sys
from fairlead_sdk.cli.app import main
try:
    main(["launch", "--", "prog"])
finally:
    print("\\n".join(sys.modules))
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    script = Script()
    with serve(script) as url, tempfile.TemporaryDirectory(prefix="fl") as runtime:
        made = make_shell(script, url, tmp_path / "work", Path(runtime))
        yield made
        made.end_agent()


def imported(shell: Shell, **environment: str) -> set[str]:
    """Launch in a process of its own, and give the names of the modules that it has loaded."""
    process = subprocess.run(
        [sys.executable, "-c", _IN_A_LAUNCH],
        cwd=shell.repository.path,
        env=shell.environment | environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return set(process.stdout.decode().split())


def test_a_launch_imports_nothing_that_it_does_not_use(shell: Shell) -> None:
    launches(shell, documents.exited("9"))
    alone = imported(shell, FAIRLEAD_AGENT="0")
    assert {"fairlead_sdk.client", "h11"} <= alone
    assert not {name.partition(".")[0] for name in alone} & _FOREIGN
    verbs = {"listing", "workspace", "ssh_launch", "waterfall", "tables", "forward"}
    assert not {f"fairlead_sdk.cli.{verb}" for verb in verbs} & alone
    with_agent(shell)
    by_agent = imported(shell)
    assert {name for name in by_agent if name.startswith("fairlead_sdk")} == {
        "fairlead_sdk",
        *(f"fairlead_sdk.{name}" for name in _BY_AGENT),
    }
    assert not {"argparse", "asyncio", "json", "subprocess", "socket", "ssl"} & by_agent
    assert not {name.partition(".")[0] for name in by_agent} & _FOREIGN
