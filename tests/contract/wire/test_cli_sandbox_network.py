"""`fairlead sandbox network` against a front door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.cli_runner import CliRunner, make_cli
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Answer, Script, problem, serve
from tests.unit.fairlead_sdk.test_sandboxes import NETWORK, document

NETWORK_PATH = f"/v1/sandboxes/{documents.SANDBOX_ID}/network"


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
    runner.script.on("GET", NETWORK_PATH, Answer(document=NETWORK))
    runner.script.on("PUT", NETWORK_PATH, Answer(document=document()))
    return runner


def test_it_shows_what_was_refused_and_why(cli: CliRunner) -> None:
    ended = cli("sandbox", "network", documents.SANDBOX_ID)
    assert ended.status == 0
    lines = ended.stdout.decode().splitlines()
    assert lines[:2] == ["network egress", "allows  pypi.org"]
    assert [line.split()[1:] for line in lines[4:]] == [
        ["pypi.org:443", "151.101.0.223", "allowed"],
        ["evil.test:443", "not_listed"],
    ]
    assert cli.script.asked("PUT", NETWORK_PATH) == []


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--network", "none"], {"mode": "none", "allow": []}),
        (["--allow", "a.test", "--allow", "*.b.test:22"],
         {"mode": "egress", "allow": ["a.test", "*.b.test:22"]}),
        (["--network", "egress"], {"mode": "egress", "allow": []}),
    ],
)  # fmt: skip
def test_it_changes_the_policy_first(
    cli: CliRunner, options: list[str], body: dict[str, object]
) -> None:
    ended = cli("sandbox", "network", documents.SANDBOX_ID, *options, "-o", "json")
    assert ended.status == 0
    assert ended.lines == [NETWORK]
    assert cli.script.asked("PUT", NETWORK_PATH)[-1].document == body


def test_a_policy_that_cannot_be_had_is_told(cli: CliRunner) -> None:
    cli.script.on("PUT", NETWORK_PATH, problem(409, "network_unavailable"))
    ended = cli("sandbox", "network", documents.SANDBOX_ID, "--network", "host")
    assert ended.status != 0
    assert "network_unavailable" in ended.stderr
    assert ended.stdout == b""


def test_an_unknown_mode_is_a_usage_error(cli: CliRunner) -> None:
    assert cli("sandbox", "network", documents.SANDBOX_ID, "--network", "all").status == 2
