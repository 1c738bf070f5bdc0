"""Where a client looks for the mesh, and in which order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fairlead_sdk.discovery import find_mesh
from fairlead_sdk.errors import MeshUnavailable

NO_PROCESS = 2**22 + 1


def make_stack(place: Path, url: str, *, pid: int | None = None, key: str = "from-file") -> Path:
    place.mkdir(parents=True)
    (place / "api-key").write_text(f"{key}\n")
    stack = {
        "url": url,
        "grpc": "x",
        "api_key_file": str(place / "api-key"),
        "pid": pid or os.getpid(),
    }
    (place / "stack.json").write_text(json.dumps(stack))
    return place


@pytest.fixture
def here(tmp_path: Path) -> Path:
    place = tmp_path / "checkout" / "deep"
    place.mkdir(parents=True)
    return place


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def test_the_url_comes_first(here: Path, environment: dict[str, str]) -> None:
    make_stack(here / ".fairlead", "http://local")
    environment |= {"FAIRLEAD_URL": "https://far:7300/", "FAIRLEAD_API_KEY": "mine"}
    found = find_mesh(environment=environment, directory=here)
    assert (found.url, found.api_key, found.found_by) == (
        "https://far:7300",
        "mine",
        "FAIRLEAD_URL",
    )


def test_a_url_of_the_local_stack_needs_no_key(here: Path, environment: dict[str, str]) -> None:
    make_stack(here / ".fairlead", "http://local:1")
    environment["FAIRLEAD_URL"] = "http://local:1"
    assert find_mesh(environment=environment, directory=here).api_key == "from-file"


def test_then_the_named_state(here: Path, environment: dict[str, str], tmp_path: Path) -> None:
    make_stack(here / ".fairlead", "http://local")
    named = make_stack(tmp_path / "named", "http://named/")
    found = find_mesh(environment={**environment, "FAIRLEAD_STATE": str(named)}, directory=here)
    assert (found.url, found.api_key) == ("http://named", "from-file")


def test_a_named_state_without_a_stack_is_not_passed_over(
    here: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    make_stack(here / ".fairlead", "http://local")
    environment["FAIRLEAD_STATE"] = str(tmp_path / "nothing")
    with pytest.raises(MeshUnavailable, match="FAIRLEAD_STATE"):
        find_mesh(environment=environment, directory=here)


def test_then_an_ancestor_that_lives(here: Path, environment: dict[str, str]) -> None:
    make_stack(here / ".fairlead", "http://dead", pid=NO_PROCESS)
    make_stack(here.parent / ".fairlead", "http://alive")
    assert find_mesh(environment=environment, directory=here).url == "http://alive"


def test_then_the_current_one(here: Path, environment: dict[str, str], tmp_path: Path) -> None:
    target = make_stack(tmp_path / "elsewhere", "http://current")
    (tmp_path / "state" / "fairlead").mkdir(parents=True)
    (tmp_path / "state" / "fairlead" / "current").symlink_to(target)
    assert find_mesh(environment=environment, directory=here).url == "http://current"


def test_the_key_of_the_environment_wins(here: Path, environment: dict[str, str]) -> None:
    make_stack(here / ".fairlead", "http://local")
    environment["FAIRLEAD_API_KEY"] = "mine"
    assert find_mesh(environment=environment, directory=here).api_key == "mine"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": ""}', "\udcff"])
def test_a_broken_description_is_no_stack(
    content: str, here: Path, environment: dict[str, str]
) -> None:
    make_stack(here / ".fairlead", "http://local")
    (here / ".fairlead" / "stack.json").write_bytes(os.fsencode(content))
    with pytest.raises(MeshUnavailable) as caught:
        find_mesh(environment=environment, directory=here)
    assert caught.value.reason == "mesh_not_found"
    for remedy in ("fairlead up", "make up", "FAIRLEAD_URL"):
        assert remedy in caught.value.remedy


@pytest.mark.parametrize("url", ["127.0.0.1:7300", "ftp://x", "http://"])
def test_a_url_that_is_none_is_refused(url: str, here: Path) -> None:
    with pytest.raises(MeshUnavailable) as caught:
        find_mesh(environment={"FAIRLEAD_URL": url}, directory=here)
    assert caught.value.reason == "url_invalid"


def test_somebody_elses_stack_is_not_believed(
    here: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_stack(here.parent / ".fairlead", "http://theirs")
    owner = place.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        os.chown(place / "stack.json", 4242, -1)
    with pytest.raises(MeshUnavailable):
        find_mesh(environment=environment, directory=here)
    environment["FAIRLEAD_STATE"] = str(place)
    assert find_mesh(environment=environment, directory=here).url == "http://theirs"
