"""API keys: what is kept, what is compared, and the command that prints one."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from chassis.errors import Unauthenticated
from signalling.api_keys import (
    ApiKeys,
    KeyFileInvalid,
    KeyInvalid,
    KeyMissing,
    TenantInvalid,
    main,
    make_first_key,
)
from signalling.caller import Caller


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_names_its_tenant(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    one, two = keys.add("one"), keys.add("two")
    assert re.fullmatch(r"flk_[A-Za-z0-9_-]{43}", one)
    assert keys.caller_of(f"Bearer {one}").tenant == "one"
    assert keys.caller_of(f"bearer  {two}").tenant == "two"


def test_an_administrators_key_is_marked(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    plain, admin = keys.add("one"), keys.add("one", is_admin=True)
    assert not keys.caller_of(f"Bearer {plain}").is_admin
    assert keys.caller_of(f"Bearer {admin}") == Caller("one", is_admin=True)


def test_a_key_that_was_made_before_the_mark_has_none(tmp_path: Path) -> None:
    text = ApiKeys(state=tmp_path).add("one", is_admin=True)
    file = tmp_path / "keys.json"
    (record,) = json.loads(file.read_text())
    del record["is_admin"]
    file.write_text(json.dumps([record]))
    assert ApiKeys(state=tmp_path).caller_of(f"Bearer {text}") == Caller("one")


def test_only_hashes_are_kept(tmp_path: Path) -> None:
    text = ApiKeys(state=tmp_path).add("default")
    file = tmp_path / "keys.json"
    assert text not in file.read_text()
    assert text.removeprefix("flk_") not in file.read_text()
    assert mode_of(file) == 0o600
    (record,) = json.loads(file.read_text())
    assert sorted(record) == ["created_at", "is_admin", "key_id", "sha256", "tenant"]


@pytest.mark.parametrize(
    ("authorization", "error"),
    [
        ("", KeyMissing),
        ("Bearer", KeyMissing),
        ("Bearer ", KeyMissing),
        ("Bearer flk_" + "x" * 43, KeyInvalid),
        ("Bearer flk_short", KeyInvalid),
        ("Bearer é", KeyInvalid),
        ("Basic dXNlcjpwYXNz", KeyInvalid),
        ("flk_" + "x" * 43, KeyInvalid),
    ],
)
def test_what_is_refused(tmp_path: Path, authorization: str, error: type[Unauthenticated]) -> None:
    keys = ApiKeys(state=tmp_path)
    keys.add("default")
    with pytest.raises(error) as caught:
        keys.caller_of(authorization)
    assert "FAIRLEAD_API_KEY" in caught.value.remedy


def test_a_key_that_another_process_adds_is_noticed(tmp_path: Path) -> None:
    serving = ApiKeys(state=tmp_path)
    first = ApiKeys(state=tmp_path).add("default")
    assert serving.caller_of(f"Bearer {first}").tenant == "default"
    second = ApiKeys(state=tmp_path).add("other")
    assert serving.caller_of(f"Bearer {second}").tenant == "other"


def test_a_removed_key_is_refused(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    text = keys.add("default")
    assert keys.caller_of(f"Bearer {text}").tenant == "default"
    (tmp_path / "keys.json").write_text("[]")
    with pytest.raises(KeyInvalid):
        keys.caller_of(f"Bearer {text}")


def test_a_broken_file_stops_the_start_and_not_the_service(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    text = keys.add("default")
    assert keys.caller_of(f"Bearer {text}").tenant == "default"
    (tmp_path / "keys.json").write_text('{"oops": ')
    assert keys.caller_of(f"Bearer {text}").tenant == "default"
    with pytest.raises(KeyFileInvalid):
        make_first_key(ApiKeys(state=tmp_path), None)


def test_the_first_key_is_written_down_once(tmp_path: Path) -> None:
    keys, file = ApiKeys(state=tmp_path / "state"), tmp_path / "stack" / "api-key"
    make_first_key(keys, file)
    text = file.read_text()
    assert mode_of(file) == 0o600
    assert keys.caller_of(f"Bearer {text.strip()}").tenant == "default"
    make_first_key(keys, file)
    assert file.read_text() == text


def test_no_key_is_made_without_a_place_for_it(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    make_first_key(keys, None)
    assert keys.is_empty()


def test_tenants_have_plain_names(tmp_path: Path) -> None:
    for name in ("", "A", "a b", "../x", "a" * 64):
        with pytest.raises(TenantInvalid):
            ApiKeys(state=tmp_path).add(name)


def test_the_command_prints_the_first_key_and_adds_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "api-key"
    for name in list(os.environ):
        if name.startswith("FAIRLEAD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FAIRLEAD_SIGNALLING_STATE", str(tmp_path))
    assert main([]) == 1
    assert "FAIRLEAD_SIGNALLING_BOOTSTRAP_KEY_FILE" in capsys.readouterr().err
    monkeypatch.setenv("FAIRLEAD_SIGNALLING_BOOTSTRAP_KEY_FILE", str(file))
    make_first_key(ApiKeys(state=tmp_path), file)
    assert main([]) == 0
    assert capsys.readouterr().out == file.read_text()
    assert main(["--new", "--tenant", "agents"]) == 0
    added = capsys.readouterr().out.strip()
    assert ApiKeys(state=tmp_path).caller_of(f"Bearer {added}").tenant == "agents"
    assert main(["--new", "--tenant", "NO"]) == 1
