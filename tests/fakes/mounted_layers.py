"""Looks into workspaces that are laid over templates, as a sandbox does: through a mount in a user
namespace of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.fakes.git_client import GitClient, listing
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.trees.layer_files import read_layer


def is_layered(layout: Layout, workspace_id: str) -> bool:
    """Say whether a workspace is laid over a template, and not a directory of its own."""
    return read_layer(layout.layers / workspace_id) is not None


def run_inside(layout: Layout, workspace_id: str, script: str) -> bytes:
    """Run a shell script in a workspace; returns its output. Git has no configuration but the
    workspace's own.
    """
    layer = read_layer(layout.layers / workspace_id)
    assert layer is not None
    target = layout.trees / workspace_id
    options = (
        f"lowerdir={':'.join(str(path) for path in layer.lower)},"
        f"upperdir={layer.upper},workdir={layer.path / 'work'},userxattr"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec",
         f'mount -t overlay overlay -o "{options}" "{target}"\ncd "{target}"\n{script}'],
        capture_output=True,
        check=False,
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def copy_out(layout: Layout, workspace_id: str, target: Path) -> Path:
    """Copy what a workspace shows to a plain directory."""
    target.mkdir()
    run_inside(layout, workspace_id, f'cp -a . "{target}"')
    return target


def statuses_inside(layout: Layout, workspace_id: str) -> list[bytes]:
    """Return what `git status` says in a workspace, sorted."""
    found = run_inside(layout, workspace_id, "git status --porcelain -z --untracked-files=all")
    return sorted(found.split(b"\0")[:-1])


def files_of(client: GitClient) -> dict[bytes, tuple[str, bytes]]:
    """The client's files without the ignored ones."""
    return {n: e for n, e in listing(client.path).items() if not n.endswith(b".log")}


def change_everything(client: GitClient) -> None:
    """Change files in every way that git knows."""
    client.write("d0/f0", b"changed\n")
    client.write("run.sh", b"#!/bin/sh\n", executable=False)
    client.write("d1/f1", b"line 1\n" * 20, executable=True)
    (client.path / "d2/f2").unlink()
    (client.path / "d3").rename(client.path / "renamed")
    (client.path / "link").unlink()
    os.symlink("d1/f1", client.path / "link")
    (client.path / "d4/f4").unlink()
    os.symlink("../d0", client.path / "d4/f4")
    shutil.rmtree(client.path / "d5")
    client.write("d5", b"a file where a directory was\n")
    os.unlink(os.fsencode(client.path) + b"/caf\xe9")
    client.write(b"caf\xe9/in/side", b"a directory where a file was\n")
    client.write(b"\xff\xfe", b"untracked\n")
    client.write("un\ntracked", b"")
    client.write("other.log", b"ignored")
    client.write("deep/er/and/deeper", bytes(range(256)))


def odd_repository(path: Path) -> GitClient:
    """Make a repository with 103 files of every kind."""
    found = GitClient(path)
    for number in range(100):
        found.write(f"d{number % 10}/f{number}", f"line {number}\n".encode() * 20)
    found.write("run.sh", b"#!/bin/sh\n", executable=True)
    os.symlink("d0/f0", found.path / "link")
    found.write(b"caf\xe9", b"latin\n")
    found.write(".gitignore", b"*.log\n")
    found.write("debug.log", b"stays at home")
    found.commit()
    return found
