"""Files between domain and proto."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.file.v1 import file_pb2 as pb
from sandbox_worker.errors import ArgumentInvalid
from sandbox_worker.file import (
    FileChange,
    FileEvent,
    FileKind,
    FileOperation,
    FileOutcome,
    FileStat,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    StatFile,
    WatchEnd,
    WatchEndReason,
    WatchFrame,
    WatchGap,
    WatchStarted,
    WriteFile,
    WriteMode,
    WriteOrder,
)

_KINDS = {
    FileKind.FILE: pb.FILE_KIND_FILE,
    FileKind.DIRECTORY: pb.FILE_KIND_DIRECTORY,
    FileKind.LINK: pb.FILE_KIND_LINK,
    FileKind.OTHER: pb.FILE_KIND_OTHER,
}
_MODES = {
    pb.WRITE_MODE_UNSPECIFIED: WriteMode.REPLACE,
    pb.WRITE_MODE_REPLACE: WriteMode.REPLACE,
    pb.WRITE_MODE_CREATE: WriteMode.CREATE,
    pb.WRITE_MODE_RANGE: WriteMode.RANGE,
}
_CHANGES = {
    FileChange.CREATED: pb.FILE_CHANGE_CREATED,
    FileChange.MODIFIED: pb.FILE_CHANGE_MODIFIED,
    FileChange.REMOVED: pb.FILE_CHANGE_REMOVED,
    FileChange.MOVED: pb.FILE_CHANGE_MOVED,
}
_ENDS = {
    WatchEndReason.RELEASED: pb.WATCH_END_REASON_RELEASED,
    WatchEndReason.REMOVED: pb.WATCH_END_REASON_REMOVED,
}


def to_stat(stat: FileStat) -> pb.FileStat:
    """Return a file as a message."""
    return pb.FileStat(
        name=stat.name,
        kind=_KINDS[stat.kind],
        size_bytes=stat.size,
        permissions=stat.permissions,
        modified_at=Timestamp(seconds=stat.modified // 10**9, nanos=stat.modified % 10**9),
        target=stat.target,
        etag=stat.etag,
    )


def from_opening(message: pb.WriteFileOpening) -> WriteOrder:
    """Read what will be written; raises ArgumentInvalid for an unknown mode."""
    mode = _MODES.get(message.mode)
    if mode is None:
        raise ArgumentInvalid("mode", "is one of WriteMode's")
    return WriteOrder(
        path=message.path,
        mode=mode,
        offset=message.offset,
        truncate=message.truncate,
        permissions=message.permissions if message.HasField("permissions") else None,
        parents=message.parents,
        if_match=message.if_match,
    )


def to_watch_frame(frame: WatchFrame) -> pb.WatchFilesResponse:
    """Return a frame of a watch as a message."""
    match frame:
        case WatchStarted(directories):
            return pb.WatchFilesResponse(started=pb.WatchStarted(directories=directories))
        case FileEvent(sequence, change, path, source, directory):
            return pb.WatchFilesResponse(
                event=pb.FileEvent(
                    sequence=sequence,
                    change=_CHANGES[change],
                    path=path,
                    source=source,
                    directory=directory,
                )
            )
        case WatchGap(sequence):
            return pb.WatchFilesResponse(gap=pb.WatchGap(sequence=sequence))
        case WatchEnd(last_sequence, reason):
            return pb.WatchFilesResponse(
                end=pb.WatchEnd(last_sequence=last_sequence, reason=_ENDS[reason])
            )


def from_operation(message: pb.FileOperation) -> FileOperation:
    """Read a step of a batch; raises ArgumentInvalid for none."""
    match message.WhichOneof("operation"):
        case "write":
            write = message.write
            permissions = write.permissions if write.HasField("permissions") else None
            return WriteFile(write.path, write.content, permissions, write.parents)
        case "read":
            return ReadFile(message.read.path)
        case "remove":
            return RemoveFile(message.remove.path, message.remove.recursive)
        case "move":
            move = message.move
            return MoveFile(move.source, move.target, move.overwrite)
        case "make_directory":
            return MakeDirectory(message.make_directory.path, message.make_directory.parents)
        case "stat":
            return StatFile(message.stat.path, not message.stat.no_follow)
        case _:
            raise ArgumentInvalid("file.operation", "is required")


def to_result(outcome: FileOutcome) -> pb.FileResult:
    """Return what a step of a batch gave as a message."""
    stat = None if outcome.stat is None else to_stat(outcome.stat)
    return pb.FileResult(stat=stat, content=outcome.content)
