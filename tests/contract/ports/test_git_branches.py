"""The rules for branch names are those of git itself."""

from __future__ import annotations

import subprocess

from hypothesis import example, given, settings
from hypothesis import strategies as st

from workspace_provisioner.branches import checked_branch
from workspace_provisioner.errors import BranchInvalid


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
        checked_branch(name)
    except BranchInvalid:
        allowed = False
    asked = subprocess.run(
        ["git", "check-ref-format", "--branch", name], capture_output=True, check=False, cwd="/"
    )
    assert allowed == (asked.returncode == 0)
