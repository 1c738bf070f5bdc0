"""`fairlead session ls`, `show` and `close` against a scripted front door, and local forwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.cli_runner import CliRunner, make_cli
from tests.fakes.scripted_door import Answer, Script, problem, serve

ID = "ses_" + "a" * 26
PATH = f"/v1/sessions/{ID}"
RECORD: dict[str, object] = {
    "session_id": ID,
    "launch_id": "lch_a",
    "gateway_id": "gtw_a",
    "mode": "trickle",
    "ice_policy": "all",
    "state": "connected",
    "round": 2,
    "created_at": "2026-01-01T00:00:00Z",
    "expires_at": "2026-01-01T00:01:00Z",
    "close_reason": "",
}


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


def test_ls_lists_every_page_and_the_newest_first(cli: CliRunner) -> None:
    newer = {**RECORD, "session_id": "ses_" + "b" * 26, "created_at": "2026-02-01T00:00:00Z"}
    cli.script.on(
        "GET",
        "/v1/sessions",
        Answer(document={"sessions": [RECORD], "next_page_token": ID}),
        Answer(document={"sessions": [newer], "next_page_token": ""}),
    )
    titles, first, second = cli("session", "ls").stdout.decode().splitlines()
    assert titles.split() == ["SESSION", "STATE", "AGE", "MODE", "GATEWAY", "REACHES", "LOCAL"]
    assert first.split()[:2] == [newer["session_id"], "connected"]
    assert second.split()[-1] == "lch_a"
    pages = cli.script.asked("GET", "/v1/sessions")
    assert [page.query.get("page_token", "") for page in pages] == ["", ID]
    cli.script.on("GET", "/v1/sessions", Answer(document={"sessions": []}))
    assert cli("session", "ls", "--tenant", "other", "-o", "json").lines == [{"sessions": []}]
    assert cli.script.asked("GET", "/v1/sessions")[-1].query["tenant"] == "other"
    assert "there are no sessions" in cli("session", "ls").stderr


def test_show_says_what_is_known_of_a_session(cli: CliRunner) -> None:
    cli.script.on("GET", PATH, Answer(document=RECORD))
    lines = cli("session", "show", ID).stdout.decode().splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert (shown["session"], shown["state"], shown["mode"]) == (ID, "connected", "trickle")
    assert (shown["round"], shown["reaches"], shown["gateway"]) == ("2", "lch_a", "gtw_a")
    assert "closed" not in shown
    assert cli("session", "show", ID, "-o", "json").lines == [RECORD]


def test_a_tunnel_has_neither_rounds_nor_paths(cli: CliRunner) -> None:
    tunnel = {**RECORD, "mode": "tunnel", "round": 1}
    cli.script.on("GET", PATH, Answer(document=tunnel))
    shown = cli("session", "show", ID).stdout.decode()
    assert "mode       tunnel" in shown
    assert "round" not in shown
    assert "paths" not in shown
    cli.script.on("GET", "/v1/sessions", Answer(document={"sessions": [tunnel]}))
    assert " tunnel " in cli("session", "ls").stdout.decode().splitlines()[1]


def test_close_says_why_it_is_closed(cli: CliRunner) -> None:
    closed = {**RECORD, "state": "closed", "close_reason": "requested"}
    cli.script.on("DELETE", PATH, Answer(document=closed))
    ended = cli("session", "close", ID)
    assert (ended.status, ended.stdout) == (0, b"")
    assert f"{ID} is closed (requested)." in ended.stderr
    assert cli("session", "close", ID, "-o", "json").lines == [closed]


def test_an_administrator_closes_with_a_message(cli: CliRunner) -> None:
    closed = {**RECORD, "state": "closed", "close_reason": "admin_closed"}
    cli.script.on("DELETE", PATH, Answer(document=closed))
    ended = cli("session", "close", "--admin", "--message", "Upkeep.", ID)
    assert ended.status == 0
    assert f"{ID} is closed (admin_closed)." in ended.stderr
    (asked,) = cli.script.asked("DELETE", PATH)
    assert asked.query == {"as_admin": "true", "message": "Upkeep."}
    cli.script.on("DELETE", PATH, problem(403, "admin_required"))
    assert cli("session", "close", "--admin", ID).status == 77
    assert cli("session", "close", "--message", "Upkeep.", ID).status == 2


def test_a_session_that_is_not_there_is_an_error(cli: CliRunner) -> None:
    cli.script.on("GET", PATH, problem(404, "session_not_found"))
    assert cli("session", "show", ID).status == 1


def test_what_is_forwarded_here_is_listed_and_ended_without_a_mesh(cli: CliRunner) -> None:
    assert cli("forward", "--list", "-o", "json").lines == [{"forwards": []}]
    assert "nothing is forwarded here." in cli("forward", "--list").stderr
    missing = cli("forward", "--stop", "8080", "-o", "json")
    assert (missing.status, missing.lines[-1]["reason"]) == (1, "forward_not_found")
    assert cli.script.received == []


@pytest.mark.parametrize("content", ["", "ab", "x" * 64, "é" * 32, None])
def test_a_secret_that_is_none_stops_a_forward(
    cli: CliRunner, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("FAIRLEAD_SEAL_SECRET_FILE", str(file))
    ended = cli("forward", "lch_a", "80", "-o", "json")
    assert (ended.status, ended.lines[-1]["reason"]) == (1, "seal_secret_invalid")
    assert cli.script.received == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--list", "lch_a"),
        ("--list", "--stop", "8080"),
        ("--stop",),
        ("--stop", "8080", "80"),
        ("--stop", "8080", "--detach"),
        ("--all", "lch_a", "80"),
        ("lch_a",),
        (),
    ],
)
def test_what_goes_together_for_a_forward(cli: CliRunner, arguments: tuple[str, ...]) -> None:
    assert cli("forward", *arguments).status == 2
