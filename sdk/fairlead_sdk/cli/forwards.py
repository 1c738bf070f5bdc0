"""The local ports that this user's processes forward, each known to all of them.

Each port has one file, which nobody else can read and whose lock (flock(2)) its process holds for
as long as it listens: however it ends, the others see that, and a process id that is used again
misleads nobody. The first line of the file says what is forwarded, the second one, which is written
over, what goes through. Who wants one port to end removes its file: its process notices.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import FailedPrecondition, FairleadError, InvalidArgument, NotFound
from fairlead_sdk.json_form import JsonObject

_SAME = {"localhost": "127.0.0.1"}
_FLOW_BYTES = 256
_COUNTED = ("connections", "sent", "received", "send_rate", "receive_rate")


class LocalPortTaken(FailedPrecondition):
    """Another process of this user forwards that local port."""

    def __init__(self, owner: Forward) -> None:
        super().__init__(
            f"{owner.address} leads to {owner.there} already, by process {owner.pid}.",
            reason="local_port_taken",
            remedy=f"Choose another local port, or end it: fairlead forward --stop {owner.name}",
            fields={"port": str(owner.port), "pid": str(owner.pid)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A local port, or a socket at `path`, and where it leads; `target` is the id of a launch or a
    sandbox, `remote_host` a host that its gateway dials, or empty. Clients of a proxy (`is_socks`)
    say where they want to, and `remote_port` is 0.
    """

    pid: int
    host: str
    port: int
    remote_host: str
    remote_port: int
    target: str
    session_id: str
    started_at: datetime
    path: str = ""
    is_socks: bool = False

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.path or f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """What `--stop` takes."""
        return self.path or str(self.port)

    @property
    def there(self) -> str:
        """Where it leads, for a person."""
        if self.is_socks:
            return f"what its clients name, by the gateway of {self.target}"
        if self.remote_host:
            return f"{self.remote_host}:{self.remote_port} by the gateway of {self.target}"
        return f"port {self.remote_port} of {self.target}"

    @property
    def document(self) -> JsonObject:
        """The JSON form."""
        return {
            "pid": self.pid,
            "host": self.host,
            "port": self.port,
            **({"remote_host": self.remote_host} if self.remote_host else {}),
            "remote_port": self.remote_port,
            "target": self.target,
            "session_id": self.session_id,
            "started_at": self.started_at.isoformat(),
            **({"path": self.path} if self.path else {}),
            **({"socks": True} if self.is_socks else {}),
        }

    def is_same(self, other: Forward) -> bool:
        """Say whether it is the same local port or socket of the same process."""
        mine = (self.pid, self.host, self.port, self.path)
        return mine == (other.pid, other.host, other.port, other.path)

    def is_meant(self, text: str) -> bool:
        """Say whether a text names it: a local port, `HOST:PORT`, its path, or the beginning of an
        id of its session or of what it leads to. `localhost` is 127.0.0.1.
        """
        if self.path and text == self.path:
            return True
        host, colon, port = text.rpartition(":")
        if port.isdecimal():
            is_host = not colon or _SAME.get(host, host) == _SAME.get(self.host, self.host)
            return is_host and int(port) == self.port and not self.path
        return bool(text) and any(
            name.startswith(text) or name.partition("_")[2].startswith(text)
            for name in (self.session_id, self.target)
        )


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes through the tunnel of a process, with all of its ports: bytes, and bytes a second;
    `carrier` is empty where none is known.
    """

    carrier: str = ""
    connections: int = 0
    sent: int = 0
    received: int = 0
    send_rate: int = 0
    receive_rate: int = 0


class Entry:
    """A forward that others know of; make it with `Forwards.enter`."""

    def __init__(self, path: Path, descriptor: int, offset: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._offset = offset

    @property
    def is_wanted(self) -> bool:
        """Say whether nobody has asked it to end."""
        return os.fstat(self._descriptor).st_nlink > 0

    def note(self, flow: Flow) -> None:
        """Let the others know what goes through."""
        line = json.dumps(asdict(flow)).encode().ljust(_FLOW_BYTES)
        os.pwrite(self._descriptor, line, self._offset)

    def close(self) -> None:
        """Take it back; others see that it has ended."""
        if self.is_wanted:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class Withdrawal:
    """A forward whose process was asked to end it; its files are closed with the block."""

    def __init__(self, files: Sequence[BinaryIO]) -> None:
        self._files = files

    def __enter__(self) -> Withdrawal:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    @property
    def is_done(self) -> bool:
        """Say whether it has ended."""
        for file in self._files:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True


class Forwards:
    """The files below `directory`."""

    def __init__(self, *, directory: Path) -> None:
        self._directory = directory

    def all(self) -> Sequence[Forward]:
        """Return what is forwarded now, by local port; files of processes that are gone go."""
        return [each for each, _ in self.flowing()]

    def flowing(self) -> Sequence[tuple[Forward, Flow]]:
        """Return the same, with what goes through."""
        found = [(forward, flow) for _, forward, flow in self._files()]
        return sorted(found, key=lambda each: (each[0].port, each[0].host))

    def is_there(self, forward: Forward) -> bool:
        """Say whether it is forwarded still, maybe through another session."""
        return any(each.is_same(forward) for each in self.all())

    def withdraw(self, forward: Forward) -> Withdrawal:
        """Ask the process of a forward to end that one, and no other."""
        files = []
        for path, each, _ in self._files():
            if each.is_same(forward):
                with contextlib.suppress(FileNotFoundError):
                    files.append(path.open("rb"))
                    path.unlink()
        return Withdrawal(files)

    def _files(self) -> Iterator[tuple[Path, Forward, Flow]]:
        for path in self._directory.glob("*.json"):
            # One that is being made has no lock yet, and another name.
            if path.name.startswith("."):
                continue
            with contextlib.suppress(OSError, ValueError):
                content = _held(path)
                if content is not None:
                    first, _, second = content.partition(b"\n")
                    yield path, _read(first), _read_flow(second)

    def owner(self, host: str, port: int) -> Forward | None:
        """Return who forwards a local port."""
        return next((each for each in self.all() if each.is_meant(f"{host}:{port}")), None)

    def owner_of(self, path: str) -> Forward | None:
        """Return who forwards a local socket."""
        return next((each for each in self.all() if each.path == path), None)

    def meant(self, text: str, *, every: bool) -> Sequence[Forward]:
        """Return those that a text names, which are several only with `every`.

        Raises NotFound (`forward_not_found`) and InvalidArgument (`forward_ambiguous`).
        """
        found = [forward for forward in self.all() if forward.is_meant(text)]
        if not found:
            raise NotFound(
                f"No process here forwards {text}.",
                reason="forward_not_found",
                remedy="fairlead forward --list",
            )
        if len(found) > 1 and not every:
            raise InvalidArgument(
                f"{text} means {len(found)} forwards.",
                reason="forward_ambiguous",
                remedy="Name a local port (fairlead forward --list), or add --all.",
            )
        return found

    def enter(self, forward: Forward) -> Entry:
        """Let the others know of a forward, until the entry is closed; raises ForwardUnlisted."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory.chmod(0o700)
            path = self._directory / f"{forward.pid}-{secrets.token_hex(4)}.json"
            content = json.dumps(forward.document).encode() + b"\n"
            return Entry(path, _written(path, content), len(content))
        except OSError as error:
            raise ForwardUnlisted(error) from error

    @contextlib.contextmanager
    def entered(self, forward: Forward) -> Iterator[Entry]:
        """Do so to the end of the block."""
        entry = self.enter(forward)
        try:
            yield entry
        finally:
            entry.close()


