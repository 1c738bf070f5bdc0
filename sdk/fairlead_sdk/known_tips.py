"""What the client knows to be at the hosts of a front door, for one project: the commits that were
launched or uploaded there, newest first.

It only says what is worth sending along; the host decides what it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

_KEPT = 1024
_WITHOUT_HISTORY = "without-history"


class KnownTips:
    """One list, under `<common git directory>/fairlead`; where nothing can be written it is empty.

    `lacks_history` says that only the files of the tips arrived so far; `history_token` is what
    their history may be sent with, for a while.
    """

    def __init__(self, *, common_directory: Path, url: str, project: str) -> None:
        name = hashlib.sha256(f"{url}\0{project}".encode()).hexdigest()[:24]
        self._path = common_directory / "fairlead" / f"door-{name}"
        self.commits: tuple[str, ...] = ()
        self.lacks_history = False
        self.history_token = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            lines = self._path.read_text("ascii").splitlines()
            first, _, token = lines[0].partition(" ") if lines else ("", "", "")
            self.lacks_history = first == _WITHOUT_HISTORY
            self.history_token = token if self.lacks_history else ""
            self.commits = tuple(lines[1:] if self.lacks_history else lines)

    def learn(self, commits: Iterable[str]) -> None:
        """Note that these are there, too."""
        self._write((*commits, *self.commits), self.lacks_history, self.history_token)

    def learn_files(self, commit: str, *, token: str) -> None:
        """Note that this is there without its history, which may be sent with `token`."""
        self._write((commit, *self.commits), True, token)

    def learn_history(self, commits: Iterable[str]) -> None:
        """Note that all that these reach is there."""
        self._write((*commits, *self.commits), False, "")

    def forget_token(self) -> None:
        """Note that the token is not good any more; the next upload brings the history."""
        self._write(self.commits, self.lacks_history, "")

    def replace(self, commits: Sequence[str]) -> None:
        """Note that these are what a host has."""
        self._write(commits, self.lacks_history and bool(commits), self.history_token)

    def _write(self, commits: Sequence[str], lacks_history: bool, token: str) -> None:
        found = tuple(dict.fromkeys(commits))[:_KEPT]
        before = (self.commits, self.lacks_history, self.history_token)
        self.commits, self.lacks_history = found, lacks_history
        self.history_token = token if lacks_history else ""
        if before == (self.commits, self.lacks_history, self.history_token):
            return
        lines = [f"{_WITHOUT_HISTORY} {token}", *found] if lacks_history else list(found)
        part = self._path.with_name(f"part-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            part.parent.mkdir(exist_ok=True)
            part.touch(0o600, exist_ok=False)
            part.write_text("".join(f"{line}\n" for line in lines), "ascii")
            part.replace(self._path)
