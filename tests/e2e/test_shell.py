"""`fairlead shell` on a whole stack: it feels like ssh, and the terminal here outlives it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fairlead_sdk import Fairlead, TerminalOwned
from tests.e2e.running_stack import RunningStack
from tests.e2e.seated import Network, Seated, seated
from tests.fakes.git_client import GitClient

pytestmark = pytest.mark.slow


@pytest.fixture
def held(stack: RunningStack, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A launch that holds a sandbox, and the repository that it was made from."""
    laptop = GitClient(tmp_path / "laptop")
    laptop.write("file", b"one\n")
    laptop.commit()
    launched = stack.cli("launch", str(laptop.path))
    assert launched.returncode == 0, launched.stderr
    launch_id = launched.stdout.strip()
    yield launch_id, laptop.path
    stack.cli("kill", launch_id)


@pytest.fixture
def shell(stack: RunningStack, held: tuple[str, Path]) -> Iterator[Seated]:
    """A shell in the newest launch of the directory that it is opened in."""
    _, directory = held
    with seated("shell", environment=stack.environment, cwd=str(directory)) as person:
        person.until(r"[$#] ")
        assert person.is_raw
        yield person


def test_it_feels_like_ssh(shell: Seated) -> None:
    shell.type('echo "size:$(stty size)" "$TERM" "$(cat file)"\r')
    shell.until("size:33 101 xterm one")
    shell.resize(40, 120)
    shell.type("\r")
    shell.until(r"[$#] ")
    shell.type('until [ "$(stty size)" = "40 120" ]; do sleep 0.05; done; echo "re"sized\r')
    shell.until("resized")
    # Said by the program itself: a key before the shell has put it in front is not for it.
    shell.type("sh -c 'echo slee\"\"ping; exec sleep 100'\r")
    shell.until("sleeping")
    shell.type("\x03")
    shell.until(r"\^C")
    shell.type('echo "status:$?"\r')
    shell.until("status:130")
    shell.type("exit 7\r")
    assert shell.ended() == 7
    assert shell.is_restored


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_terminal_is_restored_when_it_is_killed(shell: Seated, number: signal.Signals) -> None:
    shell.process.send_signal(number)
    assert shell.ended() == 128 + number
    assert shell.is_restored


def test_it_is_left_and_come_back_to(shell: Seated, stack: RunningStack, tmp_path: Path) -> None:
    shell.type("kept=value\r")
    shell.until(r"[$#] ")
    shell.type("\r~.")
    execution_id = shell.until(r"fairlead shell (exe_\w+)").group(1).decode()
    assert shell.ended() == 0
    assert shell.is_restored
    environment = stack.environment
    with seated("shell", execution_id, environment=environment, cwd=str(tmp_path)) as again:
        again.type('echo "still:$kept"\r')
        again.until("still:value")
        with seated("shell", execution_id, environment=environment, cwd=str(tmp_path)) as refused:
            refused.until("Another client has the terminal")
            assert refused.ended() == 1
            assert refused.is_restored
        with seated(
            "shell", "--take-over", execution_id, environment=environment, cwd=str(tmp_path)
        ) as taker:
            again.until("Another client has taken the terminal")
            assert again.ended() == 1
            assert again.is_restored
            taker.type("exit 3\r")
            assert taker.ended() == 3


def test_a_cut_connection_is_taken_up_where_it_was(
    stack: RunningStack, held: tuple[str, Path]
) -> None:
    launch_id, directory = held
    url = urlsplit(stack.url)
    assert url.port is not None
    network = Network(port=url.port)
    environment = {
        **stack.environment,
        "FAIRLEAD_URL": f"http://127.0.0.1:{network.port}",
        "FAIRLEAD_API_KEY": stack.api_key,
    }
    try:
        with seated("shell", launch_id, environment=environment, cwd=str(directory)) as person:
            person.until(r"[$#] ")
            person.type("PS1=; stty -echo; echo 'rea'dy\r")
            person.until("ready")
            person.type(
                "for i in $(seq 1 3000); do echo line-$i-; sleep 0.0005; done; echo al''l\r"
            )
            person.until("line-500-")
            network.cut()
            person.until("the connection is lost")
            person.type("echo ty''ped\r")
            network.mend()
            person.until("connected again")
            person.until("all\r\n")
            person.type("exit 0\r")
            assert person.ended() == 0
            assert person.is_restored
            numbers = re.findall(rb"line-(\d+)-", person.heard())
            assert numbers == [b"%d" % number for number in range(1, 3001)]
            assert person.heard().count(b"typed\r\n") == 1
    finally:
        network.close()


def test_nothing_is_lost_or_doubled_over_cuts(stack: RunningStack, held: tuple[str, Path]) -> None:
    launch_id, directory = held
    url = urlsplit(stack.url)
    assert url.port is not None
    network = Network(port=url.port)
    environment = {
        **stack.environment,
        "FAIRLEAD_URL": f"http://127.0.0.1:{network.port}",
        "FAIRLEAD_API_KEY": stack.api_key,
    }
    script = 'stty -echo; while read x; do echo "<$x>"; [ $x = 9 ] && exit 5; done'
    try:
        with seated(
            "shell",
            launch_id,
            "--",
            "sh",
            "-c",
            script,
            environment=environment,
            cwd=str(directory),
        ) as person:
            for number in range(10):
                person.type(f"{number}\r")
                if number % 3 == 1:
                    network.cut()
                    person.until("the connection is lost")
                    network.mend()
                # It may have come before the cut.
                person.until_heard(b"<%d>" % number)
            assert person.ended() == 5
            assert person.is_restored
            assert re.findall(rb"<(\d)>", person.heard()) == [b"%d" % each for each in range(10)]
    finally:
        network.close()


def test_it_needs_a_terminal_to_sit_at(stack: RunningStack, held: tuple[str, Path]) -> None:
    launch_id, _ = held
    ended = stack.cli("shell", launch_id)
    assert ended.returncode == 2
    assert "standard input is no terminal" in ended.stderr


def test_without_a_launch_it_says_how_to_make_one(stack: RunningStack, tmp_path: Path) -> None:
    laptop = GitClient(tmp_path / "elsewhere")
    laptop.write("other", os.urandom(20))
    laptop.commit()
    with seated("shell", environment=stack.environment, cwd=str(laptop.path)) as person:
        person.until("fairlead launch")
        assert person.ended() == 1
        assert person.is_restored


def test_the_sdk_has_terminals_in_a_launch_and_in_a_sandbox(
    stack: RunningStack, held: tuple[str, Path]
) -> None:
    _, directory = held
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        with fairlead.launch(directory) as launch:
            with launch.pty.create("stty size; cat file; exit 7", rows=40, columns=120) as terminal:
                assert b"".join(terminal.output()) == b"40 120\r\none\r\n"
                assert terminal.wait().exit_code == 7
            with launch.pty.create() as terminal:
                terminal.send(b"echo 'rea'dy\n")
                shown = b""
                for piece in terminal.output():
                    shown += piece
                    if b"ready\r\n" in shown:
                        break
                with pytest.raises(TerminalOwned):
                    launch.pty.attach(terminal.execution_id)
                with launch.pty.attach(terminal.execution_id, take_over=True) as taker:
                    with pytest.raises(TerminalOwned):
                        terminal.wait()
                    taker.resize(50, 150)
                    taker.kill()
                    assert taker.wait().signal == signal.SIGKILL
        with fairlead.sandboxes.create() as sandbox, sandbox.pty.create("exit 3") as terminal:
            assert terminal.wait().exit_code == 3
