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
from workspace_provisioner.origins import OriginFault
from workspace_provisioner.upstreams import NO_BASE


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
    warning = (
        "warning: this is your own commit, not the tip of main: origin did not answer the host in"
        " time.\n  remedy: Launch again.\n"
    )
    assert warning in ended.stderr
    as_json = cli("launch", "-o", "json", "--", "prog")
    assert as_json.lines[1]["step"]["freshness"] == fresh  # type: ignore[index]
    assert warning in as_json.stderr


def test_every_reason_of_a_fallback_has_its_sentence_and_remedy(cli: CliRunner) -> None:
    told = set()
    for reason in (NO_BASE, *OriginFault):
        fresh = {"branch": "main", "as_of": None, "fallback": True, "reason": reason}
        made(cli, detail="overlay", freshness=fresh)
        ended = cli("launch", "--", "prog")
        assert reason.removeprefix("origin_") + "." not in ended.stderr
        assert "\n  remedy: " in ended.stderr, reason
        told.add(ended.stderr)
    assert len(told) == 1 + len(OriginFault)


@pytest.mark.parametrize(("options", "left"), [((), True), (("--clean",), False)])
def test_a_fallback_says_that_changes_were_left_out(
    cli: CliRunner, options: tuple[str, ...], left: bool
) -> None:
    cli.repository.git("remote", "add", "origin", "https://git.example.com/p.git")
    cli.repository.git("update-ref", "refs/remotes/origin/main", "HEAD")
    cli.repository.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    fresh = {"branch": "main", "as_of": None, "fallback": True, "reason": "origin_timeout"}
    made(cli, detail="overlay", freshness=fresh)
    command = ("launch", "--from", "trunk", *options, "--", "prog")
    sentence = "in time; uncommitted changes were left out too.\n"
    assert sentence not in cli(*command).stderr
    cli.repository.write("new")
    assert (sentence in cli(*command).stderr) is left


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (1, "warning: 1 file is an LFS pointer; its content stays home.\n"),
        (3, "warning: 3 files are LFS pointers; their contents stay home.\n"),
    ],
)
def test_lfs_pointers_are_warned_of(cli: CliRunner, count: int, sentence: str) -> None:
    made(cli, detail="overlay", lfs_pointers=count)
    assert sentence in cli("launch", "--", "prog").stderr
    made(cli, detail="overlay", lfs_pointers=0)
    assert "LFS" not in cli("launch", "--", "prog").stderr


def test_a_directory_that_did_not_travel_is_explained(cli: CliRunner) -> None:
    (cli.repository.path / "empty").mkdir()
    lines = [documents.snapshot(), documents.failed(reason="directory_not_found")]
    cli.script.on("POST", "/v1/launches", Answer(lines=lines))
    ended = cli("launch", "empty", "--", "prog")
    assert ended.status == 1
    assert "The directory empty is not in the workspace: it is ignored or empty.\n" in ended.stderr
    assert "remedy: Launch a directory with files that git tracks" in ended.stderr
    assert "It is directory_not_found." in cli("launch", "--", "prog").stderr


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
