"""How a command ended, in a sentence."""

from __future__ import annotations

import signal

from fairlead_sdk.records import Exit, Failure, OutputGap
from fairlead_sdk.repository import Repository

_GAPS = {
    "dropped": ": more was written than is kept",
    "evicted": ": more was written than is kept of all commands together",
    "disk_full": ": the host's disk was full",
    "disk_failed": ": the host's disk failed",
}
_NO_DIRECTORY = frozenset({"directory_not_found", "directory_invalid"})


def explained(failure: Failure, repository: Repository, *, from_: str) -> Failure:
    """Say of a directory that is here and not in the workspace why it is not there."""
    if failure.reason not in _NO_DIRECTORY or not repository.directory:
        return failure
    why = "it is ignored or empty" if not from_ else "the upstream's tip does not have it"
    return Failure(
        step=failure.step,
        reason=failure.reason,
        message=f"The directory {repository.directory} is not in the workspace: {why}.",
        remedy=f"Launch a directory with files that git tracks or would add: {repository.top}",
    )


def gap_of(gap: OutputGap) -> str:
    """Say how much of the output is missing."""
    why = _GAPS.get(gap.reason, "")
    return f"{gap.size:,} bytes of output are missing here{why}."


def ending_of(exit_: Exit) -> str:
    """Say what the exit status alone does not; empty for an ordinary end and for Ctrl-C."""
    match exit_.reason:
        case "timed_out":
            return "the command did not end in time and was killed."
        case "signalled" if exit_.signal is not None:
            if exit_.signal == signal.SIGINT:
                return ""
            try:
                return f"the command was ended by {signal.Signals(exit_.signal).name}."
            except ValueError:
                return f"the command was ended by signal {exit_.signal}."
        case "out_of_memory":
            return "the command was killed: the sandbox's memory was used up."
        case "limit_pids":
            return "the command was ended: the sandbox's processes were used up."
        case "limit_disk":
            return "the command was killed: the sandbox wrote more than it may."
        case "released":
            return "the sandbox was released while the command ran."
        case "host_lost":
            return "the host was lost while the command ran."
        case _:
            return ""
