"""Running `fairlead` against a scripted front door, in this process or as one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead_sdk.cli.app import main
from tests.fakes import launch_documents as documents
from tests.fakes.local_repository import LocalRepository
from tests.fakes.scripted_door import Script

LAUNCH = f"/v1/launches/{documents.LAUNCH_ID}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run of the command left."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def lines(self) -> list[dict[str, object]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.stdout.splitlines()]


class CliRunner:
    """Runs the command in a repository, with the environment of somebody who has one mesh."""

    def __init__(
        self, *, script: Script, repository: LocalRepository, environment: dict[str, str]
    ) -> None:
        self.script = script
        self.repository = repository
        self.environment = environment
        self._captured: pytest.CaptureFixture[bytes] | None = None

    def use(self, captured: pytest.CaptureFixture[bytes]) -> None:
        """Capture what runs in this process there."""
        self._captured = captured

    def __call__(self, *arguments: str) -> Ended:
        """Run to the end in this process."""
        assert self._captured is not None
        self._captured.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        out, err = self._captured.readouterr()
        code = left.value.code
        assert code is None or isinstance(code, int)
        return Ended(code or 0, out, err.decode("utf-8", "replace"))

    @contextmanager
    def started(
        self, *arguments: str, stdin: int | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start it as a process of its own, and end that at the end of the block."""
        process = subprocess.Popen(
            [sys.executable, "-m", "fairlead_sdk", *arguments],
            cwd=self.repository.path,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()


def make_cli(
    served: tuple[Script, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    captured: pytest.CaptureFixture[bytes],
) -> CliRunner:
    """Make a repository, an empty script and the environment to run the command in."""
    script, url = served
    script.forget()
    repository = LocalRepository.make(tmp_path / "work")
    repository.write("folder/file", b"content\n")
    repository.commit()
    environment = {
        "FAIRLEAD_URL": url,
        "FAIRLEAD_API_KEY": "k",
        "HOME": "/nonexistent",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "NO_COLOR": "1",
        "COLUMNS": "120",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FAIRLEAD_STATE", raising=False)
    monkeypatch.chdir(repository.path)
    runner = CliRunner(script=script, repository=repository, environment=environment)
    runner.use(captured)
    return runner
