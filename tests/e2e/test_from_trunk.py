"""`fairlead launch --from trunk` on a whole stack: the upstream's tip, or the local commit and a
warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running_stack import RunningStack, places, running_stack
from tests.fakes.git_client import GitClient, run_git
from tests.https_git import HttpsGitServer, https_git_server

ADDRESS = "127.0.0.1"


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsGitServer]:
    with https_git_server(tmp_path_factory.mktemp("https")) as server:
        yield server


@pytest.fixture(scope="module")
def trusting(https: HttpsGitServer) -> Iterator[RunningStack]:
    """A stack that may fetch from this machine, by the certificate that the server has."""
    settings = {
        "SSL_CERT_FILE": str(https.certificate),
        "FAIRLEAD_WORKSPACE_ORIGIN_ALLOW": ADDRESS,
        "FAIRLEAD_WORKSPACE_ORIGIN_SECONDS": "60",
    }
    with places() as where:
        where.extra = settings
        with running_stack(where) as running:
            yield running


@pytest.fixture
def laptop(tmp_path: Path, https: HttpsGitServer) -> GitClient:
    """A clone with an uncommitted file; its colleague has pushed since."""
    team = GitClient(tmp_path / "team")
    team.write("file", b"old\n")
    team.commit()
    repository = f"{tmp_path.name}.git"
    run_git(https.root, "clone", "-q", "--bare", str(team.path), repository)
    url = https.url(repository, ADDRESS)
    found = GitClient(tmp_path / "laptop")
    found.git("fetch", "-q", str(team.path), "main:refs/remotes/origin/main")
    found.git("reset", "-q", "--hard", "refs/remotes/origin/main")
    found.git("remote", "add", "origin", url.replace("https://", "https://user:token@"))
    found.write("file", b"uncommitted\n")
    team.write("file", b"new\n")
    team.commit("pushed")
    team.git("push", "-q", str(https.root / repository), "HEAD:main")
    return found


def test_the_upstreams_tip_runs_and_not_the_local_commit(
    trusting: RunningStack, laptop: GitClient
) -> None:
    path = str(laptop.path)
    ended = trusting.cli("launch", path, "--from", "trunk", "--", "cat", "file")
    assert (ended.returncode, ended.stdout) == (0, "new\n"), ended.stderr
    # Another launch of the same tip, and one of the local files.
    again = trusting.cli("launch", path, "--from", "trunk", "-o", "json", "--", "cat", "file")
    events = [json.loads(line) for line in again.stdout.splitlines()]
    done = [event["step"] for event in events if event.get("step", {}).get("state") == "done"]
    fresh = [step["freshness"] for step in done if step["step"] == "workspace"]
    assert [each["fallback"] for each in fresh] == [False]
    local = trusting.cli("launch", path, "--", "cat", "file")
    assert (local.returncode, local.stdout) == (0, "uncommitted\n"), local.stderr


def test_a_dead_origin_gives_the_local_commit_and_a_warning(
    trusting: RunningStack, laptop: GitClient, https: HttpsGitServer
) -> None:
    path = str(laptop.path)
    laptop.git("remote", "set-url", "origin", f"https://{ADDRESS}:1/x.git")
    ended = trusting.cli("launch", path, "--from", "trunk", "--", "cat", "file")
    assert (ended.returncode, ended.stdout) == (0, "old\n"), ended.stderr
    assert "not the tip of main: the host cannot reach origin; uncommitted" in ended.stderr


def test_an_origin_that_no_host_can_use_is_refused_at_home(
    trusting: RunningStack, laptop: GitClient
) -> None:
    laptop.git("remote", "set-url", "origin", "/srv/project.git")
    ended = trusting.cli("launch", str(laptop.path), "--from", "trunk", "--", "true")
    assert ended.returncode != 0
    assert "https:// or ssh://" in ended.stderr


def test_credentials_in_the_address_stay_at_home(trusting: RunningStack, laptop: GitClient) -> None:
    ended = trusting.cli("launch", str(laptop.path), "--from", "trunk", "--", "cat", "file")
    assert ended.returncode == 0, ended.stderr
    logs = "".join(path.read_text() for path in (trusting.state / "logs").glob("*.log"))
    assert logs
    assert "token@" not in logs


def test_submodules_are_there_for_the_command(
    trusting: RunningStack, laptop: GitClient, https: HttpsGitServer, tmp_path: Path
) -> None:
    sub = GitClient(tmp_path / "sub")
    sub.write("inside", b"from the submodule\n")
    head = sub.commit()
    run_git(https.root, "clone", "-q", "--bare", str(sub.path), f"{tmp_path.name}-sub.git")
    laptop.git("config", "-f", ".gitmodules", "submodule.sub.path", "libs/sub")
    laptop.git("config", "-f", ".gitmodules", "submodule.sub.url", f"../{tmp_path.name}-sub.git")
    laptop.git("add", ".gitmodules")
    laptop.git("update-index", "--add", "--cacheinfo", f"160000,{head},libs/sub")
    laptop.git("commit", "-q", "-m", "with a submodule")
    path = str(laptop.path)
    script = "cat libs/sub/inside && git -C libs/sub rev-parse HEAD && git status --porcelain"
    ended = trusting.cli("launch", path, "--clean", "--submodules", "--", "sh", "-c", script)
    assert (ended.returncode, ended.stdout) == (0, f"from the submodule\n{head}\n"), ended.stderr
    assert "submodules: their files do not travel" not in ended.stderr
    plain = trusting.cli("launch", path, "--clean", "--", "ls", "libs/sub")
    assert (plain.returncode, plain.stdout) == (0, ""), plain.stderr
    assert "submodules: their files do not travel" in plain.stderr
