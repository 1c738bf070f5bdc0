"""The rules for branch names are those of git itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chassis.limits import BranchInvalid, check_branch
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.provisioner_room import LEASE, open_room
from workspace_provisioner.workspaces import Workspace

LONG = "ü" * 125
"""A part of a branch with 250 bytes."""


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="aZ9/.-@{}~^: \\*?[\x7f\tü\u2028lockHEAD", max_size=12))
@example("a.lock")
@example("@")
@example("HEAD")
@example("-x")
@example("a@{b")
@example("x/@")
@example("\u2028")
def test_branch_rules_are_those_of_git(name: str) -> None:
    allowed = True
    try:
        check_branch(name)
    except BranchInvalid:
        allowed = False
    asked = subprocess.run(
        ["git", "check-ref-format", "--branch", name], capture_output=True, check=False, cwd="/"
    )
    assert allowed == (asked.returncode == 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("overlay", [True, False])
async def test_a_branch_as_long_as_a_file_name_allows(tmp_path: Path, overlay: bool) -> None:
    client = GitClient(tmp_path / "laptop")
    client.write("file", b"content\n")
    client.commit()
    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        branch = f"deep/{LONG}/{LONG}"
        made = await room.provisioner.materialize(
            idempotency_key="k", source=client.source(), branch=branch, lease=LEASE,
            claims_branch=True, overlay=overlay,
        )  # fmt: skip
        assert isinstance(made, Workspace)
        copy = await room.provisioner.fork(
            "ada", made.workspace_id, idempotency_key="f", name="", branch=LONG, lease=LEASE,
            overlay=False,
        )  # fmt: skip
        path = room.layout.trees / copy.workspace_id
        assert run_git(path, "symbolic-ref", "HEAD").decode() == f"refs/heads/{LONG}\n"
        for number in range(2):  # git locks the ref's file, which is there and is not
            run_git(path, "commit", "-q", "--allow-empty", "-m", f"own {number}")
        assert run_git(path, "rev-parse", f"{branch}~0") == run_git(path, "rev-parse", "HEAD~2")
        with pytest.raises(subprocess.CalledProcessError):
            run_git(path, "branch", f"{LONG}x")
