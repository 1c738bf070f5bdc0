"""A stack as tests meet it: started by command in places of its own, asked from outside, searched
for leftovers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.eventually import SECONDS

ROOT = Path(__file__).resolve().parents[2]
DEVSTACK = (sys.executable, "-m", "devstack")
START_SECONDS = SECONDS
_TAG = "FAIRLEAD_TEST_PLACES"


@dataclass(kw_only=True)
class Places:
    """A short private directory in which all of a test's stacks lives, and nothing may stay."""

    root: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.root / "state"

    @property
    def environment(self) -> dict[str, str]:
        """The environment that keeps a stack in these places, without settings of the user."""
        foreign = ("FAIRLEAD_", "OTEL_")
        kept = {name: v for name, v in os.environ.items() if not name.startswith(foreign)}
        return kept | {
            _TAG: str(self.root),
            "FAIRLEAD_STATE": str(self.state),
            "XDG_STATE_HOME": str(self.root / "home"),
            "FAIRLEAD_AGENT": "0",
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "TMPDIR": str(self.root / "tmp"),
            **self.extra,
        }

    def commands(self) -> list[str]:
        """Name the programs that were started from here and run, for the message of a test."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                found.append(f"process {process.pid}: {' '.join(process.cmdline())}")
        return found

    def processes(self) -> list[psutil.Process]:
        """Every live process that was started from here: it carries the tag, or stands in the state
        directory.
        """
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                is_tagged = process.environ().get(_TAG) == str(self.root)
                if is_tagged or process.cwd().startswith(str(self.state)):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def leftovers(self, seconds: float = 60.0) -> list[str]:
        """Name what is still there of stopped stacks after `seconds`: processes, sockets, private
        directories.
        """
        eventually(lambda: not self._leftovers(), seconds)
        return self._leftovers()

    def _leftovers(self) -> list[str]:
        folders = [path for name in ("run", "tmp") for path in (self.root / name).iterdir()]
        sockets = [path for path in self.root.rglob("*") if path.is_socket()]
        description = [path for path in [self.state / "stack.json"] if path.exists()]
        return [*self.commands(), *map(str, [*folders, *sockets, *description])]


@contextmanager
def places() -> Iterator[Places]:
    """Make the places of one test; whatever still runs from them afterwards is killed."""
    # A socket's path is at most 104 bytes long, and pytest's directories nearly are.
    made = Places(root=Path(tempfile.mkdtemp(prefix="fl-e2e-", dir="/tmp")))
    for name in ("run", "tmp", "home"):
        (made.root / name).mkdir(mode=0o700)
    try:
        yield made
    finally:
        for process in made.processes():
            process.kill()
        shutil.rmtree(made.root, ignore_errors=True)


def eventually(condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Wait until `condition` holds, at most `seconds`; return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@dataclass(kw_only=True)
class RunningStack:
    """A stack that was ready when the test got it."""

    places: Places
    supervisor: subprocess.Popen[bytes]

    @property
    def state(self) -> Path:
        """Its state directory."""
        return self.places.state

    def described(self) -> dict[str, object]:
        """Read its stack.json."""
        content = json.loads((self.state / "stack.json").read_text())
        assert isinstance(content, dict)
        return content

    @property
    def url(self) -> str:
        """The front door, REST."""
        return str(self.described()["url"])

    @property
    def grpc(self) -> str:
        """The front door, gRPC, as host:port."""
        return str(self.described()["grpc"])

    @property
    def gateway(self) -> str:
        """The relay-gateway's URL."""
        return str(self.described()["gateway"])

    @property
    def api_key(self) -> str:
        """The key that the first start made."""
        return (self.state / "api-key").read_text().strip()

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of Redis and the rooms, by name."""
        parts = self.described()["parts"]
        assert isinstance(parts, list)
        return {part["name"]: part["pid"] for part in parts}

    @property
    def environment(self) -> dict[str, str]:
        """The environment for clients of this stack."""
        return self.places.environment | {
            "FAIRLEAD_URL": self.url,
            "FAIRLEAD_GRPC": self.grpc,
            "FAIRLEAD_API_KEY": self.api_key,
        }

    def cli(
        self, *arguments: str, cwd: Path | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run `fairlead` against this stack."""
        return subprocess.run(
            [str(Path(sys.executable).with_name("fairlead")), *arguments],
            env=self.environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = SECONDS) -> int:
        """Send the supervisor a signal and return its exit status."""
        self.supervisor.send_signal(number)
        return self.supervisor.wait(seconds)


def start_supervisor(
    where: Places, *, command: tuple[str, ...] = (*DEVSTACK, "up")
) -> subprocess.Popen[bytes]:
    """Start an `up` in the foreground of nothing; its words go to `up.log`."""
    with (where.root / "up.log").open("ab") as log:
        return subprocess.Popen(
            command,
            env=where.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _is_described(where: Places, pid: int) -> bool:
    description = where.state / "stack.json"
    return description.exists() and json.loads(description.read_text())["pid"] == pid


@contextmanager
def running_stack(
    where: Places, *, command: tuple[str, ...] = (*DEVSTACK, "up")
) -> Iterator[RunningStack]:
    """Start a stack, hand it out when it is ready, and stop it."""
    supervisor = start_supervisor(where, command=command)
    stack = RunningStack(places=where, supervisor=supervisor)
    try:
        is_ready = eventually(
            lambda: supervisor.poll() is not None or _is_described(where, supervisor.pid),
            START_SECONDS,
        )
        said = (where.root / "up.log").read_text()
        assert is_ready, said
        assert supervisor.poll() is None, said
        yield stack
    finally:
        if supervisor.poll() is None:
            stack.stop()
