"""`fairlead exec` and what takes an execution's id, against a front door."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.cli_runner import LAUNCH, CliRunner, make_cli
from tests.eventually import SECONDS
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Answer, Script, problem, serve

START = f"/v1/sandboxes/{documents.SANDBOX_ID}/executions"
EXECUTION = f"/v1/executions/{documents.EXECUTION_ID}"
ENDED = {**documents.execution("exited"), "exit": documents.ending()}


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
    held = documents.launch("provisioned", arguments=[])
    runner.script.on("GET", LAUNCH, Answer(document=held))
    runner.script.on("POST", START, Answer(status=201, document=documents.execution()))
    return runner


def says(cli: CliRunner, *pieces: tuple[str, bytes], left_open: bool = False) -> None:
    lines = documents.execution_lines(*pieces, end=documents.ending(7))
    shown = lines[:-1] if left_open else lines
    cli.script.on("GET", f"{EXECUTION}/output", Answer(lines=shown, held=left_open))


def test_the_command_waits_for_its_reader_rather_than_lose_output(cli: CliRunner) -> None:
    says(cli)
    cli("exec", documents.LAUNCH_ID, "--timeout", "9", "--", "prog")
    body = cli.script.asked("POST", START)[0].document
    assert body == {"arguments": ["prog"], "timeout": 9, "on_full": "block"}


def test_a_detached_command_is_named_and_left(cli: CliRunner) -> None:
    ended = cli("exec", "--detach", documents.LAUNCH_ID, "--", "prog")
    assert (ended.status, ended.stdout) == (0, f"{documents.EXECUTION_ID}\n".encode())
    assert f"fairlead logs -f {documents.EXECUTION_ID}" in ended.stderr
    assert cli.script.asked("POST", START)[0].document == {"arguments": ["prog"]}
    assert not cli.script.asked("GET", f"{EXECUTION}/output")
    told = cli("exec", "-d", documents.LAUNCH_ID, "-o", "json", "--", "prog")
    assert told.lines == [documents.execution()]
    assert told.stderr == ""


def test_who_leaves_a_command_hears_where_it_goes_on(cli: CliRunner) -> None:
    says(cli, ("stdout", b"ready\n"), left_open=True)
    with cli.started("exec", documents.LAUNCH_ID, "--", "prog") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
        assert f"fairlead logs -f {documents.EXECUTION_ID}".encode() in process.stderr.read()


def test_a_command_whose_reader_is_gone_hears_of_it(cli: CliRunner) -> None:
    cli.script.on("POST", f"{EXECUTION}/signal", Answer(document=documents.execution()))
    says(cli, *[("stdout", bytes(100_000))] * 20, left_open=True)
    with cli.started("exec", documents.LAUNCH_ID, "--", "prog") as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(SECONDS) == 128 + signal.SIGPIPE
    told = [one.document for one in cli.script.asked("POST", f"{EXECUTION}/signal")]
    assert told == [{"signal": signal.SIGPIPE}]


def test_the_output_of_an_execution_is_replayed(cli: CliRunner) -> None:
    cli.script.on("GET", EXECUTION, Answer(document=ENDED))
    says(cli, ("stdout", b"\xffout"), ("stderr", b"err"))
    ended = cli("logs", documents.EXECUTION_ID)
    assert (ended.status, ended.stdout, ended.stderr) == (0, b"\xffout", "err")
    cli("logs", documents.EXECUTION_ID, "--cursor", "2")
    asked = cli.script.asked("GET", f"{EXECUTION}/output")
    assert [one.query for one in asked] == [{}, {"cursor": "2"}]


def test_a_running_execution_is_replayed_as_far_as_it_is(cli: CliRunner) -> None:
    cli.script.on("GET", EXECUTION, Answer(document=documents.execution()))
    says(cli, ("stdout", b"a"), ("stdout", b"b"), left_open=True)
    ended = cli("logs", documents.EXECUTION_ID)
    assert (ended.status, ended.stdout) == (0, b"ab")
    assert f"fairlead logs {documents.EXECUTION_ID} -f --cursor 2" in ended.stderr


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "٣", "9" * 19])
def test_a_position_in_its_output_is_a_number(cli: CliRunner, cursor: str) -> None:
    ended = cli("logs", documents.EXECUTION_ID, f"--cursor={cursor}")
    assert ended.status == 1
    assert "is no position" in ended.stderr
    assert not cli.script.received


def test_an_execution_is_ended(cli: CliRunner) -> None:
    cli.script.on("POST", f"{EXECUTION}/signal", Answer(document=documents.execution()))
    cli.script.on("GET", EXECUTION, Answer(document=documents.execution()), Answer(document=ENDED))
    ended = cli("kill", documents.EXECUTION_ID)
    assert (ended.status, "has ended" in ended.stderr) == (0, True)
    told = [one.document for one in cli.script.asked("POST", f"{EXECUTION}/signal")]
    assert told == [{"signal": signal.SIGTERM}]


def test_one_that_does_not_heed_sigterm_is_killed(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead_sdk.cli.detached._LOOK_SECONDS", 0)
    running = Answer(document=documents.execution())
    cli.script.on("POST", f"{EXECUTION}/signal", running)
    cli.script.on("GET", EXECUTION, *[running] * 25, Answer(document=ENDED))
    assert "has ended" in cli("kill", documents.EXECUTION_ID).stderr
    told = [one.document["signal"] for one in cli.script.asked("POST", f"{EXECUTION}/signal")]
    assert told == [signal.SIGTERM, signal.SIGKILL]


def test_one_that_had_ended_is_told(cli: CliRunner) -> None:
    cli.script.on("POST", f"{EXECUTION}/signal", problem(409, "execution_ended"))
    cli.script.on("GET", EXECUTION, Answer(document=ENDED))
    ended = cli("kill", documents.EXECUTION_ID, "-o", "json")
    assert ended.lines == [{"launches": [], "executions": [ENDED]}]
    assert "had ended already" in cli("kill", documents.EXECUTION_ID).stderr


@pytest.mark.parametrize("verb", ["launch", "exec", "shell"])
def test_a_command_in_the_wrong_place_is_told_where_it_goes(cli: CliRunner, verb: str) -> None:
    ended = cli(verb, "here", "prog")
    assert ended.status == 2
    assert f"usage: fairlead {verb} " in ended.stderr
    assert "unrecognized arguments: prog; the command goes after --" in ended.stderr


def test_what_a_verb_below_a_verb_does_not_know_shows_its_usage(cli: CliRunner) -> None:
    ended = cli("sandbox", "create", "--colour", "red")
    assert ended.status == 2
    assert "usage: fairlead sandbox create [OPTIONS]" in ended.stderr
    assert "unrecognized arguments: --colour red\n" in ended.stderr
