"""Files of a launch on a whole stack: the command line, the programs inside and the SDK see the
same bytes, in an overlay too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead_sdk import Fairlead, PathRefused
from tests.e2e.running_stack import RunningStack
from tests.fakes.git_client import GitClient, run_git


@pytest.fixture
def laptop(tmp_path: Path) -> GitClient:
    made = GitClient(tmp_path / "laptop")
    made.write("file", b"one\n")
    made.write("folder/deep", b"deep\n")
    made.commit()
    return made


@pytest.fixture
def held(stack: RunningStack, laptop: GitClient) -> Iterator[str]:
    """A launch that is held."""
    launched = stack.cli("launch", str(laptop.path))
    assert launched.returncode == 0, launched.stderr
    launch_id = launched.stdout.strip()
    yield launch_id
    assert stack.cli("kill", launch_id).returncode == 0


def test_files_come_and_go(stack: RunningStack, held: str, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "bytes").write_bytes(content)
    (tmp_path / "sent" / "run").write_text("#!/bin/sh\ncat file folder/deep > seen\n")
    (tmp_path / "sent" / "run").chmod(0o755)
    sent = stack.cli("cp", str(tmp_path / "sent"), f"{held[:12]}:folder")
    assert sent.returncode == 0, sent.stderr
    ran = stack.cli("exec", held, "--", "folder/sent/run")
    assert ran.returncode == 0, ran.stderr
    back = stack.cli("cp", f"{held}:seen", str(tmp_path / "seen"))
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "seen").read_text() == "one\ndeep\n"
    tree = stack.cli("cp", f"{held}:folder", str(tmp_path / "tree"))
    assert tree.returncode == 0, tree.stderr
    assert (tmp_path / "tree" / "sent" / "bytes").read_bytes() == content
    assert (tmp_path / "tree" / "deep").read_text() == "deep\n"
    changed = stack.cli("exec", held, "--", "git", "status", "--short")
    assert changed.stdout == "?? folder/sent/\n?? seen\n"


def test_copies_bring_no_program_of_the_sandbox(
    stack: RunningStack, held: str, laptop: GitClient, tmp_path: Path
) -> None:
    tripwire = tmp_path / "tripwire"
    tripwire.write_text(f"#!/bin/sh\ntouch {tmp_path}/tripped\n")
    tripwire.chmod(0o755)
    config = (laptop.path / ".git" / "config").read_bytes()
    script = f"""echo more >> file && git add file
        git -c user.name=A -c user.email=a@example.com commit -qm inside && echo again >> file
        git config core.fsmonitor {tripwire}
        mkdir -p .git/hooks && ln -s {tripwire} .git/hooks/pre-commit
        cp -r .git hidden && git -C hidden config core.worktree ."""
    ran = stack.cli("exec", held, "--", "sh", "-ec", script)
    assert ran.returncode == 0, ran.stderr
    copied = stack.cli("cp", "-o", "json", f"{held}:.", str(laptop.path))
    assert copied.returncode == 0, copied.stderr
    assert '"left_out":[".git","hidden"]' in copied.stdout
    assert (laptop.path / ".git" / "config").read_bytes() == config
    assert laptop.git("status", "--porcelain") == b" M file\n"
    single = stack.cli("cp", f"{held}:.git/config", str(tmp_path / "config"))
    assert single.returncode == 0, single.stderr
    assert b"fsmonitor" in (tmp_path / "config").read_bytes()
    refused = stack.cli("cp", f"{held}:.git/.", str(tmp_path / "bare"))
    assert refused.returncode == 1
    assert "git runs programs that such a directory names" in refused.stderr
    whole = stack.cli("cp", "-o", "json", "--with-git", f"{held}:.", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    assert '"left_out":["hidden"]' in whole.stdout
    out = tmp_path / "whole"
    assert run_git(out, "log", "-1", "--format=%s") == b"inside\n"
    assert run_git(out, "status", "--porcelain") == b" M file\n"
    for directory in (laptop.path, out):
        run_git(directory, "commit", "-qam", "here")
    assert not (tmp_path / "tripped").exists()
    again = stack.cli("cp", "--with-git", f"{held}:.", str(out))
    assert (again.returncode, "makes a new directory" in again.stderr) == (1, True)


def test_the_sdk_sees_what_programs_do(stack: RunningStack, laptop: GitClient) -> None:
    with (
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        fairlead.launch(laptop.path) as launch,
    ):
        assert launch.files.read("folder/deep") == b"deep\n"
        launch.files.write("folder/deep", b"deeper\n")
        assert launch.commands.run("cat folder/deep; rm file").stdout == b"deeper\n"
        assert [each.text for each in launch.files.list()] == [".git", "folder"]
        launch.commands.run("ln -s /etc/passwd out")
        with pytest.raises(PathRefused):
            launch.files.read("out")
