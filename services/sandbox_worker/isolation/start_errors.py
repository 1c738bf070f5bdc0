"""What it means when an init cannot start a program."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.errors import IsolationFailed, WorkspaceNotFound
from sandbox_worker.execution_errors import (
    CommandInvalid,
    CommandNotExecutable,
    CommandNotFound,
    DirectoryNotFound,
    DirectoryOutside,
    ProcessesExhausted,
    TerminalUnavailable,
)
from sandbox_worker.isolation.terminal_device import EXHAUSTED
from sandbox_worker.ports import ProgramOrder


def start_error(order: ProgramOrder, step: bytes, cause: int, tree: Path | None) -> Exception:
    """Return the error for a step that failed with an errno; `tree` is the bound workspace."""
    if step == b"seal":
        return IsolationFailed(f"its walls cannot be raised ({os.strerror(cause)})")
    if step == b"directory":
        if is_given_back(tree):
            return WorkspaceNotFound(tree.name if tree else "")
        if cause == errno.EXDEV:
            return DirectoryOutside(order.directory)
        return DirectoryNotFound(order.directory)
    if step == b"terminal" and cause not in EXHAUSTED:
        return TerminalUnavailable(os.strerror(cause))
    match cause:
        case errno.ENOENT | errno.ENOTDIR | errno.ENAMETOOLONG | errno.ELOOP:
            return CommandNotFound(order.arguments[0])
        case errno.EAGAIN | errno.ENOMEM | errno.EMFILE | errno.ENFILE | errno.ENOSPC:
            return ProcessesExhausted()
        case errno.E2BIG:
            return CommandInvalid("The arguments and the environment are too long for the kernel.")
        case _:
            return CommandNotExecutable(order.arguments[0])


def is_given_back(tree: Path | None) -> bool:
    """Say whether a bound workspace is gone: it was given back by force, or its lease ended."""
    return tree is not None and is_id("wsp", tree.name) and not tree.is_dir()
