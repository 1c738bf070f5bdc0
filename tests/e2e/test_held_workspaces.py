"""What reaches the workspace of a launch on a whole stack, and who may take it away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.e2e.running_stack import RunningStack
from tests.fakes.git_client import GitClient


def test_tags_travel_with_warm_launches(stack: RunningStack, tmp_path: Path) -> None:
    laptop = GitClient(tmp_path / "laptop")
    laptop.write("file", b"one\n")
    laptop.commit()

    def described() -> str:
        ended = stack.cli("launch", str(laptop.path), "--", "git", "describe", "--tags")
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == laptop.git("describe", "--tags").decode()
        return ended.stdout

    laptop.git("tag", "v1")
    assert described() == "v1\n"
    laptop.git("tag", "v2")
    laptop.git("tag", "-d", "v1")  # it stays there, and git names the nearest
    laptop.write("file", b"two\n")
    laptop.commit()
    laptop.git("tag", "-a", "-m", "noted", "v4")
    assert described() == "v4\n"
    laptop.write("file", b"three\n")
    laptop.commit()
    assert described().startswith("v4-1-g")
    laptop.git("tag", "v5")
    assert described() == "v5\n"


def test_tags_of_a_second_laptop_travel_with_its_first_launch(
    stack: RunningStack, tmp_path: Path
) -> None:
    first = GitClient(tmp_path / "first")
    first.write("file", b"of two laptops\n")
    first.commit()
    assert stack.cli("launch", str(first.path), "--", "true").returncode == 0
    second = GitClient(tmp_path / "second")
    second.git("pull", "-q", str(first.path), "main")
    for tag in (("tag", "plain"), ("tag", "-a", "-m", "noted", "v1")):
        second.git(*tag)
        ended = stack.cli("launch", str(second.path), "--", "git", "describe", "--tags")
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == second.git("describe", "--tags").decode()
        shutil.rmtree(second.path / ".git/fairlead")


def test_a_launchs_workspace_goes_by_force_only(stack: RunningStack, tmp_path: Path) -> None:
    laptop = GitClient(tmp_path / "laptop")
    laptop.write("file", b"one\n")
    laptop.commit()
    held = stack.cli("launch", str(laptop.path))
    assert held.returncode == 0, held.stderr
    launch_id = held.stdout.strip()
    (record,) = (
        each
        for each in json.loads(stack.cli("ps", "-o", "json").stdout)["launches"]
        if each["launch_id"] == launch_id
    )
    workspace_id = record["workspace_id"]
    refused = stack.cli("workspace", "rm", workspace_id)
    assert refused.returncode != 0
    assert launch_id in refused.stderr
    assert stack.cli("exec", launch_id, "--", "cat", "file").stdout == "one\n"
    forced = stack.cli("workspace", "rm", "--force", workspace_id)
    assert forced.returncode == 0, forced.stderr
    late = stack.cli("exec", launch_id, "--", "cat", "file")
    assert late.returncode != 0
    assert "no such workspace" in late.stderr
    assert stack.cli("kill", launch_id).returncode == 0
