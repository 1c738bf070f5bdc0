"""Running git on this machine, so that it reads and never writes what the user has.

No optional locks (the index is not refreshed on disk), no hooks, no monitor, no pager, messages in
English.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from fairlead_sdk.errors import RepositoryError

# Set inside hooks (`git rev-parse --local-env-vars`); they would point git elsewhere.
_LOCAL_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_CONFIG_COUNT",
        "GIT_CONFIG_PARAMETERS",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_NAMESPACE",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_QUARANTINE_PATH",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)
PACK = ("pack-objects", "--revs", "--thin", "--stdout", "--delta-base-offset", "-q")
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "advice.all=false")


class GitFailed(Exception):
    """Git ended with a status other than 0; `message` is what it wrote on standard error."""

    def __init__(self, *, arguments: Sequence[str], status: int, message: str) -> None:
        super().__init__(f"git {' '.join(arguments)} ended with status {status}: {message.strip()}")
        self.status = status
        self.message = message


def git_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give the environment that every git process gets, with `extra` on top."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _LOCAL_VARIABLES
        and not name.startswith(("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_"))
    }
    environment |= {
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_PAGER": "cat",
        "LC_ALL": "C",
        "LANGUAGE": "",
    }
    return environment | dict(extra or {})


def start_git(
    *arguments: str | bytes,
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bool = False,
) -> subprocess.Popen[bytes]:
    """Start git with piped output; `git_missing` when there is no git on the path."""
    where = [] if directory is None else ["-C", os.fspath(directory)]
    try:
        return subprocess.Popen(  # noqa: S603 - git with arguments that we name
            ["git", *where, *_QUIET, *arguments],  # noqa: S607 - the user's own git
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=git_environment(environment),
        )
    except FileNotFoundError:
        raise RepositoryError(
            "There is no git on this machine's path.",
            reason="git_missing",
            remedy="Install git 2.31 or newer.",
        ) from None


@dataclass(frozen=True, slots=True)
class GitAnswer:
    """What a git process left: its status and both outputs."""

    status: int
    stdout: bytes
    stderr: str


def finish_git(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> GitAnswer:
    """Wait for a git process and give what it left, whatever its status."""
    stdout, stderr = process.communicate(stdin)
    return GitAnswer(process.returncode, stdout, stderr.decode("utf-8", "replace"))


def run_git(
    *arguments: str,
    directory: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> bytes:
    """Run git and give its output; `GitFailed` on a status other than 0."""
    process = start_git(
        *arguments, directory=directory, environment=environment, stdin=stdin is not None
    )
    answer = finish_git(process, stdin)
    if answer.status != 0:
        raise GitFailed(arguments=arguments, status=answer.status, message=answer.stderr)
    return answer.stdout


def ask_for_pack(process: subprocess.Popen[bytes], revisions: bytes) -> IO[bytes]:
    """Tell a `PACK` process which revisions to pack, and give the stream that it writes the pack
    to.
    """
    if process.stdin is None or process.stdout is None:
        raise ValueError("start the process with stdin=True")
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(revisions)
        process.stdin.close()
    process.stdin = None
    return process.stdout
