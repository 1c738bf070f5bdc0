"""The directory of all journals: for each execution a head and the segments of its output."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.errors import StorageUnavailable
from sandbox_worker.execution import Execution, OnFull, OutputRecord
from sandbox_worker.journals.encoding import Description, Ending, encode_description, frames
from sandbox_worker.journals.file_journal import FileJournal
from sandbox_worker.journals.segments import HEAD, SEGMENT, Segment, SegmentFiles, Write
from sandbox_worker.ports import KeptExecution

log = logging.getLogger(__name__)


class JournalStore:
    """Keeps journals below `root`; `most_bytes` bounds each of them."""

    def __init__(
        self, *, root: Path, work: BriefWork, most_bytes: int, write: Write = os.writev
    ) -> None:
        self._root = root
        self._work = work
        self._most_bytes = most_bytes
        self._write = write

    async def open(
        self, execution: Execution, *, on_full: OnFull = OnFull.DROP_OLDEST, most_bytes: int = 0
    ) -> FileJournal:
        """Make a journal; what a failed start left under the same id is replaced."""
        content = encode_description(Description(_described(execution)))
        files = self._files(execution.execution_id)
        try:
            await self._work.run(lambda: self._make(execution.execution_id, files, content))
        except OSError as error:
            log.error("a journal cannot be made", extra={"cause": error.strerror})
            raise StorageUnavailable from error
        return FileJournal(
            files=files,
            work=self._work,
            most_bytes=min(most_bytes or self._most_bytes, self._most_bytes),
            on_full=on_full,
            head_length=len(content),
        )

    async def recover(self) -> Sequence[KeptExecution]:
        """Read all journals; those whose description is unreadable are removed."""
        return await self._work.run_apart(self._recover)

    def _make(self, execution_id: str, files: SegmentFiles, content: bytes) -> None:
        try:
            files.make_head(content)
        except FileExistsError:
            _remove(list(self._root.glob(f"{execution_id}.*")))
            files.make_head(content)
        except FileNotFoundError:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.make_head(content)

    def _recover(self) -> list[KeptExecution]:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: dict[str, list[Path]] = {}
        for path in sorted(self._root.iterdir()):
            found.setdefault(path.name.partition(".")[0], []).append(path)
        kept = []
        for execution_id, paths in found.items():
            try:
                kept.append(self._kept(execution_id, paths))
            except (OSError, ValueError, KeyError, TypeError):
                log.warning("an unreadable journal is removed")
                _remove(paths)
        return kept

    def _kept(self, execution_id: str, paths: Sequence[Path]) -> KeptExecution:
        head = self._head(execution_id)
        execution, ending, head_length = _read_head(execution_id, head.read_bytes())
        segments = [_segment(path) for path in paths if path.suffix == SEGMENT]
        if segments:
            segments[-1], last_sequence, size = _cut(paths[len(segments) - 1], segments[-1])
        else:
            last_sequence, size = 0, 0
        if ending is not None:
            last_sequence, size = ending.exit.last_sequence, ending.size
        journal = FileJournal(
            files=self._files(execution_id),
            work=self._work,
            most_bytes=self._most_bytes,
            on_full=OnFull.DROP_OLDEST,
            head_length=head_length,
            segments=segments,
            last_sequence=last_sequence,
            size=size,
        )
        return KeptExecution(execution=execution, journal=journal)

    def _head(self, execution_id: str) -> Path:
        return self._root / f"{execution_id}{HEAD}"

    def _files(self, execution_id: str) -> SegmentFiles:
        return SegmentFiles(head=self._head(execution_id), write=self._write)


def _described(execution: Execution) -> bytes:
    return json.dumps(
        {
            "sandbox_id": execution.sandbox_id,
            "tenant": execution.tenant,
            "arguments": execution.arguments,
            "started_at": execution.started_at.isoformat(),
            "fingerprint": execution.fingerprint,
        }
    ).encode()


def _read_head(execution_id: str, content: bytes) -> tuple[Execution, Ending | None, int]:
    """Read an execution, how it ended, and how long its description is."""
    if not is_id("exe", execution_id):
        raise ValueError(execution_id)
    found = list(frames(content))
    if not found or not isinstance(found[0].entry, Description):
        raise ValueError("a head without a description")
    fields = json.loads(found[0].entry.content)
    ending = found[1].entry if len(found) > 1 else None
    ending = ending if isinstance(ending, Ending) else None
    execution = Execution(
        execution_id=execution_id,
        sandbox_id=str(fields["sandbox_id"]),
        tenant=str(fields["tenant"]),
        arguments=tuple(str(argument) for argument in fields["arguments"]),
        started_at=datetime.fromisoformat(fields["started_at"]),
        exit=None if ending is None else ending.exit,
        fingerprint=str(fields["fingerprint"]),
    )
    return execution, ending, found[0].end


def _segment(path: Path) -> Segment:
    _, first, offset, _ = path.name.split(".")
    return Segment(first=int(first), offset=int(offset), length=path.stat().st_size)


def _cut(path: Path, newest: Segment) -> tuple[Segment, int, int]:
    """Cut a segment's torn tail; return it, its last sequence and the bytes of output so far."""
    last_sequence, size, length = newest.first - 1, newest.offset, 0
    for frame in frames(path.read_bytes()):
        if not isinstance(frame.entry, OutputRecord):
            break
        last_sequence, length = frame.entry.sequence, frame.end
        size += len(frame.entry.content)
    if length < newest.length:
        os.truncate(path, length)
    return Segment(newest.first, newest.offset, length), last_sequence, size


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink(missing_ok=True)
