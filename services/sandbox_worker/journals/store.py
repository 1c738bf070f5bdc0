"""The directory of all journals: for each execution a head and the segments of its output."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.errors import StorageUnavailable
from sandbox_worker.execution import Execution, GapReason, OnFull, OutputRecord
from sandbox_worker.journals.budget import Budgets, JournalBudget
from sandbox_worker.journals.encoding import Description, Ending, encode_description, frames
from sandbox_worker.journals.file_journal import FileJournal
from sandbox_worker.journals.segments import HEAD, SEGMENT, Segment, SegmentFiles, Write
from sandbox_worker.ports import KeptExecution

log = logging.getLogger(__name__)


class JournalStore:
    """Keeps journals below `root`; `most_bytes` bounds each of them, `budgets` all together.

    `space` gives the size of a file system and the bytes of it that may still be taken.
    """

    def __init__(
        self,
        *,
        root: Path,
        work: BriefWork,
        most_bytes: int,
        budgets: Budgets | None = None,
        write: Write = os.writev,
        space: Callable[[Path], tuple[int, int]] | None = None,
    ) -> None:
        self._root = root
        self._work = work
        self._most_bytes = most_bytes
        self._budget = JournalBudget(budgets or Budgets())
        self._write = write
        self._space = space or _space

    async def open(
        self,
        execution: Execution,
        *,
        on_full: OnFull = OnFull.DROP_OLDEST,
        most_bytes: int = 0,
        disk_bytes: int = 0,
    ) -> FileJournal:
        """Make a journal; what a failed start left under the same id is replaced."""
        most_together = self._budget.most_of_sandbox(disk_bytes)
        content = encode_description(Description(_described(execution, most_together)))
        files = self._files(execution.execution_id)
        while True:
            try:
                await self._work.run(lambda: self._make(execution.execution_id, files, content))
                break
            except OSError as error:
                is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if is_full and await self._budget.relieve(GapReason.DISK_FULL):
                    continue
                log.error("a journal cannot be made", extra={"cause": error.strerror})
                raise StorageUnavailable(is_full=is_full) from error
        journal = FileJournal(
            files=files,
            work=self._work,
            budget=self._budget,
            most_bytes=min(most_bytes or self._most_bytes, self._most_bytes, most_together),
            on_full=on_full,
            head_length=len(content),
        )
        self._enter(journal, execution, most_together)
        return journal

    async def recover(self) -> Sequence[KeptExecution]:
        """Read all journals; those whose description is unreadable are removed."""
        found = await self._work.run_apart(self._recover)
        for journal, execution, most_together in sorted(found, key=lambda each: _ended_at(each[1])):
            self._enter(journal, execution, most_together)
        await self.tidy()
        return [KeptExecution(execution, journal) for journal, execution, _ in found]

    async def tidy(self) -> None:
        """Delete the oldest records where all journals together hold too much for their budgets, or
        for the space that is to be left on the disk.
        """
        with suppress(OSError):
            size, free = await self._work.run(lambda: self._space(self._root))
            await self._budget.enforce(size=size, free=free)

    def _enter(self, journal: FileJournal, execution: Execution, most_together: int) -> None:
        self._budget.enter(
            journal,
            sandbox_id=execution.sandbox_id,
            tenant=execution.tenant,
            most=most_together,
            held=journal.held,
        )

    def _make(self, execution_id: str, files: SegmentFiles, content: bytes) -> None:
        try:
            files.make_head(content)
        except FileExistsError:
            _remove(list(self._root.glob(f"{execution_id}.*")))
            files.make_head(content)
        except FileNotFoundError:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.make_head(content)

    def _recover(self) -> list[tuple[FileJournal, Execution, int]]:
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

    def _kept(self, execution_id: str, paths: Sequence[Path]) -> tuple[FileJournal, Execution, int]:
        head = self._head(execution_id)
        execution, ending, head_length, most = _read_head(execution_id, head.read_bytes())
        most_together = self._budget.most_of_sandbox(most)
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
            budget=self._budget,
            most_bytes=self._most_bytes,
            on_full=OnFull.DROP_OLDEST,
            head_length=head_length,
            segments=segments,
            last_sequence=last_sequence,
            size=size,
            ended=ending is not None,
            lost=() if ending is None else ending.lost,
        )
        return journal, execution, most_together

    def _head(self, execution_id: str) -> Path:
        return self._root / f"{execution_id}{HEAD}"

    def _files(self, execution_id: str) -> SegmentFiles:
        return SegmentFiles(head=self._head(execution_id), write=self._write)


def _ended_at(execution: Execution) -> datetime:
    return execution.started_at if execution.exit is None else execution.exit.ended_at


def _space(root: Path) -> tuple[int, int]:
    """Return the bytes of a file system and those that this user may still take (statvfs(3))."""
    found = os.statvfs(root)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _described(execution: Execution, most_together: int) -> bytes:
    return json.dumps(
        {
            "sandbox_id": execution.sandbox_id,
            "tenant": execution.tenant,
            "arguments": execution.arguments,
            "started_at": execution.started_at.isoformat(),
            "fingerprint": execution.fingerprint,
            "most_together": most_together,
        }
    ).encode()


def _read_head(execution_id: str, content: bytes) -> tuple[Execution, Ending | None, int, int]:
    """Read an execution, how it ended, how long its description is, and the bound of all journals
    of its sandbox.
    """
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
    return execution, ending, found[0].end, int(fields.get("most_together", 0))


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
