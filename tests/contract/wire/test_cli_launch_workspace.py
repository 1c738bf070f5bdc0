"""What `fairlead launch` says of the workspace: how it was made, and whether it is what was asked
for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.cli_runner import LAUNCH, CliRunner, make_cli
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Answer, Script, serve


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Script, str]]:
    script = Script()
    with serve(script) as url:
        yield script, url


@pytest.fixture
def cli(
    served: tuple[Script, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> CliRunner:
    return make_cli(served, tmp_path, monkeypatch, capfdbinary)


def made(cli: CliRunner, **members: object) -> None:
    """Let the launch's workspace be done, with these members of the step."""
    step = documents.event(
        "1",
        "step",
        {"step": "workspace", "state": "done", "elapsed": 0.0123, "failure": None, **members},
    )
    lines = [documents.snapshot(), step, documents.exited()]
    cli.script.on("POST", "/v1/launches", Answer(lines=lines))
    cli.script.on("GET", f"{LAUNCH}/trace", Answer(document=documents.trace()))


def test_the_rung_is_told_with_the_timing_only(cli: CliRunner) -> None:
    made(cli, detail="overlay_delta")
    assert "overlay_delta" not in cli("launch", "--", "prog").stderr
    assert "12.3 ms  overlay_delta" in cli("launch", "--timing", "--", "prog").stderr


def test_a_fallback_is_never_silent(cli: CliRunner) -> None:
    fresh = {"branch": "main", "as_of": None, "fallback": True, "reason": "origin_timeout"}
    made(cli, detail="overlay", freshness=fresh)
    ended = cli("launch", "--", "prog")
    assert ended.status == 0
    warning = "warning: this is your own commit, not the tip of main: origin timeout."
    assert warning in ended.stderr
    as_json = cli("launch", "-o", "json", "--", "prog")
    assert as_json.lines[1]["step"]["freshness"] == fresh  # type: ignore[index]
    assert warning in as_json.stderr


def test_how_old_the_tip_is_is_said(cli: CliRunner) -> None:
    fresh = {
        "branch": "main",
        "as_of": "2026-01-02T03:04:05Z",
        "fallback": False,
        "reason": "",
    }
    made(cli, detail="overlay", freshness=fresh)
    ended = cli("launch", "--", "prog")
    assert "the tip of main as of" in ended.stderr
    assert "warning" not in ended.stderr
