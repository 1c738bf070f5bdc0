"""`fairlead launch --host` as a program of its own: output, exit status, Ctrl-C, what is told."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fairlead_sdk.agent_client import dial
from tests.eventually import eventually
from tests.fakes.local_repository import LocalRepository
from tests.openssh import OpenSshServer

pytestmark = pytest.mark.slow

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(server: OpenSshServer, repository: LocalRepository, root: Path) -> Cli:
    """`fairlead launch --host` to its end, in the repository."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*launch(server, root), *arguments],
            cwd=repository.path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def launch(server: OpenSshServer, root: Path) -> list[str]:
    return [sys.executable, "-m", "fairlead_sdk", "launch", "--host", server.address(root)]


def held(root: Path) -> list[str]:
    return os.listdir(root / "trees")


def test_output_and_exit_status_are_the_commands(cli: Cli, root: Path) -> None:
    ended = cli("sub", "--", "sh", "-c", "cat file ../README; echo oops >&2; touch made; exit 5")
    assert ended.returncode == 5, ended.stderr
    assert ended.stdout == "below\nchanged\n"
    assert "oops\n" in ended.stderr
    assert "the host does not have this project yet" in ended.stderr
    assert "1 changed file was discarded with the workspace; --keep keeps it." in ended.stderr
    assert held(root) == []


def test_keep_holds_the_workspace_and_json_tells_everything(cli: Cli, root: Path) -> None:
    ended = cli("--keep", "-o", "json", "--", "sh", "-c", "echo out; kill -9 $$")
    assert ended.returncode == 128 + signal.SIGKILL
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["type"] for event in events] == ["provisioned", "output", "exited"]
    workspace = events[0]["provisioned"]["workspace"]
    assert base64.b64decode(events[1]["output"]["content"]) == b"out\n"
    assert events[2]["exited"]["exit"] == {"reason": "signalled", "code": None, "signal": 9}
    assert events[2]["exited"]["discarded"] is False
    assert held(root) == [workspace["workspace_id"]]


def test_what_nothing_was_lost_of_was_not_discarded(cli: Cli) -> None:
    ended = cli("--clean", "-o", "json", "--", "true")
    last = json.loads(ended.stdout.splitlines()[-1])["exited"]
    assert (last["changed_files"], last["discarded"]) == (0, False)


def test_a_directory_that_did_not_travel_is_explained(
    cli: Cli, repository: LocalRepository
) -> None:
    (repository.path / "empty").mkdir()
    ended = cli("empty", "--", "true")
    assert ended.returncode == 1
    assert "The directory empty is not in the workspace: it is ignored or empty." in ended.stderr


def test_without_a_command_the_workspace_is_held_and_named(cli: Cli, root: Path) -> None:
    ended = cli()
    assert ended.returncode == 0
    assert held(root) == [ended.stdout.strip()]
    assert f"{root}/trees/{ended.stdout.strip()} is held until" in ended.stderr


