"""The other verbs of `fairlead` against a front door."""

from __future__ import annotations

import base64
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire.cli_runner import LAUNCH, CliRunner, make_cli
from tests.eventually import SECONDS
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Answer, Script, problem, serve

START = f"/v1/sandboxes/{documents.SANDBOX_ID}/executions"
EXECUTION = f"/v1/executions/{documents.EXECUTION_ID}"
HELD = documents.launch("provisioned", arguments=[])


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
    runner.script.on("GET", LAUNCH, Answer(document=HELD)).on(
        "POST", START, Answer(status=201, document=documents.execution())
    )
    return runner


def runs(cli: CliRunner, *pieces: tuple[str, bytes], end: documents.Document) -> None:
    lines = documents.execution_lines(*pieces, end=end)
    cli.script.on("GET", f"{EXECUTION}/output", Answer(lines=lines))


def listed(cli: CliRunner, *launches: documents.Document) -> None:
    page = {"launches": list(launches), "next_page_token": ""}
    cli.script.on("GET", "/v1/launches", Answer(document=page))


def test_exec_passes_streams_and_status_through(cli: CliRunner) -> None:
    runs(cli, ("stdout", b"\xffout"), ("stderr", b"err"), end=documents.ending(7))
    ended = cli("exec", documents.LAUNCH_ID, "-C", "folder", "--", "prog", "arg")
    assert (ended.status, ended.stdout, ended.stderr) == (7, b"\xffout", "err")
    body = cli.script.asked("POST", START)[0].document
    assert body == {"arguments": ["prog", "arg"], "directory": "folder", "on_full": "block"}


def test_exec_as_json_is_every_frame(cli: CliRunner) -> None:
    runs(cli, ("stdout", b"x"), end=documents.ending())
    ended = cli("exec", documents.LAUNCH_ID, "-o", "json", "--", "prog")
    assert [line["type"] for line in ended.lines] == ["snapshot", "output", "exit"]


