"""Files between domain and proto, both ways."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.file.v1 import file_pb2 as pb
from signalling.file import (
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
from signalling.file_errors import FileOperationMissing, WriteModeInvalid

_KINDS = {
    FileKind.FILE: pb.FILE_KIND_FILE,
    FileKind.DIRECTORY: pb.FILE_KIND_DIRECTORY,
    FileKind.LINK: pb.FILE_KIND_LINK,
    FileKind.OTHER: pb.FILE_KIND_OTHER,
}
_MODES = {
    WriteMode.REPLACE: pb.WRITE_MODE_REPLACE,
    WriteMode.CREATE: pb.WRITE_MODE_CREATE,
    WriteMode.RANGE: pb.WRITE_MODE_RANGE,
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
_KIND_OF = {number: kind for kind, number in _KINDS.items()}
_MODE_OF = {number: mode for mode, number in _MODES.items()}
_CHANGE_OF = {number: change for change, number in _CHANGES.items()}
_END_OF = {number: reason for reason, number in _ENDS.items()}


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


def from_stat(message: pb.FileStat) -> FileStat:
    """Read a file; a kind that is not known counts as other."""
    return FileStat(
        name=message.name,
        kind=_KIND_OF.get(message.kind, FileKind.OTHER),
        size=message.size_bytes,
        permissions=message.permissions,
        modified=message.modified_at.seconds * 10**9 + message.modified_at.nanos,
        target=message.target,
        etag=message.etag,
    )


def to_opening(order: WriteOrder, tenant: str, sandbox_id: str) -> pb.WriteFileOpening:
    """Return what will be written as a message."""
    return pb.WriteFileOpening(
        tenant=tenant,
        sandbox_id=sandbox_id,
        path=order.path,
        mode=_MODES[order.mode],
        offset=order.offset,
        truncate=order.truncate,
        permissions=order.permissions,
        parents=order.parents,
        if_match=order.if_match,
    )


def from_opening(message: pb.WriteFileOpening) -> WriteOrder:
    """Read what will be written; raises WriteModeInvalid."""
    mode = _MODE_OF.get(message.mode or pb.WRITE_MODE_REPLACE)
    if mode is None:
        raise WriteModeInvalid
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


def from_watch_frame(message: pb.WatchFilesResponse) -> WatchFrame | None:
    """Read a frame of a watch; None for one that is not known."""
    match message.WhichOneof("frame"):
        case "started":
            return WatchStarted(message.started.directories)
        case "event":
            event = message.event
            return FileEvent(
                event.sequence,
                _CHANGE_OF.get(event.change, FileChange.MODIFIED),
                event.path,
                event.source,
                event.directory,
            )
        case "gap":
            return WatchGap(message.gap.sequence)
        case "end":
            reason = _END_OF.get(message.end.reason, WatchEndReason.RELEASED)
            return WatchEnd(message.end.last_sequence, reason)
        case _:
            return None


def to_operation(operation: FileOperation) -> pb.FileOperation:
    """Return a step of a batch as a message."""
    match operation:
        case WriteFile(path, content, permissions, parents):
            write = pb.WriteOperation(
                path=path, content=content, permissions=permissions, parents=parents
            )
            return pb.FileOperation(write=write)
        case ReadFile(path):
            return pb.FileOperation(read=pb.ReadOperation(path=path))
        case RemoveFile(path, recursive):
            return pb.FileOperation(remove=pb.RemoveOperation(path=path, recursive=recursive))
        case MoveFile(source, target, overwrite):
            move = pb.MoveOperation(source=source, target=target, overwrite=overwrite)
            return pb.FileOperation(move=move)
        case MakeDirectory(path, parents):
            make = pb.MakeDirectoryOperation(path=path, parents=parents)
            return pb.FileOperation(make_directory=make)
        case StatFile(path, follow):
            return pb.FileOperation(stat=pb.StatOperation(path=path, no_follow=not follow))


def from_operation(message: pb.FileOperation) -> FileOperation:
    """Read a step of a batch; raises FileOperationMissing for none."""
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
            raise FileOperationMissing


def to_result(outcome: FileOutcome) -> pb.FileResult:
    """Return what a step of a batch gave as a message."""
    stat = None if outcome.stat is None else to_stat(outcome.stat)
    return pb.FileResult(stat=stat, content=outcome.content)


def from_result(message: pb.FileResult) -> FileOutcome:
    """Read what a step of a batch gave."""
    stat = from_stat(message.stat) if message.HasField("stat") else None
    return FileOutcome(stat, message.content)