class ForwardUnlisted(FairleadError):
    """Others cannot be told of a forward."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(
            f"Others cannot be told of this forward: {cause.strerror or cause}.",
            reason="forward_unlisted",
        )


def forwards_of(environment: Mapping[str, str]) -> Forwards:
    """Return the forwards of the user of an environment."""
    home = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '')}/.local/state"
    return Forwards(directory=Path(home) / "fairlead" / "forwards")


def _written(path: Path, content: bytes) -> int:
    """Write a file as a whole, and return the descriptor that holds its lock."""
    scratch = path.with_name(f".{path.name}")
    descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, content)
        scratch.rename(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return descriptor


def _held(path: Path) -> bytes | None:
    """Return the content of a file whose process lives; removes one whose process does not."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
        path.unlink(missing_ok=True)  # a name is never used again
        return None


def _read_flow(content: bytes) -> Flow:
    """Read what goes through; nothing where it is not known yet, or is being written."""
    try:
        document = form.parse_object(content)
        return Flow(
            carrier=form.text(document, "carrier"),
            **{name: form.number(document, name) for name in _COUNTED},
        )
    except (FairleadError, ValueError):
        return Flow()


def _read(content: bytes) -> Forward:
    document = form.parse_object(content)
    return Forward(
        pid=form.number(document, "pid"),
        host=form.text(document, "host"),
        port=form.number(document, "port"),
        remote_host=form.text(document, "remote_host") if "remote_host" in document else "",
        remote_port=form.number(document, "remote_port"),
        target=form.text(document, "target"),
        session_id=form.text(document, "session_id"),
        started_at=datetime.fromisoformat(form.text(document, "started_at")),
        path=form.text(document, "path") if "path" in document else "",
        is_socks=form.flag(document, "socks"),
    )
