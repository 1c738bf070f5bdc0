"""The errors of commands and executions."""

from __future__ import annotations

import shlex

from chassis.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from sandbox_worker.errors import short

_SHELL_SYNTAX = frozenset(" |&;<>$*\n")
"""Characters that hardly any program's name has, and many a line for a shell."""


class CommandInvalid(InvalidArgument):
    """No host could run this command."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            sentence, reason="command_invalid", remedy="Correct the command and call again."
        )


class KeyConflict(AlreadyExists):
    """The key belongs to an execution of another command."""

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            "The idempotency key was used for a different command.",
            reason="idempotency_conflict",
            remedy="Use a new key for a new request.",
            fields={"execution_id": execution_id},
        )


class CommandNotFound(NotFound):
    """There is no such program on the sandbox's PATH."""

    def __init__(self, program: str) -> None:
        remedy = "Check the name, or give a path that starts with ./ or /."
        if _SHELL_SYNTAX.intersection(program):
            remedy = f"Use a shell for a line of several words: sh -c {shlex.quote(short(program))}"
        super().__init__(
            f"There is no program {short(program)!r} in the sandbox.",
            reason="command_not_found",
            remedy=remedy,
            fields={"program": short(program)},
        )


class CommandNotExecutable(FailedPrecondition):
    """The program is there, but the kernel does not execute it."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f"The program {short(program)!r} is there but cannot be executed.",
            reason="command_not_executable",
            remedy="Check its execute permission and its first line (#! and the interpreter).",
            fields={"program": short(program)},
        )


class DirectoryOutside(InvalidArgument):
    """The working directory leaves the workspace."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            "The working directory leaves the workspace.",
            reason="directory_outside",
            remedy="Give a path relative to the workspace, without .. and links that lead out.",
            fields={"directory": short(directory)},
        )


class DirectoryNotFound(InvalidArgument):
    """The working directory does not exist in the workspace."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            "The working directory does not exist in the workspace.",
            reason="directory_not_found",
            remedy="Give a directory that the workspace has.",
            fields={"directory": short(directory)},
        )


class SandboxFull(ResourceExhausted):
    """The sandbox runs as many executions as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The sandbox runs {most} executions, which is its limit.",
            reason="sandbox_full",
            remedy="Wait for one to end, or signal it.",
            fields={"limit": str(most)},
        )


class ProcessesExhausted(ResourceExhausted):
    """The kernel has no process or memory left for the program."""

    def __init__(self) -> None:
        super().__init__(
            "No process or memory is left to start the program.",
            reason="processes_exhausted",
            remedy="End some of the sandbox's programs, or ask for higher limits.",
        )


class ExecutionNotFound(NotFound):
    """No such execution is kept here for this tenant."""

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            "There is no such execution on this host.",
            reason="execution_not_found",
            remedy="Executions are kept for a while after their end; start another one.",
            fields={"execution_id": short(execution_id)},
        )


class ExecutionEnded(FailedPrecondition):
    """The execution has ended, so nothing can be sent to it."""

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            "The execution has ended.",
            reason="execution_ended",
            remedy="Watch its output for the exit.",
            fields={"execution_id": execution_id},
        )


class NotATerminal(FailedPrecondition):
    """The execution runs on pipes."""

    def __init__(self, execution_id: str = "") -> None:
        super().__init__(
            "The execution has no terminal.",
            reason="not_a_terminal",
            remedy="Start the command with a terminal, or use its output and standard input.",
            fields={"execution_id": execution_id} if execution_id else {},
        )


class TerminalUnavailable(FailedPrecondition):
    """The sandbox cannot open a terminal."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The sandbox cannot open a terminal: {cause}.",
            reason="terminal_unavailable",
            remedy="Start the command without a terminal; the host needs /dev/ptmx and /dev/pts.",
        )


class TerminalOwned(FailedPrecondition):
    """Somebody else types into the terminal."""

    def __init__(self) -> None:
        super().__init__(
            "Another client has the terminal.",
            reason="terminal_owned",
            remedy="Watch its output, or take it: take_over, `fairlead shell --take-over`.",
        )


class TerminalFrameInvalid(InvalidArgument):
    """A frame of an attachment is out of its order."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            sentence,
            reason="terminal_frame_invalid",
            remedy="Send `open` first and once; then input, sizes and `detach`.",
        )


class StdinClosed(FailedPrecondition):
    """Standard input is closed, or was never open."""

    def __init__(self, execution_id: str = "") -> None:
        super().__init__(
            "Standard input is closed.",
            reason="stdin_closed",
            remedy="Start the command with stdin to be able to write to it.",
            fields={"execution_id": execution_id} if execution_id else {},
        )


class StdinOffsetInvalid(FailedPrecondition):
    """The offset lies after what was taken, so that bytes would be missing."""

    def __init__(self, expected: int) -> None:
        super().__init__(
            f"Standard input has come to offset {expected}; bytes are missing before yours.",
            reason="stdin_offset_invalid",
            remedy="Write from the offset that this error names.",
            fields={"expected_offset": str(expected)},
        )


class CursorGone(OutOfRange):
    """Records after the cursor were dropped from the journal."""

    def __init__(self, oldest_sequence: int) -> None:
        super().__init__(
            f"The output before record {oldest_sequence} is no longer kept.",
            reason="cursor_gone",
            remedy="Watch again without a cursor for all that is kept.",
            fields={"oldest_sequence": str(oldest_sequence)},
        )
