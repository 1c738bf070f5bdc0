"""Where a client looks for the mesh, and in which order."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fairlead_sdk.discovery import (
    add_context,
    choose_context,
    find_mesh,
    list_contexts,
    register_stack,
    remove_context,
)
from fairlead_sdk.errors import FailedPrecondition, InvalidArgument, MeshUnavailable

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


@pytest.fixture
def two_stacks(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Two live stacks that `up` has registered, `one` and `two`, and the folder of both."""
    monkeypatch.setenv("XDG_STATE_HOME", environment["XDG_STATE_HOME"])
    for name in ("one", "two"):
        state = make_stack(tmp_path / name / ".fairlead", f"http://{name}", key=f"key-{name}")
        assert register_stack(state) == name
        assert register_stack(state) == name, "a stack that is known keeps its name"
    return tmp_path


def test_several_live_stacks_are_refused_by_name(
    two_stacks: Path, here: Path, environment: dict[str, str]
) -> None:
    with pytest.raises(MeshUnavailable) as caught:
        find_mesh(environment=environment, directory=here)
    assert caught.value.reason == "mesh_ambiguous"
    assert "one (http://one), two (http://two)" in caught.value.message


def test_the_only_live_stack_is_used_and_named(
    two_stacks: Path, here: Path, environment: dict[str, str]
) -> None:
    (two_stacks / "one/.fairlead/stack.json").unlink()
    found = find_mesh(environment=environment, directory=here)
    assert (found.url, found.api_key) == ("http://two", "key-two")
    assert "the context two" in found.notice


def test_the_chosen_context_is_used_and_named(
    two_stacks: Path, here: Path, environment: dict[str, str]
) -> None:
    choose_context("one", environment=environment)
    found = find_mesh(environment=environment, directory=here)
    assert (found.url, found.api_key) == ("http://one", "key-one")
    assert "the context one" in found.notice
    (two_stacks / "one/.fairlead/stack.json").unlink()
    with pytest.raises(MeshUnavailable) as caught:
        find_mesh(environment=environment, directory=here)
    assert caught.value.reason == "context_stopped", "another live stack is not used instead"


def test_a_stack_around_the_directory_comes_before_the_chosen_context(
    two_stacks: Path, here: Path, environment: dict[str, str]
) -> None:
    choose_context("one", environment=environment)
    inside = two_stacks / "two" / "deep"
    inside.mkdir()
    found = find_mesh(environment=environment, directory=inside)
    assert (found.url, found.notice) == ("http://two", "")


def test_the_context_of_the_environment_comes_before_state_and_directory(
    two_stacks: Path, here: Path, environment: dict[str, str]
) -> None:
    make_stack(here / ".fairlead", "http://local")
    environment |= {"FAIRLEAD_CONTEXT": "two", "FAIRLEAD_STATE": str(here / ".fairlead")}
    found = find_mesh(environment=environment, directory=here)
    assert (found.url, found.api_key, found.notice) == ("http://two", "key-two", "")
    environment["FAIRLEAD_CONTEXT"] = "three"
    with pytest.raises(MeshUnavailable) as caught:
        find_mesh(environment=environment, directory=here)
    assert caught.value.reason == "context_unknown"
    assert "one, two" in caught.value.message


def test_a_remote_context_has_an_address_and_a_key(
    here: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    add_context("far", url="https://far:7300/", api_key="secret", environment=environment)
    found = find_mesh(environment=environment, directory=here)
    assert (found.url, found.api_key) == ("https://far:7300", "secret")
    (file,) = (tmp_path / "state/fairlead/contexts").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FailedPrecondition):
        add_context("far", url="https://other", api_key="", environment=environment)
    choose_context("far", environment=environment)
    remove_context("far", environment=environment)
    assert list_contexts(environment=environment) == []
    with pytest.raises(MeshUnavailable) as caught:
        find_mesh(environment=environment, directory=here)
    assert caught.value.reason == "mesh_not_found"


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a b", "x" * 64])
def test_a_context_needs_a_plain_name(name: str, environment: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        add_context(name, url="http://x", api_key="", environment=environment)


def test_stacks_of_one_folder_name_get_names_of_their_own(
    two_stacks: Path, environment: dict[str, str]
) -> None:
    again = make_stack(two_stacks / "other" / "one" / ".fairlead", "http://again")
    assert register_stack(again) == "one-2"
    shutil.rmtree(again)
    assert register_stack(two_stacks / "one/.fairlead") == "one"
    assert [each.name for each in list_contexts(environment=environment)] == ["one", "two"]


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
