"""`fairlead launch` against a front door: streams, exit statuses, sentences."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.cli_runner import LAUNCH, CliRunner, make_cli
from tests.eventually import SECONDS
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Answer, Script, problem, serve

CANCEL = f"{LAUNCH}/cancel"


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
    runner.script.on("POST", CANCEL, Answer(document=documents.launch("cancelled")))
    return runner


def launches(cli: CliRunner, *lines: documents.Document, held: bool = False) -> None:
    cli.script.on("POST", "/v1/launches", Answer(lines=[documents.snapshot(), *lines], held=held))


def test_output_goes_to_its_stream_as_it_is(cli: CliRunner) -> None:
    launches(
        cli,
        documents.step("1", "workspace", "started"),
        documents.step("2", "workspace"),
        documents.output("3", 1, b"\x00\xffout"),
        documents.output("4", 2, b"err\xfe", "stderr"),
        documents.exited(),
    )
    (cli.repository.path / "folder" / "new").write_bytes(b"untracked")
    ended = cli(
        "launch", "folder", "--branch", "try", "--timeout", "9", "--", "prog", "-x", "--", "y"
    )
    assert ended.status == 0
    assert ended.stdout == b"\x00\xffout"
    assert "done workspace" in ended.stderr
    assert "err" in ended.stderr
    body = cli.script.asked("POST", "/v1/launches")[0].document
    assert body["command"] == {
        "arguments": ["prog", "-x", "--", "y"],
        "directory": "folder",
        "timeout": 9.0,
        "on_full": "block",
    }
    assert body["branch"] == "try"
    source = body["source"]
    assert isinstance(source, dict)
    assert source["commit"] == cli.repository.git("rev-parse", "HEAD")
    assert source["changes"]["pack"]


def test_clean_and_keep_and_isolation_are_passed_on(cli: CliRunner) -> None:
    cli.script.on("GET", LAUNCH, Answer(document=documents.launch("exited", sandbox_id="sbx_1")))
    launches(cli, documents.exited())
    (cli.repository.path / "new").write_bytes(b"untracked")
    ended = cli("launch", "--clean", "--keep", "--isolation", "process", "--", "true")
    body = cli.script.asked("POST", "/v1/launches")[0].document
    source = body["source"]
    assert isinstance(source, dict)
    assert "changes" not in source
    assert (body["keep"], body["isolation"]) == (True, "process")
    assert f"fairlead exec {documents.LAUNCH_ID} -- COMMAND" in ended.stderr
    assert ended.stdout == b""


def test_refused_connections_are_told_with_the_flags_that_would_permit_them(cli: CliRunner) -> None:
    launches(cli, documents.exited(code=1, refused=["pypi.org", "git.example:22"]))
    ended = cli("launch", "--", "true")
    assert ended.status == 1
    assert "--allow pypi.org --allow git.example:22\n" in ended.stderr


@pytest.mark.parametrize(
    ("terminal", "status", "sentence"),
    [
        (documents.exited(code=0), 0, ""),
        (documents.exited(code=3), 3, ""),
        (documents.exited(code=255), 255, ""),
        (documents.exited(code=None, reason="signalled", signal=9), 137, "SIGKILL"),
        (documents.exited(code=None, reason="signalled", signal=2), 130, ""),
        (documents.exited(code=None, reason="timed_out"), 124, "in time"),
        (documents.exited(code=None, reason="host_lost"), 69, "host was lost"),
        (documents.exited(code=None, reason="released"), 137, "released"),
        (documents.failed(), 1, "It is command_not_found.\n  remedy: Look."),
        (documents.failed(reason="isolation_unavailable"), 1, "isolation_unavailable"),
        (documents.failed(reason="submodule_unavailable"), 1, "submodule_unavailable"),
        (documents.failed(reason="workspace_provisioner_unavailable"), 69, "remedy"),
        (documents.failed(reason="no_host"), 69, "no_host"),
        (documents.failed(reason="internal"), 70, "internal"),
        (documents.cancelled(), 1, "was cancelled"),
        (documents.cancelled(reason="lease_expired"), 1, "lease ran out"),
    ],
)
def test_the_exit_status_is_the_commands_or_says_why(
    terminal: documents.Document, status: int, sentence: str, cli: CliRunner
) -> None:
    launches(cli, terminal)
    ended = cli("launch", "--", "prog")
    assert ended.status == status
    assert sentence in ended.stderr
    assert ended.stdout == b""


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (problem(400, "branch_invalid"), 1),
        (problem(401, "unauthenticated"), 77),
        (problem(403, "permission_denied"), 77),
        (problem(429, "quota"), 1),
        (problem(500, "internal"), 70),
        (problem(503, "redis_unavailable"), 69),
        (problem(504, "deadline_exceeded"), 124),
    ],
)
def test_refusals_have_a_sentence_a_remedy_and_a_status(
    answer: Answer, status: int, cli: CliRunner
) -> None:
    cli.script.on("POST", "/v1/launches", answer)
    ended = cli("launch", "--", "prog")
    assert ended.status == status
    assert answer.document is not None
    assert ended.stderr == f"fairlead: {answer.document['detail']}\n  remedy: Stop.\n"
    assert cli.script.asked("POST", CANCEL) == []
    told = cli("launch", "-o", "json", "--", "prog")
    assert told.status == status
    assert told.lines[-1]["reason"] == answer.document["reason"]
    assert told.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "reason", "status"),
    [
        (["launch", "nowhere"], "path_not_found", 1),
        (["launch", "folder/file"], "path_not_directory", 1),
        (["launch", "/"], "not_a_repository", 1),
    ],
)
def test_what_cannot_be_launched_never_reaches_the_mesh(
    arguments: list[str], reason: str, status: int, cli: CliRunner
) -> None:
    ended = cli(*arguments, "-o", "json", "--", "prog")
    assert (ended.status, ended.lines[-1]["reason"]) == (status, reason)
    assert cli.script.received == []
    assert cli(*arguments, "--", "prog").stderr.startswith("fairlead: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["launch", ".", "prog"],
        ["launch", "--"],
        ["launch", "--nonsense"],
        ["launch", "--timeout", "x", "--", "prog"],
        ["launch", "--timeout", "0", "--", "prog"],
        ["launch", "-o", "yaml"],
        ["exec", documents.LAUNCH_ID],
        ["exec", "--", "prog"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_status_two(arguments: list[str], cli: CliRunner) -> None:
    ended = cli(*arguments)
    assert ended.status == 2
    assert "usage: fairlead" in ended.stderr
    assert ended.stdout == b""


def test_no_mesh_is_status_69_with_every_remedy(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRLEAD_URL")
    ended = cli("launch", "--", "prog")
    assert ended.status == 69
    assert "fairlead up" in ended.stderr
    assert "FAIRLEAD_URL" in ended.stderr
    monkeypatch.setenv("FAIRLEAD_URL", "http://127.0.0.1:1")
    assert cli("ps").status == 69


def test_json_is_every_event_as_it_came(cli: CliRunner) -> None:
    lines = [documents.output("1", 1, b"x"), documents.exited(changed=2)]
    launches(cli, *lines)
    ended = cli("launch", "-o", "json", "--", "prog")
    assert ended.lines == [documents.snapshot(), *lines]


@pytest.mark.parametrize(
    ("changed", "sentence"), [(1, "1 changed file was"), (2, "2 changed files")]
)
def test_discarded_changes_are_warned_of(changed: int, sentence: str, cli: CliRunner) -> None:
    launches(cli, documents.exited(changed=changed))
    stderr = cli("launch", "--", "prog").stderr
    assert sentence in stderr
    assert "--keep" in stderr
    assert stderr.count("\n") == 1


def test_without_a_command_the_id_is_the_output(cli: CliRunner) -> None:
    launches(cli, documents.provisioned(), held=True)
    ended = cli("launch")
    assert ended.status == 0
    assert ended.stdout.decode() == f"{documents.LAUNCH_ID}\n"
    for verb in ("exec", "forward", "kill"):
        assert f"fairlead {verb} {documents.LAUNCH_ID}" in ended.stderr
    assert cli.script.asked("POST", CANCEL) == []


def test_a_miss_is_answered_while_the_stream_stays_open(cli: CliRunner) -> None:
    cli.script.on("POST", "/v1/snapshots", Answer(status=201, document={"snapshot_id": "s"}))
    launches(cli, documents.miss(), documents.output("2", 1, b"x"), documents.exited())
    ended = cli("launch", "--", "prog")
    assert ended.status == 0
    assert "does not have this project yet; sending what" in ended.stderr
    assert "sent " in ended.stderr
    assert b"\nPACK" in cli.script.asked("POST", "/v1/snapshots")[0].body


def test_a_refused_upload_ends_the_command_and_the_launch(cli: CliRunner) -> None:
    cli.script.on("POST", "/v1/snapshots", problem(413, "pack_too_large"))
    launches(cli, documents.miss(), held=True)
    ended = cli("launch", "--", "prog")
    assert ended.status == 1
    assert "It is pack_too_large." in ended.stderr
    assert len(cli.script.asked("POST", CANCEL)) == 1


def test_timing_draws_the_waterfall(cli: CliRunner) -> None:
    spans = [documents.span(1, 0, "launch.run", "signalling", 0, 9)]
    cli.script.on("GET", f"{LAUNCH}/trace", Answer(document=documents.trace(*spans)))
    launches(cli, documents.exited(code=4))
    ended = cli("launch", "--timing", "--", "prog")
    assert ended.status == 4
    assert "launch.run" in ended.stderr
    assert ended.stdout == b""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupt_cancels_the_launch(number: int, status: int, cli: CliRunner) -> None:
    launches(cli, documents.output("1", 1, b"ready\n"), held=True)
    with cli.started("launch", "--", "prog") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(SECONDS) == status
    assert len(cli.script.asked("POST", CANCEL)) == 1


def running(cli: CliRunner, *lines: documents.Document, held: bool) -> None:
    """Script a launch whose command runs."""
    launch = documents.launch("running", execution_id=documents.EXECUTION_ID)
    cli.script.on("GET", LAUNCH, Answer(document=launch))
    launches(cli, documents.step("1", "execution"), *lines, held=held)


def test_an_interrupt_goes_to_the_command_and_the_next_one_cancels(cli: CliRunner) -> None:
    signals = f"/v1/executions/{documents.EXECUTION_ID}/signal"
    cli.script.on("POST", signals, Answer(document=documents.execution()))
    running(cli, documents.output("2", 1, b"ready\n"), held=True)
    with cli.started("launch", "--", "prog") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        while not cli.script.asked("POST", signals):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert cli.script.asked("POST", signals)[0].document == {"signal": signal.SIGINT}
    assert len(cli.script.asked("POST", CANCEL)) == 1


@pytest.mark.parametrize("option", ["", "-n"])
def test_what_is_piped_in_is_written_to_the_command(option: str, cli: CliRunner) -> None:
    stdin = f"/v1/executions/{documents.EXECUTION_ID}/stdin"
    cli.script.on("POST", stdin, Answer(document={"offset": 4}))
    running(cli, held=True)
    options = [option] if option else []
    with cli.started("launch", *options, "--", "prog", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"abc\n")
        process.stdin.close()
        if option:
            while not cli.script.asked("POST", "/v1/launches"):
                assert process.poll() is None
        else:
            while len(cli.script.asked("POST", stdin)) < 2:
                assert process.poll() is None
        process.terminate()
        process.wait(20)
    command = cli.script.asked("POST", "/v1/launches")[0].document["command"]
    assert isinstance(command, dict)
    assert command.get("stdin", False) is not bool(option)
    written = [one.document for one in cli.script.asked("POST", stdin)]
    content = base64.b64encode(b"abc\n").decode()
    sent = [
        {"offset": 0, "content": content, "close": False},
        {"offset": 4, "content": "", "close": True},
    ]
    assert written == ([] if option else sent)


def test_a_second_interrupt_leaves_at_once_and_nothing_behind(
    cli: CliRunner, tmp_path: Path
) -> None:
    cli.environment["TMPDIR"] = str(tmp_path)
    cli.repository.write("uncommitted", os.urandom(300_000))
    launches(cli, documents.output("1", 1, b"ready\n"), held=True)
    cli.script.on("POST", CANCEL, Answer(lines=[], held=True))
    with cli.started("launch", "--", "prog") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert list(tmp_path.glob("fairlead-changes-*"))
        process.send_signal(signal.SIGINT)
        while not cli.script.asked("POST", CANCEL):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    assert list(tmp_path.glob("fairlead-changes-*")) == []


def test_a_reader_that_leaves_ends_it_quietly(cli: CliRunner) -> None:
    records = [documents.output(str(n), n, b"y\n" * 1000) for n in range(1, 200)]
    launches(cli, *records, held=True)
    with cli.started("launch", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 2)
        process.stdout.close()
        assert process.wait(SECONDS) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
    assert len(cli.script.asked("POST", CANCEL)) == 1
