"""The errors of files that signalling finds itself; the rest comes from the sandbox's host."""

from __future__ import annotations

from chassis.errors import InvalidArgument, OutOfRange


class WriteModeInvalid(InvalidArgument):
    """The mode of a write is not known."""

    def __init__(self) -> None:
        super().__init__(
            "There is no such mode of writing.",
            reason="write_mode_invalid",
            remedy="Take one of WriteMode's.",
            fields={"field": "mode"},
        )


class FileOperationMissing(InvalidArgument):
    """A step of a batch names no operation."""

    def __init__(self) -> None:
        super().__init__(
            "The step names no file operation.",
            reason="file_operation_missing",
            remedy="Set one of write, read, remove, move, make_directory and stat.",
            fields={"field": "file.operation"},
        )


class FileFramesInvalid(InvalidArgument):
    """A stream of frames is not one `open` and then content."""

    def __init__(self) -> None:
        super().__init__(
            "A stream to a file is one `open` frame and then content of at most 1 MiB each.",
            reason="file_frames_invalid",
            remedy="Send `open` first, and only first.",
        )


class FileInterrupted(InvalidArgument):
    """The client left before its stream was whole; nobody reads this but the log."""

    def __init__(self) -> None:
        super().__init__(
            "The stream to the file ended too early.",
            reason="file_interrupted",
            remedy="Send it again; what was to be replaced is as it was.",
        )


class PathTextInvalid(InvalidArgument):
    """A path is not text with percent-encoded bytes."""

    def __init__(self, field: str) -> None:
        super().__init__(
            "The path is not UTF-8 text with other bytes percent-encoded.",
            reason="path_invalid",
            remedy="Write % as %25 and a byte that is not UTF-8 as % and two hexadecimal digits.",
            fields={"field": field},
        )


class RangeUnsatisfiable(OutOfRange):
    """The file ends before the range begins (RFC 9110, section 15.5.17)."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"The file has {size} bytes and ends before the range begins.",
            reason="range_unsatisfiable",
            remedy="Ask for a range that begins in the file.",
            fields={"size_bytes": str(size)},
        )
        self.size = size
