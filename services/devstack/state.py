"""The state directory of a local stack: where it is, who holds it, and what a killed supervisor
left in it.

One supervisor holds the directory's lock for as long as it lives; what it needs to be cleaned up
after a `kill -9` is written into the lock file before it exists.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from devstack.errors import StackError
from fairlead_sdk.discovery import state_home

RUNTIME_PREFIX = "fairlead-run-"
DEMO_PREFIX = "fairlead-demo-"
# sun_path holds 108 bytes on Linux, 104 on macOS; the longest socket name needs about 40.
_LONGEST_RUNTIME_PARENT = 60
_ABANDONED_SECONDS = 60.0


def checkout() -> Path | None:
    """Return the root of the source checkout that this package runs from, or None when it is
    installed.
    """
    root = Path(__file__).resolve().parents[2]
    return root if (root / "Makefile").is_file() and (root / "pyproject.toml").is_file() else None


def default_state() -> Path:
    """Return the directory `up` uses: FAIRLEAD_STATE, else `.fairlead` in the checkout, else the
    state home.
    """
    named = os.environ.get("FAIRLEAD_STATE")
    if named:
        return Path(named).absolute()
    root = checkout()
    return root / ".fairlead" if root else state_home()


def runtime_parent() -> Path:
    """Return the directory for short private directories with sockets in them."""
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    if named and len(named) <= _LONGEST_RUNTIME_PARENT and os.access(named, os.W_OK | os.X_OK):
        return Path(named)
    return Path("/tmp")  # noqa: S108 - the directory made in it is private and has a random name


class StateDirectory:
    """One stack's directory, with its lock, its secret, its description and its private runtime
    directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock_file = path / "supervisor.lock"
        self.description = path / "stack.json"
        self.api_key = path / "api-key"
        self.secret = path / "secret"
        self.logs = path / "logs"
        self.host = path / "host"
        self.runtime: Path | None = None
        self._descriptor = -1

    def acquire(self) -> bool:
        """Become the only supervisor of this directory and clean up after the last one; False when
        there is one.
        """
        self._make()
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locks(descriptor):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._clean_leftovers()
        runtime = runtime_parent() / f"{RUNTIME_PREFIX}{secrets.token_hex(4)}"
        self._record({"pid": os.getpid(), "runtime": str(runtime)})
        runtime.mkdir(mode=0o700)
        self.runtime = runtime
        self.logs.mkdir(mode=0o700, exist_ok=True)
        self.host.mkdir(mode=0o700, exist_ok=True)
        _write_once(self.secret, secrets.token_urlsafe(32))
        return True

    def release(self) -> None:
        """Remove what only a running stack has, and let go of the lock."""
        if self._descriptor < 0:
            return
        self._clean_leftovers()
        self._record({})
        os.close(self._descriptor)
        self._descriptor = -1

    def is_held(self) -> bool:
        """Say whether a live supervisor holds the directory."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def holder(self) -> int | None:
        """Return the process id that the live supervisor wrote down, or None."""
        if not self.is_held():
            return None
        pid = _read_json(self.lock_file).get("pid")
        return pid if isinstance(pid, int) else None

    def describe(self, description: Mapping[str, object]) -> None:
        """Publish `description` as stack.json, all at once; clients take the stack for running from
        then on.
        """
        draft = self.description.with_suffix(".draft")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(description, stream, indent=2)
            stream.write("\n")
        draft.replace(self.description)

    def described(self) -> dict[str, object] | None:
        """Read stack.json of a live stack; None while it starts, and when there is none."""
        return (_read_json(self.description) or None) if self.is_held() else None

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise StackError(
                f"The state directory {self.path} cannot be used: {error.strerror}.",
                remedies=("Name another one: FAIRLEAD_STATE=/some/directory",),
            ) from error

    def _record(self, record: Mapping[str, object]) -> None:
        text = json.dumps(record).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def _clean_leftovers(self) -> None:
        self.description.unlink(missing_ok=True)
        self.description.with_suffix(".draft").unlink(missing_ok=True)
        runtime = _read_json(self.lock_file).get("runtime")
        if isinstance(runtime, str) and Path(runtime).name.startswith(RUNTIME_PREFIX):
            remove_tree(Path(runtime))
        self.runtime = None


def throwaway_state() -> Path:
    """Make a state directory for one demo, after removing those whose supervisor was killed."""
    parent = Path(tempfile.gettempdir())
    for path in parent.glob(f"{DEMO_PREFIX}*"):
        _remove_abandoned(path)
    return Path(tempfile.mkdtemp(prefix=DEMO_PREFIX, dir=parent))


def _remove_abandoned(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    state = StateDirectory(path)
    is_young = time.time() - found.st_mtime < _ABANDONED_SECONDS
    if is_young or state.is_held():
        return
    if state.acquire():
        state.release()
        remove_tree(path)


def remove_tree(path: Path) -> None:
    """Remove a directory of ours with everything in it, also what is read-only; other owners' are
    left alone.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return

    def unlock(failed: Callable[..., object], name: str, _: object) -> None:
        with suppress(OSError):
            Path(name).parent.chmod(0o700)
            if failed is os.unlink:
                Path(name).unlink()
            elif Path(name) != path:  # such as the work directory of an overlay, which has no mode
                remove_tree(Path(name))

    with suppress(OSError):
        path.chmod(0o700)
    shutil.rmtree(path, onerror=unlock)
    if path.exists():
        shutil.rmtree(path, ignore_errors=True)


def _locks(descriptor: int) -> bool:
    for pause in (0.01, 0.05, 0.1, 0.0):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # `is_held` takes the lock for microseconds; a supervisor keeps it.
            time.sleep(pause)
        else:
            return True
    return False


def _write_once(path: Path, text: str) -> None:
    if path.exists() and path.stat().st_size:
        return
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    draft.replace(path)


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
