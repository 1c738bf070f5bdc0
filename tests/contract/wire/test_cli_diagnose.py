"""`fairlead session diagnose`: what it prints, and its exit status for each kind of fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.cli_runner import CliRunner, make_cli
from tests.fakes.scripted_door import Answer, Script, problem, serve


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
    runner = make_cli(served, tmp_path, monkeypatch, capfdbinary)
    runner.script.on("GET", "/healthz", Answer(document={"status": "ok"}))
    runner.script.on("GET", "/v1/gateways", Answer(document={"gateways": []}))
    runner.script.on("GET", "/v1/launches", Answer(document={"launches": []}))
    return runner


def test_a_table_and_below_it_what_is_wrong_and_what_to_do(cli: CliRunner) -> None:
    cli.script.on("GET", "/v1/gateways", problem(401, "unauthenticated"))
    ended = cli("session", "diagnose")
    assert ended.status == 77
    table, faults = ended.stdout.decode().split("\n\n")
    rows = [line.split()[:3] for line in table.splitlines()]
    assert rows[0] == ["CHECK", "RESULT", "TIME"]
    assert rows[1][:2] == ["DNS", "works"]
    assert rows[-1] == ["carrier", "webrtc", "not"]
    assert faults.splitlines()[0] == "key: The front door does not know this key."
    assert faults.splitlines()[1].startswith("  Set FAIRLEAD_API_KEY")
    assert ended.stderr == ""


def test_the_document_has_every_check(cli: CliRunner) -> None:
    ended = cli("session", "diagnose", "--probes", "2", "--hold", "0.5", "-o", "json")
    assert ended.status == 69  # the scripted front door has no WebSocket
    (found,) = ended.lines
    checks = found["checks"]
    assert isinstance(checks, list)
    assert [each["check"] for each in checks] == [
        *("dns", "front_door", "key", "websocket", "session"),
        *("carrier_tcp", "carrier_websocket", "carrier_stream", "carrier_poll"),
        *("stun", "turn", "offer", "udp", "connection", "carrier_webrtc", "hold"),
    ]
    assert {each["check"]: each.get("reason") for each in checks if "reason" in each} == {
        "websocket": "websocket_refused",
        "session": "nothing_held",
    }
    assert (found["works"], found["path"], found["probes"]) == (False, "all", 2)


def test_another_thing_at_the_port_is_a_mesh_that_is_not_there(cli: CliRunner) -> None:
    cli.script.on("GET", "/healthz", Answer(status=502, document={"page": "Bad gateway"}))
    ended = cli("session", "diagnose")
    assert ended.status == 69
    assert "is no Fairlead front door (status 502)" in ended.stdout.decode()


def test_without_a_mesh_there_is_nothing_to_diagnose(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRLEAD_URL")
    assert cli("session", "diagnose").status == 69


@pytest.mark.parametrize(
    "options",
    [
        ["--probes", "0"],
        ["--probes", "101"],
        ["--probes", "many"],
        ["--hold", "-1"],
        ["--hold", "nan"],
        ["--relay-only", "--direct-only"],
    ],
)
def test_what_cannot_be_read_is_a_usage_error(cli: CliRunner, options: list[str]) -> None:
    assert cli("session", "diagnose", *options).status == 2
