"""Somebody who launches again and again, so that there is an agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fairlead_sdk.agent import sole_owner
from fairlead_sdk.agent_place import agent_socket_path
from tests.contract.wire.cli_runner import LAUNCH
from tests.fakes import launch_documents as documents
from tests.fakes.local_repository import LocalRepository
from tests.fakes.scripted_door import Answer, Received, Script

EVENTS = f"{LAUNCH}/events"
CANCEL = f"{LAUNCH}/cancel"


class Shell:
    """Somebody who launches in a repository, again and again."""

    def __init__(
        self, script: Script, repository: LocalRepository, environment: Mapping[str, str]
    ) -> None:
        self.script = script
        self.repository = repository
        self.environment = dict(environment)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "fairlead_sdk", *arguments],
            cwd=self.repository.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str) -> tuple[int, bytes, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err.decode("utf-8", "replace")

    def status(self) -> dict[str, object]:
        found = json.loads(self.run("agent", "-o", "json")[1])
        assert isinstance(found, dict)
        return found

    def agent_pid(self) -> int:
        pid = self.status()["pid"]
        assert isinstance(pid, int)
        return pid

    def until_ready(self) -> int:
        """Wait until the agent that the last launch started answers."""
        for _ in range(600):
            if self.status()["running"]:
                return self.agent_pid()
        raise AssertionError("no agent came")

    def end_agent(self) -> None:
        """Stop the agent, also one that the last launch has only just started."""
        path = agent_socket_path(self.environment)
        if path is None:
            return
        self.script.on("POST", "/v1/launches", Answer(lines=[documents.exited()]))
        self.run("launch", "--", "prog")
        self.until_ready()
        is_free = False
        while not is_free:
            self.run("agent", "--stop")
            with sole_owner(path) as is_free:
                pass

    def posts(self) -> list[Received]:
        return self.script.asked("POST", "/v1/launches")


def make_shell(script: Script, url: str, place: Path, runtime: Path) -> Shell:
    """Make a repository at `place` and an environment whose agent listens below `runtime`."""
    script.forget()
    repository = LocalRepository.make(place)
    repository.write("folder/file", b"content\n")
    repository.commit()
    environment = {
        "PATH": os.environ["PATH"],
        "FAIRLEAD_URL": url,
        "FAIRLEAD_API_KEY": "k",
        "HOME": "/nonexistent",
        "XDG_RUNTIME_DIR": str(runtime),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    script.on("GET", "/healthz", Answer(document={}))
    script.on("POST", CANCEL, Answer(document=documents.launch("cancelled")))
    return Shell(script, repository, environment)


def launches(shell: Shell, *lines: documents.Document, held: bool = False) -> None:
    answer = Answer(lines=[documents.snapshot(), *lines], held=held)
    shell.script.on("POST", "/v1/launches", answer)


def with_agent(shell: Shell) -> int:
    """Launch once, so that there is an agent; gives its process id."""
    launches(shell, documents.exited("9"))
    assert shell.run("launch", "--", "prog")[0] == 0
    pid = shell.until_ready()
    shell.script.received.clear()
    return pid
