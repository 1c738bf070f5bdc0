"""Launching by the agent: the same launch, and it survives whatever becomes of the agent."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead_sdk import agent as agent_module
from fairlead_sdk import agent_client
from fairlead_sdk.agent import Agent, sole_owner
from fairlead_sdk.agent_client import dial
from fairlead_sdk.agent_place import agent_socket_path, agent_token
from tests.contract.wire.agent_shell import CANCEL, EVENTS, Shell, launches, make_shell, with_agent
from tests.eventually import SECONDS
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Answer, Script, serve


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Script, str]]:
    script = Script()
    with serve(script) as url:
        yield script, url


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    made = Path(tempfile.mkdtemp(prefix="fl"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def shell(served: tuple[Script, str], tmp_path: Path, short_directory: Path) -> Iterator[Shell]:
    script, url = served
    made = make_shell(script, url, tmp_path / "work", short_directory)
    yield made
    made.end_agent()


def test_the_first_launch_starts_it_and_the_next_goes_through_it(shell: Shell) -> None:
    lines = (
        documents.step("1", "workspace"),
        documents.output("2", 1, b"\x00\xffout"),
        documents.output("3", 2, b"err\xfe", "stderr"),
        documents.exited("4", code=3),
    )
    launches(shell, *lines)
    alone = shell.run("launch", "folder", "--branch", "try", "--", "prog", "-x", "--", "y")
    shell.until_ready()
    assert shell.status()["launches"] == 0
    by_agent = shell.run("launch", "folder", "--branch", "try", "--", "prog", "-x", "--", "y")
    assert by_agent == alone
    assert alone[0] == 3
    assert alone[1] == b"\x00\xffout"
    assert shell.status()["launches"] == 1
    first, second = shell.posts()
    assert first.document == second.document
    assert first.headers["authorization"] == second.headers["authorization"]
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]


def test_it_sees_what_changed_since_the_last_launch(shell: Shell) -> None:
    with_agent(shell)
    launches(shell, documents.exited())
    for number in range(3):
        shell.repository.write("new", b"%d" % number)
        assert shell.run("launch", "--", "prog")[0] == 0
    trees = set()
    for post in shell.posts():
        source = post.document["source"]
        assert isinstance(source, dict)
        trees.add(source["changes"]["tree"])
    assert len(trees) == 3


def test_only_its_user_reaches_it(shell: Shell, short_directory: Path) -> None:
    with_agent(shell)
    (path,) = (short_directory / "fairlead").glob("agent-*[!k]")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_agent_of_somebody_else_is_not_used(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_agent(shell)
    plug = dial(shell.environment, "status")
    assert plug is not None
    plug.close()
    monkeypatch.setattr(agent_client, "peer_user", lambda plug: os.geteuid() + 1)
    assert dial(shell.environment, "status") is None


def test_killed_in_the_middle_the_launch_goes_on_from_there(shell: Shell) -> None:
    pid = with_agent(shell)
    launches(shell, documents.output("1", 1, b"first\n"), held=True)
    rest = [documents.snapshot("1"), documents.output("2", 2, b"second\n"), documents.exited("3")]
    shell.script.on("GET", EVENTS, Answer(lines=rest))
    process = shell.start("launch", "--", "prog")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"second\n")
    assert len(shell.posts()) == 1
    assert shell.script.asked("GET", EVENTS)[0].query == {"cursor": "1"}
    assert shell.script.asked("POST", CANCEL) == []


def test_killed_before_the_first_answer_the_same_launch_is_asked_for_again(shell: Shell) -> None:
    pid = with_agent(shell)
    done = [documents.snapshot(), documents.output("1", 1, b"once\n"), documents.exited("2")]
    shell.script.on("POST", "/v1/launches", Answer(held=True), Answer(lines=done))
    shell.repository.write("new", b"1")
    process = shell.start("launch", "--", "prog")
    while not shell.posts():
        assert process.poll() is None
    shell.repository.write("new", b"changed in the meantime")
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"once\n")
    first, second = shell.posts()
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body


def test_a_dead_agent_is_replaced(shell: Shell) -> None:
    pid = with_agent(shell)
    os.kill(pid, signal.SIGKILL)
    launches(shell, documents.exited())
    assert shell.run("launch", "--", "prog")[0] == 0
    assert shell.until_ready() != pid


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_launch(number: int, shell: Shell) -> None:
    with_agent(shell)
    launches(shell, documents.output("1", 1, b"ready\n"), held=True)
    process = shell.start("launch", "--", "prog")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    while len(shell.script.asked("POST", CANCEL)) < 1:
        assert shell.status()["running"]
    assert len(shell.script.asked("POST", CANCEL)) == 1


def test_a_reader_that_leaves_cancels_the_launch(shell: Shell) -> None:
    with_agent(shell)
    records = [documents.output(str(n), n, b"y\n" * 1000) for n in range(1, 200)]
    launches(shell, *records, held=True)
    process = shell.start("launch", "--", "yes")
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 2)
    process.stdout.close()
    assert process.wait(SECONDS) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    while not shell.script.asked("POST", CANCEL):
        assert shell.status()["running"]


def test_errors_are_told_as_without_it(shell: Shell) -> None:
    with_agent(shell)
    alone = {**shell.environment, "FAIRLEAD_AGENT": "0"}
    for arguments in (
        ["launch", "nowhere", "-o", "json", "--", "prog"],
        ["launch", "--nonsense"],
        ["launch", "--timeout", "0", "--", "prog"],
        ["launch", "--help"],
        ["launch", "--"],
    ):
        by_agent = shell.run(*arguments)
        other = Shell(shell.script, shell.repository, alone).run(*arguments)
        assert by_agent[0] == other[0]
        assert by_agent[1].replace(str(shell.repository.path).encode() + b"/", b"") == other[1]
        assert by_agent[2] == other[2]


def test_it_is_shown_and_stopped(shell: Shell) -> None:
    assert shell.run("agent") == (1, b"There is no agent; the next launch starts one.\n", "")
    pid = with_agent(shell)
    launches(shell, documents.exited())
    shell.run("launch", "--", "prog")
    status, out, _ = shell.run("agent")
    assert status == 0
    url = shell.environment["FAIRLEAD_URL"]
    assert out.decode() == f"The agent runs (pid {pid}); 1 launches; {url}.\n"
    assert shell.run("agent", "--stop") == (0, b"The agent was stopped.\n", "")
    assert shell.run("agent", "--stop") == (0, b"There is no agent.\n", "")


def test_it_can_be_done_without(shell: Shell, short_directory: Path) -> None:
    shell.environment["FAIRLEAD_AGENT"] = "0"
    launches(shell, documents.exited())
    assert shell.run("launch", "--", "prog")[0] == 0
    assert list(short_directory.iterdir()) == []
    assert b"FAIRLEAD_AGENT=0" in shell.run("agent")[1]


def test_another_environment_has_another_agent(tmp_path: Path) -> None:
    (tmp_path / "git").touch(0o755)
    one = {"XDG_RUNTIME_DIR": "/run", "HOME": "/a", "PATH": "/usr/bin:/bin"}
    for more in ({"LINES": "4"}, {"PATH": "/nowhere:/usr/bin:/bin"}):
        assert agent_socket_path(one) == agent_socket_path({**one, **more})
    other_git = {"PATH": f"{tmp_path}:/usr/bin"}
    for more in (other_git, {"GIT_AUTHOR_NAME": "x"}, {"FAIRLEAD_API_KEY": "k"}):
        assert agent_socket_path({**one, **more}) != agent_socket_path(one)
    assert agent_socket_path({"XDG_RUNTIME_DIR": "/" + "x" * 100}) is None
    assert agent_socket_path({}) is None


def test_it_ends_when_nobody_comes(short_directory: Path) -> None:
    path = str(short_directory / "agent")
    asyncio.run(asyncio.wait_for(Agent(environment={}, idle_seconds=0.01).run(path), 30))
    assert not os.path.exists(path)


@pytest.mark.parametrize("reason", ["another version", "a changed program"])
def test_one_of_another_version_gives_way(
    reason: str, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(short_directory / "agent")
    agent = Agent(environment={})
    token = agent_token({})
    if reason == "another version":
        token = "other"
    else:
        monkeypatch.setattr(agent_module, "_times", lambda paths: {})

    async def met() -> bytes:
        running = asyncio.ensure_future(agent.run(path))
        await agent.listening.wait()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"fairlead-agent {token} status\n".encode())
        answer = await reader.read()
        writer.close()
        await running
        return answer

    assert asyncio.run(asyncio.wait_for(met(), 30)) == b"stale\n"
    assert not os.path.exists(path)


def test_of_two_that_start_at_once_one_gives_way(short_directory: Path) -> None:
    path = str(short_directory / "deeper" / "agent")
    with sole_owner(path) as first, sole_owner(path) as second:
        assert (first, second) == (True, False)
    assert os.listdir(os.path.dirname(path)) == [], "the lock goes with its owner"
    with sole_owner(path) as later:
        assert later


def test_a_lock_whose_file_went_while_one_came_is_none(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(short_directory / "agent")
    lock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        os.unlink(f"{path}.lock")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with sole_owner(path) as is_sole:
        assert not is_sole


def test_what_a_killed_agent_left_goes_with_the_next_one(shell: Shell) -> None:
    path = agent_socket_path(shell.environment)
    assert path is not None
    directory = Path(path).parent
    directory.mkdir(exist_ok=True)
    left = directory / "agent-0123"
    for name in (left, left.with_name(f"{left.name}.lock")):
        name.touch()
    shell.script.on("POST", "/v1/launches", Answer(lines=[documents.exited()]))
    shell.run("launch", "--", "prog")
    shell.until_ready()
    assert not list(directory.glob("agent-0123*"))