def test_what_is_kept_there_is_used_copied_and_ended(
    cli: Cli, server: OpenSshServer, root: Path, tmp_path: Path
) -> None:
    kept = cli("--keep", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
    sleeping = psutil.Process(int(kept.stdout))
    (workspace,) = held(root)

    def verb(name: str, *words: str, sent: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fairlead_sdk", name, "--host", server.address(root), *words],
            cwd=tmp_path,
            input=sent,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    for name in ("exec", "cp", "kill"):
        assert f"fairlead {name} --host {server.address(root)} {workspace}" in kept.stderr
    assert workspace in verb("ps").stdout
    ended = verb("exec", "-C", "sub", workspace, "--", "sh", "-c", "cat file -; exit 3", sent="in")
    assert (ended.returncode, ended.stdout) == (3, "below\nin")
    assert verb("exec", "-n", workspace, "--", "cat", sent="in").stdout == ""

    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/tool").write_text("run me")
    (tmp_path / "tree/deep/tool").chmod(0o755)
    for _ in range(2):  # the second time it is there already
        assert verb("cp", "tree/.", f"{workspace}:new").returncode == 0
    assert verb("cp", "tree/deep/tool", f"{workspace}:sub").returncode == 0
    assert (root / "trees" / workspace / "sub/tool").stat().st_mode & 0o777 == 0o755
    assert verb("cp", f"{workspace}:new", "back").returncode == 0
    assert (tmp_path / "back/deep/tool").read_text() == "run me"
    assert verb("cp", f"{workspace}:sub/tool", "tool").returncode == 0
    assert (tmp_path / "tool").stat().st_mode & 0o777 == 0o755
    missing = verb("cp", f"{workspace}:nothing", "x", "-o", "json")
    assert json.loads(missing.stdout)["reason"] == "file_not_found"
    refused = verb("cp", "tree/deep/tool", f"{workspace}:new/deep/tool/x", "-o", "json")
    assert json.loads(refused.stdout)["reason"] == "host_copy_failed"
    whole = verb("cp", f"{workspace}:.", "whole")
    assert (whole.returncode, ".git" in whole.stderr) == (0, True)
    assert not (tmp_path / "whole/.git").exists()

    assert sleeping.is_running()
    assert verb("kill", workspace).returncode == 0
    sleeping.wait(60)
    assert held(root) == []


def test_what_is_held_there_is_listed_renewed_and_given_back(
    cli: Cli, server: OpenSshServer, root: Path
) -> None:
    workspace = cli().stdout.strip()

    def verb(*words: str) -> subprocess.CompletedProcess[str]:
        name, *rest = words
        command = [sys.executable, "-m", "fairlead_sdk", "workspace", name]
        return subprocess.run(
            [*command, "--host", server.address(root), *rest],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert [line.split()[0] for line in verb("ls").stdout.splitlines()] == ["WORKSPACE", workspace]
    assert json.loads(verb("ls", "-o", "json").stdout)["workspaces"][0]["path"]
    assert "changed    0 files\n" in verb("show", workspace[:8]).stdout
    (root / "trees" / workspace / "made").touch()
    assert "changed    1 file\n" in verb("show", workspace[:8]).stdout
    assert "is held until" in verb("renew", "--lease", "60", workspace[:8]).stderr
    refused = verb("rm", workspace)
    assert (refused.returncode, held(root)) == (1, [workspace])
    assert f"{workspace} is given back.\n" in verb("rm", "--force", workspace).stderr
    assert held(root) == []
    again = verb("rm", workspace)
    assert (again.returncode, "given back already" in again.stderr) == (0, True)
    unknown = verb("rm", f"wsp_{'a' * 26}", "-o", "json")
    assert json.loads(unknown.stdout)["reason"] == "workspace_not_found"


def test_ctrl_c_reaches_the_command_and_its_group(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    script = "trap 'echo caught; exit 7' INT; echo ready; sleep 1000 & wait"
    process = subprocess.Popen(
        [*launch(server, root), "--", "sh", "-c", script],
        cwd=repository.path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "caught\n"
    assert process.wait() == 7
    process.stdout.close()
    assert held(root) == []


def test_sigterm_gives_the_workspace_back(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    process = subprocess.Popen(
        [*launch(server, root), "--", "sh", "-c", "echo ready; sleep 1000"],
        cwd=repository.path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    process.stdout.close()
    assert held(root) == []


def test_a_connection_that_breaks_is_one_sentence_with_a_remedy(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    process = subprocess.Popen(
        [*launch(server, root), "--", "sh", "-c", "echo ready; sleep 1000"],
        cwd=repository.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    server.hang_up()
    _, complaint = process.communicate()
    assert process.returncode == 69
    last = complaint.splitlines()[-2:]
    assert last[0].startswith("fairlead: The connection to ")
    assert last[1] == "  remedy: Try again."


def test_what_the_user_gets_wrong_is_told(cli: Cli, tmp_path: Path) -> None:
    assert cli("--timing", "--", "true").returncode == 2
    assert cli(str(tmp_path), "--", "true").returncode == 1
    wrong = cli("--host", "ssh://box", "--", "true")
    assert wrong.returncode == 1
    assert "is no address of a host" in wrong.stderr
    away = cli("--host", f"ssh://127.0.0.1:1{tmp_path}", "--", "true")
    assert away.returncode == 69
    assert "cannot be reached" in away.stderr


@pytest.mark.asyncio
async def test_the_agent_keeps_the_connection_for_the_next_launch(
    server: OpenSshServer, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="fla-") as directory:
        monkeypatch.delenv("FAIRLEAD_AGENT")
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        assert cli("--", "cat", "README").stdout == "changed\n"

        async def there() -> bool:
            plug = dial(os.environ, "status")
            if plug is not None:
                plug.close()
            return plug is not None

        await eventually(there)
        try:
            sessions = []
            for _ in range(3):
                ended = await asyncio.to_thread(cli, "--", "sh", "-c", "cat README; exit 3")
                assert (ended.stdout, ended.returncode) == ("changed\n", 3)
                sessions += [each.pid for each in server.sessions()]
            shown = [sys.executable, "-m", "fairlead_sdk", "agent", "-o", "json"]
            told = await asyncio.to_thread(subprocess.run, shown, check=True, capture_output=True)
            status = json.loads(told.stdout)
            assert (status["front_doors"], status["launches"]) == ([], 3)
            assert [host.startswith("ssh://") for host in status["hosts"]] == [True]
            assert len(sessions) == 3
            assert len(set(sessions)) == 1
            server.hang_up()
            ended = await asyncio.to_thread(cli, "--", "true")
            assert ended.returncode == 0
        finally:
            stopping = [sys.executable, "-m", "fairlead_sdk", "agent", "--stop"]
            await asyncio.to_thread(subprocess.run, stopping, check=True, capture_output=True)