def test_exec_forwards_what_is_piped_in(cli: CliRunner) -> None:
    cli.script.on("POST", f"{EXECUTION}/stdin", Answer(document={"offset": 0}))
    lines = documents.execution_lines(end=documents.ending())
    cli.script.on("GET", f"{EXECUTION}/output", Answer(lines=lines[:1], held=True))
    content = bytes(range(256)) * 1200
    with cli.started("exec", documents.LAUNCH_ID, "--", "cat", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(content)
        process.stdin.close()
        while not any(
            one.document["close"] for one in cli.script.asked("POST", f"{EXECUTION}/stdin")
        ):
            assert process.poll() is None
    received = b""
    for one in cli.script.asked("POST", f"{EXECUTION}/stdin"):
        assert one.document["offset"] == len(received)
        received += base64.b64decode(str(one.document["content"]))
    assert received == content
    assert cli.script.asked("POST", START)[0].document["stdin"] is True


def test_exec_sends_an_interrupt_on(cli: CliRunner) -> None:
    cli.script.on("POST", f"{EXECUTION}/signal", Answer(document=documents.execution()))
    lines = documents.execution_lines(("stdout", b"ready\n"), end=documents.ending())
    cli.script.on("GET", f"{EXECUTION}/output", Answer(lines=lines[:2], held=True))
    with cli.started("exec", documents.LAUNCH_ID, "--", "prog") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        while not cli.script.asked("POST", f"{EXECUTION}/signal"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    assert cli.script.asked("POST", f"{EXECUTION}/signal")[0].document == {"signal": 2}


def test_exec_needs_a_launch_that_is_held(cli: CliRunner) -> None:
    gone = documents.launch("exited", sandbox_id="sbx_1", released_at=documents.WHEN)
    cli.script.on("GET", LAUNCH, Answer(document=gone))
    ended = cli("exec", documents.LAUNCH_ID, "--", "prog")
    assert ended.status == 1
    assert "holds no sandbox" in ended.stderr
    assert "--keep" in ended.stderr


def test_exec_names_the_way_back_to_what_a_lost_host_has_kept(cli: CliRunner) -> None:
    remedy = "Its workspace is kept: fairlead launch --workspace wsp_a -- COMMAND"
    failure = {"step": "", "reason": "host_lost", "message": "It went away.", "remedy": remedy}
    gone = documents.launch(
        "failed", sandbox_id="sbx_1", released_at=documents.WHEN, failure=failure
    )
    cli.script.on("GET", LAUNCH, Answer(document=gone))
    ended = cli("exec", documents.LAUNCH_ID, "--", "prog")
    assert ended.status == 1
    assert remedy in ended.stderr


def test_a_launch_is_found_by_the_beginning_of_its_id(cli: CliRunner) -> None:
    other = documents.launch("provisioned", launch_id="lch_" + "b" * 26)
    listed(cli, HELD, other)
    runs(cli, end=documents.ending())
    assert cli("exec", "lch_aaa", "--", "prog").status == 0
    assert cli("exec", "a", "--", "prog").status == 0
    ambiguous = cli(
        "exec",
        "lch_",
        "--",
        "prog",
    )
    assert ambiguous.status == 1
    assert "2 launches begin" in ambiguous.stderr
    unknown = cli("kill", "zzz")
    assert unknown.status == 1
    assert "fairlead ps --all" in unknown.stderr


def test_an_unknown_id_is_refused_by_the_mesh(cli: CliRunner) -> None:
    cli.script.on("GET", LAUNCH, problem(404, "launch_not_found"))
    for verb in (["logs"], ["trace"], ["kill"], ["forward"]):
        port = ["80"] if verb == ["forward"] else []
        ended = cli(*verb, documents.LAUNCH_ID, *port, "-o", "json")
        assert (ended.status, ended.lines[-1]["reason"]) == (1, "launch_not_found")


def test_ps_lists_what_runs_or_holds(cli: CliRunner) -> None:
    over = documents.launch(
        "exited",
        launch_id="lch_" + "e" * 26,
        released_at=documents.WHEN,
        exit=documents.ending(3),
    )
    listed(cli, HELD, over)
    table = cli("ps").stdout.decode().splitlines()
    assert table[0].split()[:3] == ["LAUNCH", "STATE", "AGE"]
    assert len(table) == 2
    assert table[1].startswith(documents.LAUNCH_ID)
    everything = cli("ps", "--all").stdout.decode()
    assert "exited 3" in everything
    failure = {"step": "workspace", "reason": "r" * 120, "message": "m", "remedy": ""}
    listed(cli, documents.launch("failed", failure=failure, branch="b" * 120))
    whole = cli("ps", "--all").stdout.decode().splitlines()[1]
    assert whole.startswith(f"{documents.LAUNCH_ID}  failed {'r' * 120}  ")
    assert whole.endswith(f"  {'b' * 120}  echo hi")
    listed(cli, HELD, over)
    found = cli("ps", "-o", "json").lines
    assert found == [{"launches": [HELD], "more": False}]


def test_ps_filters_pages_and_stops_at_its_limit(cli: CliRunner) -> None:
    def page(token: str, *launches: documents.Document) -> Answer:
        return Answer(document={"launches": list(launches), "next_page_token": token})

    failed = documents.launch("failed", project="other", sandbox_id="")
    ended = documents.launch("exited", released_at=documents.WHEN)
    pages = (page("one", *[ended] * 3), page("two", HELD, failed), page("", HELD))
    for arguments, expected, more in (
        ([], [HELD, HELD], False),
        (["--limit", "1"], [HELD], True),
        (["--state", "failed"], [failed], False),
        (["--state", "failed", "--state", "exited"], [ended] * 3 + [failed], False),
        (["--all", "--project", "oth"], [failed], False),
        (["--state", "running"], [], False),
    ):
        cli.script.on("GET", "/v1/launches", *pages)
        found = cli("ps", *arguments, "-o", "json").lines
        assert found == [{"launches": expected, "more": more}], arguments
    for wrong in (["--state", "done"], ["--limit", "0"], ["--limit", "x"]):
        assert cli("ps", *wrong).status == 2


def test_renew_holds_launches_for_longer(cli: CliRunner) -> None:
    cli.script.on("POST", f"{LAUNCH}/renew", Answer(document=HELD))
    for words in (["renew"], ["launch", "renew"]):
        ended = cli(*words, documents.LAUNCH_ID, "--lease", "60")
        assert (ended.status, "is held until" in ended.stderr) == (0, True)
    assert [one.document for one in cli.script.asked("POST", f"{LAUNCH}/renew")] == [
        {"lease": 60.0}
    ] * 2
    assert cli("renew", documents.LAUNCH_ID, "-o", "json").lines == [HELD]
    cli.script.on("POST", f"{LAUNCH}/renew", problem(409, "launch_not_held"))
    assert "It is launch_not_held." in cli("renew", documents.LAUNCH_ID).stderr


def test_ps_with_nothing_says_so(cli: CliRunner) -> None:
    listed(cli)
    ended = cli("ps")
    assert (ended.status, ended.stdout) == (0, b"")
    assert "nothing runs" in ended.stderr


def test_logs_replay_both_streams_after_a_cursor(cli: CliRunner) -> None:
    over = documents.launch("exited", sandbox_id="sbx_1")
    cli.script.on("GET", LAUNCH, Answer(document=over))
    lines = [
        documents.snapshot(),
        documents.output("1", 1, b"out"),
        documents.output("2", 2, b"err", "stderr"),
        documents.exited(code=5),
    ]
    cli.script.on("GET", f"{LAUNCH}/events", Answer(lines=lines))
    ended = cli("logs", documents.LAUNCH_ID, "--cursor", "c0")
    assert (ended.status, ended.stdout, ended.stderr) == (0, b"out", "err")
    assert cli.script.asked("GET", f"{LAUNCH}/events")[0].query == {"cursor": "c0"}


def test_logs_of_a_running_launch_stop_at_what_is_there(cli: CliRunner) -> None:
    cli.script.on("GET", LAUNCH, Answer(document=documents.launch("running")))
    lines = [documents.snapshot(), documents.output("c7", 1, b"out")]
    cli.script.on("GET", f"{LAUNCH}/events", Answer(lines=lines, held=True))
    ended = cli("logs", documents.LAUNCH_ID)
    assert (ended.status, ended.stdout) == (0, b"out")
    assert "-f --cursor c7" in ended.stderr


def test_logs_gone_are_an_error(cli: CliRunner) -> None:
    cli.script.on("GET", f"{LAUNCH}/events", problem(410, "cursor_gone"))
    ended = cli("logs", documents.LAUNCH_ID, "-f", "--cursor", "old")
    assert ended.status == 1
    assert "cursor_gone" in ended.stderr


def test_trace_waits_until_it_is_whole(cli: CliRunner) -> None:
    root = documents.span(1, 0, "rest.POST", "signalling", 0, 3)
    run = documents.span(2, 1, "launch.run", "signalling", 1, 9)
    early, whole = documents.trace(root), documents.trace(root, run)
    cli.script.on("GET", f"{LAUNCH}/trace", Answer(document=early), Answer(document=whole))
    ended = cli("trace", documents.LAUNCH_ID)
    assert ended.status == 0
    assert [line.split()[0] for line in ended.stdout.decode().splitlines()] == [
        "trace",
        "rest.POST",
        "launch.run",
    ]
    assert cli("trace", documents.LAUNCH_ID, "-o", "json").lines == [whole]


def test_kill_cancels_each(cli: CliRunner) -> None:
    ended = documents.launch("cancelled", released_at=documents.WHEN)
    cli.script.on("POST", f"{LAUNCH}/cancel", Answer(document=ended))
    told = cli("kill", documents.LAUNCH_ID, documents.LAUNCH_ID)
    assert told.status == 0
    assert told.stderr.count("is cancelled now; what it held is given back.") == 2
    cli.script.on("GET", LAUNCH, Answer(document=ended))
    assert "is cancelled and holds nothing." in cli("kill", documents.LAUNCH_ID).stderr
    assert cli("kill", documents.LAUNCH_ID, "-o", "json").lines == [{"launches": [ended]}]


def test_kill_all_cancels_what_runs_or_holds_something(cli: CliRunner) -> None:
    over = documents.launch("exited", launch_id="lch_" + "e" * 26, released_at=documents.WHEN)
    cancelled = documents.launch("cancelled", released_at=documents.WHEN)
    cli.script.on("POST", f"{LAUNCH}/cancel", Answer(document=cancelled))
    listed(cli, HELD, over)
    assert cli("kill", "--all", "-o", "json").lines == [{"launches": [cancelled]}]
    listed(cli, over)
    assert "nothing runs" in cli("kill", "--all").stderr
    assert cli("kill").status == 2
    assert cli("kill", "--all", documents.LAUNCH_ID).status == 2


@pytest.mark.parametrize(
    "ports",
    ["0", "x", "1:", ":", "70000", "70000:80", "80:x", "-1:80", "a.test:", "1:2:3", "::1:80"],
)
def test_forward_refuses_what_is_no_port(ports: str, cli: CliRunner) -> None:
    ended = cli("forward", "-o", "json", "--", documents.LAUNCH_ID, ports)
    assert (ended.status, ended.lines[-1]["reason"]) == (2, "port_invalid")
    assert cli.script.received == []


def test_doctor_names_what_is_wrong(cli: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/healthz", "/readyz", "/v1/hosts"):
        cli.script.on("GET", path, Answer(document={}))
    fine = cli("doctor", "-o", "json")
    assert fine.status == 0
    checks = fine.lines[0]["checks"]
    assert isinstance(checks, list)
    assert [check["check"] for check in checks] == [
        "git",
        "mesh",
        "alive",
        "ready",
        "key",
        "forward",
    ]
    cli.script.on("GET", "/v1/hosts", problem(401, "unauthenticated"))
    assert cli("doctor", "-o", "json").status == 77
    cli.script.on("GET", "/readyz", problem(503, "not_ready"))
    assert cli("doctor", "-o", "json").status == 69
    monkeypatch.setenv("PATH", "/nowhere")
    missing = cli("doctor", "-o", "json")
    assert missing.status == 1
    assert "Install git" in str(missing.lines[0])


def test_the_stack_is_named_where_it_is_not_installed(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for verb in ("up", "down"):
        ended = cli(verb)
        assert ended.status == 1
        assert "make up" in ended.stderr


def test_an_unforeseen_fault_is_told_and_is_status_70(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("fairlead_sdk.cli.connection.find_mesh", broken)
    monkeypatch.delenv("FAIRLEAD_DEBUG", raising=False)
    ended = cli("ps", "-o", "json")
    assert (ended.status, ended.lines[-1]["reason"]) == (70, "internal")


def test_an_interrupt_during_up_is_the_stacks_own(cli: CliRunner, tmp_path: Path) -> None:
    package = tmp_path / "instead" / "devstack"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import signal, sys, time\n"
        "try:\n    print(*sys.argv[1:], flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(1); print('tidied'); sys.exit(7)\n"
    )
    cli.environment["PYTHONPATH"] = str(package.parent)
    with cli.started("up") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up --detach\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 7
        assert process.stdout.read() == b"tidied\n"


def test_a_command_uses_the_context_that_it_names_wherever_the_option_stands(
    cli: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = cli.environment["FAIRLEAD_URL"]
    monkeypatch.setenv("FAIRLEAD_CONTEXT", "")  # the command sets it in this process
    assert cli("context", "add", "here", url).status == 0
    listed(cli)
    assert cli("ps", "--context", "here").status == 2, "FAIRLEAD_URL would have come first"
    monkeypatch.delenv("FAIRLEAD_URL")
    for arguments in (("--context", "here", "ps"), ("ps", "--context=here")):
        monkeypatch.setenv("FAIRLEAD_CONTEXT", "")
        ended = cli(*arguments)
        assert (ended.status, "the context" in ended.stderr) == (0, False)
    monkeypatch.setenv("FAIRLEAD_CONTEXT", "")
    ended = cli("ps")
    assert ended.status == 0
    assert f"using {url}, the context here" in ended.stderr
    ended = cli("ps", "--context", "there", "-o", "json")
    assert (ended.status, ended.lines[-1]["reason"]) == (69, "context_unknown")
    monkeypatch.setenv("FAIRLEAD_CONTEXT", "")
    assert cli("ps", "--context").status == 2


def test_contexts_are_listed_chosen_and_forgotten(cli: CliRunner) -> None:
    for name in ("one", "two"):
        assert cli("context", "add", name, f"http://{name}").status == 0
    assert cli("context", "use", "two").status == 0
    ended = cli("context", "ls", "-o", "json")
    (document,) = ended.lines
    contexts = document["contexts"]
    assert isinstance(contexts, list)
    assert [(each["name"], each["chosen"]) for each in contexts] == [("one", False), ("two", True)]
    assert "*  two" in cli("context", "ls").stdout.decode()
    assert cli("context", "rm", "two").status == 0
    assert cli("context", "use", "two", "-o", "json").lines[-1]["reason"] == "context_unknown"
    assert cli("context", "add", "one", "http://one").status == 1
    assert cli("context", "add", "a/b", "http://one").status == 1
