"""The errors of files; a sandbox's own answer picks one by its reason."""

from __future__ import annotations

from chassis.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    FairleadError,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from sandbox_worker.errors import short

_REASONS: dict[str, tuple[type[FairleadError], str, str]] = {
    "file_not_found": (
        NotFound,
        "There is no such file or directory in the sandbox.",
        "List the directory above it; what is written needs one that is there, or `parents`.",
    ),
    "file_exists": (
        AlreadyExists,
        "The file is there already.",
        "Take another name, or ask to overwrite it.",
    ),
    "not_a_directory": (
        FailedPrecondition,
        "The path, or a part of it, is no directory.",
        "Give the path of a directory.",
    ),
    "is_a_directory": (
        FailedPrecondition,
        "The path is a directory.",
        "Give the path of a file; a directory is read and written as a tar stream.",
    ),
    "not_a_file": (
        FailedPrecondition,
        "The path is a pipe, a socket or a device.",
        "Give the path of a regular file.",
    ),
    "path_outside": (
        InvalidArgument,
        "The path leaves the workspace.",
        "Give a path relative to the workspace, without .. and links that lead out.",
    ),
    "path_invalid": (
        InvalidArgument,
        "This is no path that a file can have.",
        "Give names of at most 255 bytes, a path of at most 4095, and no NUL.",
    ),
    "permission_denied_inside": (
        PermissionDenied,
        "The sandbox's user may not do this with the file.",
        "Change its permissions, or those of its directory, inside the sandbox.",
    ),
    "no_space": (
        ResourceExhausted,
        "No space is left for the sandbox's files.",
        "Remove some, or ask for a higher limit.",
    ),
    "file_too_large": (
        ResourceExhausted,
        "The file is larger than it may be.",
        "Ask for a higher limit of file sizes, or read it in ranges.",
    ),
    "directory_not_empty": (
        FailedPrecondition,
        "The directory is not empty.",
        "Remove it with what is in it, recursively.",
    ),
    "directory_too_deep": (
        FailedPrecondition,
        "The directories are nested too deeply.",
        "Run rm -rf inside the sandbox.",
    ),
    "file_changed": (
        FailedPrecondition,
        "The file has changed meanwhile.",
        "Read it again and write with its present etag.",
    ),
    "file_in_use": (
        FailedPrecondition,
        "The file is in use.",
        "End the program that runs from it, or write another one and move it there.",
    ),
    "tree_invalid": (
        InvalidArgument,
        "The tar stream holds what is not unpacked.",
        "Send files, directories and links within the tree, uncompressed and whole.",
    ),
    "watch_too_large": (
        ResourceExhausted,
        "There are too many directories to watch.",
        "Watch fewer of them; at most 8192 together.",
    ),
    "files_exhausted": (
        ResourceExhausted,
        "The sandbox has no process, memory or open file left for this.",
        "End some of its programs, or ask for higher limits.",
    ),
}


def file_error(reason: str, path: bytes = b"", cause: str = "") -> FairleadError:
    """Return the error that a reason of the sandbox's agent means; what it makes up is ours."""
    fields = {"path": short(path.decode("utf-8", "backslashreplace"))} if path else {}
    found = _REASONS.get(reason)
    if found is None:
        return Internal(
            "The sandbox could not do this with the file.",
            reason="file_failed",
            remedy="Try it with a command inside the sandbox.",
            fields=fields | ({"cause": short(cause)} if cause else {}),
        )
    kind, sentence, remedy = found
    return kind(sentence, reason=reason, remedy=remedy, fields=fields)


class FilesBusy(ResourceExhausted):
    """Too many file requests are under way in one sandbox."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The sandbox serves {most} file requests at once, which is its limit.",
            reason="files_busy",
            remedy="Wait until some have ended, then try again.",
            fields={"limit": str(most)},
        )


class FileAgentLost(Unavailable):
    """A program of the sandbox has killed what works on its files, or it ran out of memory."""

    def __init__(self) -> None:
        super().__init__(
            "What works on the sandbox's files was killed in the middle.",
            reason="file_agent_lost",
            remedy="Try again; look at the sandbox's memory limit and its programs.",
        )


class FileAgentSilent(DeadlineExceeded):
    """A program of the sandbox has stopped what works on its files."""

    def __init__(self) -> None:
        super().__init__(
            "What works on the sandbox's files does not answer.",
            reason="file_agent_silent",
            remedy="Try again; look whether a program of the sandbox stops others.",
        )


class FileInterrupted(InvalidArgument):
    """A stream of content ended without saying that it is whole."""

    def __init__(self) -> None:
        super().__init__(
            "The stream to the file ended too early.",
            reason="file_interrupted",
            remedy="Send it again; what was to be replaced is as it was.",
        )
