"""The supervisor with stub rooms: whatever happens, a stack is whole or nothing of it is left."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairlead_sdk.discovery import list_contexts
from tests.e2e.running_stack import (
    ROOT,
    Places,
    RunningStack,
    eventually,
    places,
    running_stack,
    start_supervisor,
)
from tests.eventually import SECONDS

pytestmark = pytest.mark.slow

STUBS = (sys.executable, "-m", "tests.e2e.stub_stack")
UP = (*STUBS, "up")


@pytest.fixture
def stubs(own_places: Places) -> Iterator[RunningStack]:
    with running_stack(own_places, command=UP) as running:
        yield running


def verb(where: Places, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STUBS, *arguments],
        env=where.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_down_leaves_nothing(stubs: RunningStack) -> None:
    assert len(stubs.pids) == 3
    assert verb(stubs.places, "down").returncode == 0
    assert stubs.supervisor.wait(SECONDS) == 0
    assert stubs.places.leftovers() == []


def test_down_without_a_stack_is_no_error(own_places: Places) -> None:
    answer = verb(own_places, "down")
    assert answer.returncode == 0
    assert "No stack runs" in answer.stderr


def test_status_is_for_programs_too(stubs: RunningStack) -> None:
    answer = verb(stubs.places, "status", "-o", "json")
    status = json.loads(answer.stdout)
    assert (answer.returncode, status["running"], status["ready"]) == (0, True, True)
    assert [part["name"] for part in status["parts"]] == ["redis", "stub-0", "stub-1"]
    stubs.stop()
    answer = verb(stubs.places, "status", "-o", "json")
    assert (answer.returncode, json.loads(answer.stdout)["running"]) == (69, False)


def test_a_killed_supervisor_takes_everything_along_and_the_next_cleans_up(
    stubs: RunningStack,
) -> None:
    stubs.stop(signal.SIGKILL)
    assert eventually(lambda: not stubs.places.processes())
    left = list((stubs.places.root / "run").iterdir())
    assert len(left) == 1
    with running_stack(stubs.places, command=UP) as second:
        assert not left[0].exists()
        assert second.described()["pid"] == second.supervisor.pid
    assert stubs.places.leftovers() == []


def test_a_second_up_says_where_the_first_one_is(stubs: RunningStack) -> None:
    second = verb(stubs.places, "up")
    assert second.returncode == 0
    assert f"already running from {stubs.state} at {stubs.url}" in second.stderr
    assert stubs.supervisor.poll() is None


def test_up_and_down_answer_in_json_and_keep_a_context(own_places: Places) -> None:
    started = json.loads(verb(own_places, "up", "--detach", "-o", "json").stdout)
    again = json.loads(verb(own_places, "up", "--detach", "-o", "json").stdout)
    assert started == again
    assert (started["running"], started["state"]) == (True, str(own_places.state))
    (context,) = list_contexts(environment=own_places.environment)
    assert (context.state, context.url) == (str(own_places.state), started["url"])
    stopped = json.loads(verb(own_places, "down", "-o", "json").stdout)
    assert stopped == {"state": str(own_places.state), "running": False}
    (context,) = list_contexts(environment=own_places.environment)
    assert not context.is_live


def test_detached_returns_when_ready_and_down_stops_it(own_places: Places) -> None:
    answer = verb(own_places, "up", "--detach")
    assert answer.returncode == 0, answer.stderr
    assert "The stack runs at http://127.0.0.1:" in answer.stderr
    assert verb(own_places, "down").returncode == 0
    assert own_places.leftovers() == []


def test_two_stacks_that_start_at_once_take_different_ports() -> None:
    with ExitStack() as opened:
        where = [opened.enter_context(places()) for _ in range(3)]
        supervisors = [start_supervisor(place, command=UP) for place in where]
        ready = eventually(lambda: all((p.state / "stack.json").exists() for p in where))
        described = [json.loads((place.state / "stack.json").read_text()) for place in where]
        for supervisor in supervisors:
            supervisor.terminate()
        statuses = [supervisor.wait(SECONDS) for supervisor in supervisors]
        assert ready
        assert len({entry["url"] for entry in described}) == 3
        assert statuses == [0, 0, 0]


def test_a_taken_port_is_passed_over(own_places: Places) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 7320))
            other.listen()
        except OSError:
            pass  # Somebody else has it: taken all the same.
        with running_stack(own_places, command=UP) as running:
            port = int(running.url.rpartition(":")[2])
            assert port != 7320
            assert running.url in (own_places.root / "up.log").read_text()


@pytest.mark.parametrize("name", ["redis", "stub-1"])
def test_a_killed_part_comes_back(stubs: RunningStack, name: str) -> None:
    before = stubs.pids
    os.kill(before[name], signal.SIGKILL)
    assert eventually(lambda: stubs.pids[name] != before[name])
    assert {**stubs.pids, name: 0} == {**before, name: 0}
    assert (
        f"{name} was ended by SIGKILL; starting it again"
        in (stubs.places.root / "up.log").read_text()
    )


def test_a_room_that_cannot_start_is_named_with_its_last_words(own_places: Places) -> None:
    own_places.extra = {"STUB_ROOMS": "good failing good"}
    answer = verb(own_places, "up")
    assert answer.returncode == 69
    assert "stub-1 exited with status 3 while it started" in answer.stderr
    assert "the stub has no wish to start" in answer.stderr
    assert own_places.leftovers() == []


def test_detached_tells_of_a_failed_start_too(own_places: Places) -> None:
    own_places.extra = {"STUB_ROOMS": "failing"}
    answer = verb(own_places, "up", "--detach")
    assert answer.returncode == 69
    assert "the stub has no wish to start" in answer.stderr
    assert own_places.leftovers() == []


def test_a_redis_that_is_not_there_is_named(own_places: Places) -> None:
    own_places.extra = {"FAIRLEAD_REDIS_URL": "redis://127.0.0.1:1/0"}
    answer = verb(own_places, "up")
    assert answer.returncode == 69
    assert "Nothing answers at 127.0.0.1:1, which FAIRLEAD_REDIS_URL names" in answer.stderr
    assert own_places.leftovers() == []


def test_a_deaf_room_is_killed_and_a_second_signal_does_not_wait(own_places: Places) -> None:
    own_places.extra = {"STUB_ROOMS": "deaf good"}
    with running_stack(own_places, command=UP) as running:
        started = time.monotonic()
        running.supervisor.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert running.stop(signal.SIGINT) == 0
        assert time.monotonic() - started < 4
    assert own_places.leftovers() == []


def test_what_a_room_left_running_is_ended_with_the_stack(own_places: Places) -> None:
    own_places.extra = {"STUB_ROOMS": "parent good"}
    with running_stack(own_places, command=UP) as running:
        assert any(process.name() == "sleep" for process in own_places.processes())
        os.kill(running.pids["stub-0"], signal.SIGKILL)
        running.stop()
    assert own_places.leftovers() == []


@pytest.mark.parametrize("attempt", range(8))
def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing(own_places: Places, attempt: int) -> None:
    moment = random.Random(attempt).uniform(0.05, 1.2)  # noqa: S311 - reproducible
    supervisor = start_supervisor(own_places, command=UP)
    time.sleep(moment)
    supervisor.send_signal(signal.SIGINT)
    if attempt % 2:
        time.sleep(0.02)
        supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(SECONDS) in {0, 130, -signal.SIGINT}
    assert own_places.leftovers() == []


def test_a_client_of_the_state_directory_does_not_need_the_default_one(
    own_places: Places, tmp_path: Path
) -> None:
    own_places.extra = {"FAIRLEAD_STATE": str(tmp_path / "elsewhere")}
    supervisor = start_supervisor(own_places, command=UP)
    try:
        assert eventually((tmp_path / "elsewhere" / "stack.json").exists)
        assert not own_places.state.exists()
    finally:
        supervisor.terminate()
        assert supervisor.wait(SECONDS) == 0
