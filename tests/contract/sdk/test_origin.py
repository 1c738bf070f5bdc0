"""What a source says of the repository's origin."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.launches import LaunchRequest
from fairlead_sdk.origin import host_address, origin_fields
from workspace_provisioner.origins import checked_origin


def git(path: Path, *arguments: str) -> str:
    environment = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    found = subprocess.run(
        ["git", *environment, "-C", path, *arguments], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path, "remote", "add", "origin", "git@git.example.com:team/project.git")
    return tmp_path


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://git.example.com/a/b.git", "https://git.example.com/a/b.git"),
        ("https://user:token@git.example.com:8443/a", "https://git.example.com:8443/a"),
        ("https://token@git.example.com/a", "https://git.example.com/a"),
        ("git@git.example.com:a/b.git", "ssh://git@git.example.com/~/a/b.git"),
        ("git@git.example.com:/srv/b.git", "ssh://git@git.example.com/srv/b.git"),
        ("ssh://git:word@git.example.com:2222/a", "ssh://git@git.example.com:2222/a"),
        ("[::1]:a", "ssh://[::1]/~/a"),
        ("ssh://[::1]/a", "ssh://[::1]/a"),
    ],
)
def test_addresses_travel_without_credentials_and_as_a_host_takes_them(
    url: str, address: str
) -> None:
    assert host_address(url) == address
    assert checked_origin(address).text == address


@pytest.mark.parametrize(
    "url", ["/srv/a.git", "../a", "file:///srv/a", "http://h/a", "git://h/a", "ext::x", "C:\\a", ""]
)
def test_what_no_host_can_fetch_from(url: str) -> None:
    with pytest.raises(FairleadError) as raised:
        host_address(url)
    assert raised.value.reason == "origin_unsupported"


def test_the_trunk_is_what_the_origins_head_names(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    url = "ssh://git@git.example.com/~/team/project.git"
    with pytest.raises(FairleadError) as raised:
        origin_fields(repository, from_="trunk")
    assert raised.value.reason == "trunk_unknown"
    git(repository, "update-ref", "refs/remotes/origin/master", head)
    assert origin_fields(repository, from_="trunk") == trunk(url, "master")
    git(repository, "update-ref", "refs/remotes/origin/main", head)
    assert origin_fields(repository, from_="trunk") == trunk(url, "main")
    git(repository, "update-ref", "refs/remotes/origin/dev/x", head)
    git(repository, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/dev/x")
    assert origin_fields(repository, from_="trunk") == trunk(url, "dev/x")
    git(repository, "update-ref", "refs/remotes/origin/a\u2028b", head)
    git(repository, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/a\u2028b")
    assert origin_fields(repository, from_="trunk") == trunk(url, "a\u2028b")


def trunk(url: str, branch: str) -> dict[str, object]:
    return {"upstream": {"url": url, "branch": branch}, "branch": branch}


def test_submodules_need_no_origin(repository: Path) -> None:
    url = "ssh://git@git.example.com/~/team/project.git"
    assert origin_fields(repository, submodules=True) == {"submodules": True, "origin": url}
    git(repository, "remote", "remove", "origin")
    assert origin_fields(repository, submodules=True) == {"submodules": True, "origin": ""}
    with pytest.raises(FairleadError) as raised:
        origin_fields(repository, from_="trunk")
    assert raised.value.reason == "origin_missing"


def test_nothing_is_said_when_nothing_is_asked(tmp_path: Path) -> None:
    assert origin_fields(tmp_path) == {}
    with pytest.raises(FairleadError) as raised:
        origin_fields(tmp_path, from_="elsewhere")
    assert raised.value.reason == "from_unknown"


def test_a_request_is_silent_about_origins_by_default() -> None:
    assert LaunchRequest().document({"commit": "c"}) == {"source": {"commit": "c"}}
