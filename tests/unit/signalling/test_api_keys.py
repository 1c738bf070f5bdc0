"""API keys: what is kept, what is compared, and the command that prints one."""

from __future__ import annotations

import json
import os
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chassis.errors import Unauthenticated
from signalling.api_keys import (
    ApiKeys,
    KeyEnded,
    KeyFileInvalid,
    KeyInvalid,
    KeyMissing,
    KeyNotFound,
    TenantInvalid,
    make_first_key,
)
from signalling.caller import Caller
from signalling.key_command import main


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
    assert keys.caller_of(f"Bearer {admin}") == Caller(
        "one", is_admin=True, key_id=keys.list()[1][0].key_id
    )


def test_a_key_that_was_made_before_the_mark_has_none(tmp_path: Path) -> None:
    text = ApiKeys(state=tmp_path).add("one", is_admin=True)
    file = tmp_path / "keys.json"
    (record,) = json.loads(file.read_text())
    del record["is_admin"]
    file.write_text(json.dumps([record]))
    assert not ApiKeys(state=tmp_path).caller_of(f"Bearer {text}").is_admin


def test_only_hashes_are_kept(tmp_path: Path) -> None:
    text = ApiKeys(state=tmp_path).add("default")
    file = tmp_path / "keys.json"
    assert text not in file.read_text()
    assert text.removeprefix("flk_") not in file.read_text()
    assert mode_of(file) == 0o600
    (record,) = json.loads(file.read_text())
    assert sorted(record) == [
        *("created_at", "expires_at", "is_admin", "key_id", "prefix", "sha256", "tenant")
    ]
    assert record["prefix"] == text[:10]


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


def test_a_revoked_key_is_refused_at_once_and_stays_in_the_list(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    text, other = keys.add("one"), keys.add("two")
    ApiKeys(state=tmp_path).revoke(text[:10])
    with pytest.raises(KeyEnded):
        keys.caller_of(f"Bearer {text}")
    assert keys.caller_of(f"Bearer {other}").tenant == "two"
    (ended, _), (good, _) = keys.list()
    assert (ended.prefix, ended.tenant) == (text[:10], "one")
    assert ended.has_ended(datetime.now(UTC))
    assert not good.has_ended(datetime.now(UTC))


def test_a_key_ends_at_its_time(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    now = datetime.now(UTC)
    late = keys.add("one", expires_at=now - timedelta(seconds=1))
    good = keys.add("one", expires_at=now + timedelta(days=1))
    with pytest.raises(KeyEnded):
        keys.caller_of(f"Bearer {late}")
    record = keys.expire(late, None)
    assert record.expires_at == ""
    for text in (late, good):
        assert keys.caller_of(f"Bearer {text}").tenant == "one"


def test_keys_that_ended_long_ago_are_forgotten(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    keys.add("old", expires_at=datetime.now(UTC) - timedelta(days=31))
    keys.add("new")
    assert [record.tenant for record, _ in keys.list()] == ["new"]


@pytest.mark.parametrize("name", ["", "key_", "flk_no-such", "no"])
def test_a_name_that_means_no_key_or_several_changes_nothing(tmp_path: Path, name: str) -> None:
    keys = ApiKeys(state=tmp_path)
    keys.add("one")
    keys.add("two")
    before = (tmp_path / "keys.json").read_bytes()
    with pytest.raises(KeyNotFound):
        keys.revoke(name)
    assert (tmp_path / "keys.json").read_bytes() == before


def test_last_uses_of_all_replicas_are_listed_and_no_request_writes(tmp_path: Path) -> None:
    one, two = (ApiKeys(state=tmp_path, replica=name) for name in ("one", "two"))
    text = one.add("one")
    files = set(tmp_path.iterdir())
    one.caller_of(f"Bearer {text}")
    assert set(tmp_path.iterdir()) == files
    assert [used for _, used in one.list()] == [None]
    one.write_uses()
    ((_, first),) = two.list()
    assert first is not None
    two.caller_of(f"Bearer {text}")
    two.write_uses()
    ((_, second),) = one.list()
    assert second is not None
    assert second > first
    # A replica that starts again goes on from what it wrote.
    again = ApiKeys(state=tmp_path, replica="two")
    again.caller_of(f"Bearer {one.add('three')}")
    again.write_uses()
    assert one.list()[0][1] == second


def test_old_key_files_are_read_and_changed(tmp_path: Path) -> None:
    keys = ApiKeys(state=tmp_path)
    text = keys.add("one")
    file = tmp_path / "keys.json"
    (record,) = json.loads(file.read_text())
    file.write_text(
        json.dumps([{name: record[name] for name in ("key_id", "sha256", "tenant", "created_at")}])
    )
    assert keys.caller_of(f"Bearer {text}").tenant == "one"
    assert keys.list()[0][0].prefix == ""
    keys.revoke(record["key_id"])
    with pytest.raises(KeyEnded):
        keys.caller_of(f"Bearer {text}")


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    status = main(arguments)
    seen = capsys.readouterr()
    return status, seen.out, seen.err


def test_the_command_manages_keys_and_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIRLEAD_SIGNALLING_STATE", str(tmp_path))
    keys = ApiKeys(state=tmp_path)
    added = command(monkeypatch, capsys, "add", "--tenant", "ci", "--expires", "30d", "-o", "json")
    made = json.loads(added[1])
    text = made["key"]
    assert keys.caller_of(f"Bearer {text}").tenant == "ci"
    keys.write_uses()
    for arguments in (("list",), ("list", "-o", "json"), ("-o", "json", "list")):
        status, out, _ = command(monkeypatch, capsys, *arguments)
        assert status == 0
        assert text[:10] in out
        assert text[:11] not in out
        assert json.loads((tmp_path / "keys.json").read_text())[0]["sha256"] not in out
    row = json.loads(out)
    assert (row["tenant"], row["has_ended"]) == ("ci", False)
    assert row["last_used_at"]
    assert row["expires_at"] == made["expires_at"]
    assert command(monkeypatch, capsys, "expire", made["key_id"], "never")[0] == 0
    assert keys.list()[0][0].expires_at == ""
    assert command(monkeypatch, capsys, "revoke", text[:9])[0] == 0
    with pytest.raises(KeyEnded):
        keys.caller_of(f"Bearer {text}")
    status, _, said = command(monkeypatch, capsys, "revoke", "key_nothing")
    assert status == 1
    assert "fairlead-key list" in said


def test_the_command_says_where_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIRLEAD_SIGNALLING_STATE", str(tmp_path / "nothing"))
    for arguments in (("list",), ("add",), ("revoke", "key_a")):
        status, out, said = command(monkeypatch, capsys, *arguments)
        assert (status, out) == (1, "")
        assert "docker compose exec signalling fairlead-key" in said
    assert not (tmp_path / "nothing").exists()
    monkeypatch.setenv("FAIRLEAD_SIGNALLING_STATE", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    status, out, said = command(monkeypatch, capsys, "list")
    assert (status, out) == (1, "")
    assert "belong to" in said


def test_the_command_finds_the_stack_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / ".fairlead" / "signalling"
    for name in ("FAIRLEAD_SIGNALLING_STATE", "FAIRLEAD_STATE"):
        monkeypatch.delenv(name, raising=False)
    make_first_key(ApiKeys(state=state), tmp_path / ".fairlead" / "api-key")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert command(monkeypatch, capsys, "list")[1].count("flk_") == 1
    assert command(monkeypatch, capsys)[1].startswith("flk_")
