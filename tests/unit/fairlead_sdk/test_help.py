"""The help of every verb, as it was agreed on. `UPDATE_SNAPSHOTS=1` writes it anew."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from fairlead_sdk.cli.app import main

SNAPSHOTS = Path(__file__).parent / "snapshots"
VERBS = [
    "up",
    "down",
    "doctor",
    "launch",
    "exec",
    "shell",
    "cp",
    "ps",
    "logs",
    "trace",
    "kill",
    "forward",
    "socks",
    "agent",
    "workspace",
    "sandbox",
    "session",
]
SANDBOX_VERBS = ["create", "ls", "show", "network", "renew", "rm"]
WORKSPACE_VERBS = ["create", "ls", "show", "fork", "rename", "renew", "rm"]
SESSION_VERBS = ["diagnose", "ls", "show", "close"]
GROUPS = {"workspace": WORKSPACE_VERBS, "sandbox": SANDBOX_VERBS, "session": SESSION_VERBS}
NAMES = ["", *VERBS, *(f"{group} {verb}" for group, verbs in GROUPS.items() for verb in verbs)]


def helped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--help"])
    assert left.value.code == 0
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"


def _snapshot(name: str) -> Path:
    return SNAPSHOTS / f"{name.replace(' ', '-') or 'fairlead'}.txt"


@pytest.mark.parametrize("verb", NAMES)
def test_help_is_as_agreed(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    found = helped(capsys, *verb.split())
    snapshot = _snapshot(verb)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot.write_text(found)
    assert found == snapshot.read_text()


def test_every_verb_has_a_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    listed = helped(capsys).split("VERB\n")[1]
    assert [line.split()[0] for line in listed.splitlines()] == VERBS
    for group, verbs in GROUPS.items():
        below = helped(capsys, group).split("VERB\n")[1]
        assert [line.split()[0] for line in below.splitlines()] == verbs
    assert sorted(SNAPSHOTS.iterdir()) == sorted(_snapshot(name) for name in NAMES)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"fairlead {version('fairlead-sdk')}\n"
