"""Fixtures that suites share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead_walls.survey import Survey
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.walled import survey
from tests.https_git import HttpsGitServer, https_git_server


@pytest.fixture
def https(tmp_path: Path) -> Iterator[HttpsGitServer]:
    with https_git_server(tmp_path / "https") as server:
        yield server


@pytest.fixture(scope="session")
def forty_commits(tmp_path_factory: pytest.TempPathFactory) -> GitClient:
    """A repository to copy."""
    found = GitClient(tmp_path_factory.mktemp("team") / "repository")
    for number in range(40):
        found.write(f"d{number % 4}/f{number}", f"line {number}\n".encode() * 50)
        found.commit(f"commit {number}")
    found.git("gc", "-q")  # a few files to copy instead of hundreds
    return found


@pytest.fixture
def team(tmp_path: Path, https: HttpsGitServer, forty_commits: GitClient) -> GitClient:
    """A colleague, whose pushes the server has at once."""
    found = forty_commits.copied(tmp_path / "team")
    run_git(https.root, "clone", "-q", "--bare", str(found.path), "project.git")
    return found


@pytest.fixture
def laptop(tmp_path: Path, team: GitClient) -> GitClient:
    """A clone from some time ago, with a commit of its own."""
    found = GitClient(tmp_path / "laptop")
    found.git("fetch", "-q", str(team.path), "main")
    found.git("reset", "-q", "--hard", "FETCH_HEAD~5")
    found.write("mine", b"not pushed\n")
    found.commit("mine")
    return found


@pytest.fixture(scope="session")
def walls(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """The walls of this machine; skips where sandboxes cannot be walled."""
    return survey(tmp_path_factory.mktemp("walls"))
