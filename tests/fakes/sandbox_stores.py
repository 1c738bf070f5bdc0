"""The sandbox-worker's stores in memory, and spans that are lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox_worker.errors import StorageUnavailable, WorkspaceNotFound
from sandbox_worker.execution import Execution, Exit, Gap, OnFull, OutputRecord, Piece
from sandbox_worker.ports import KeptExecution, SandboxRecord, Tree


class MemoryRecords:
    """Records in a dictionary; `fault` makes writes fail."""

    def __init__(self, *records: SandboxRecord) -> None:
        self.records = {record.sandbox_id: record for record in records}
        self.fault = False

    async def put(self, record: SandboxRecord) -> None:
        if self.fault:
            raise StorageUnavailable
        self.records[record.sandbox_id] = record

    async def remove(self, sandbox_id: str) -> None:
        self.records.pop(sandbox_id, None)

    async def all(self) -> Sequence[SandboxRecord]:
        return list(self.records.values())


class MemoryJournal:
    """A journal in a list; `gap` stands before whatever a reader gets."""

    def __init__(self, *, on_full: OnFull = OnFull.DROP_OLDEST, most_bytes: int = 0) -> None:
        self.on_full = on_full
        self.most_bytes = most_bytes
        self.readers = 0
        self.gap: Gap | None = None
        self.records: list[OutputRecord] = []
        self.exit: Exit | None = None
        self.removed = False
        self.full = False
        self.complete = True

    @property
    def last_sequence(self) -> int:
        return len(self.records)

    async def append(
        self, pieces: Sequence[Piece], *, announce: Callable[[], None] = lambda: None
    ) -> None:
        for piece in pieces:
            self.complete = self.complete and not self.full
            if self.complete:
                self.records.append(
                    OutputRecord(
                        sequence=len(self.records) + 1,
                        stream=piece.stream,
                        content=piece.content,
                        written_at=piece.written_at,
                    )
                )

        announce()

    async def finish(self, exit_: Exit) -> bool:
        if self.full:
            return False
        assert self.exit in (None, exit_)
        self.exit = exit_
        return True

    def retry(self) -> None:
        """Nothing ever waits here."""

    def unblock(self) -> None:
        """Nothing ever waits here."""

    def reader(self, after: int) -> MemoryReader:
        self.readers += 1
        return MemoryReader(journal=self, after=after)

    async def remove(self) -> None:
        self.removed = True


class MemoryReader:
    """Reads two records at a time."""

    def __init__(self, *, journal: MemoryJournal, after: int) -> None:
        self._journal = journal
        self._after = after
        self._passed = False

    async def read(self) -> Sequence[OutputRecord] | Gap:
        if (gap := self._journal.gap) is not None and not self._passed:
            self._passed = True
            return gap
        found = self._journal.records[self._after : self._after + 2]
        self._after += len(found)
        return found

    def close(self) -> None:
        self._journal.readers -= 1


class MemoryJournals:
    """Journals in a dictionary."""

    def __init__(self, *kept: KeptExecution) -> None:
        self.journals: dict[str, MemoryJournal] = {}
        self.kept = kept
        self.full = False

    async def open(
        self, execution: Execution, *, on_full: OnFull, most_bytes: int, disk_bytes: int
    ) -> MemoryJournal:
        if self.full:
            raise StorageUnavailable
        journal = MemoryJournal(on_full=on_full, most_bytes=most_bytes)
        self.journals[execution.execution_id] = journal
        return journal

    async def recover(self) -> Sequence[KeptExecution]:
        return self.kept

    async def tidy(self) -> None:
        """Nothing is over a bound."""


@dataclass(slots=True)
class ListedTrees:
    """Workspaces by id."""

    trees: dict[str, Path] = field(default_factory=dict)

    async def find(self, workspace_id: str) -> Tree:
        if workspace_id not in self.trees:
            raise WorkspaceNotFound(workspace_id)
        return Tree(self.trees[workspace_id])


class ListedSpan:
    """Remembers how it was ended."""

    def __init__(self, *, traceparent: str) -> None:
        self.traceparent = traceparent
        self.ends: list[Exit | Exception] = []

    def fail(self, error: Exception) -> None:
        self.ends.append(error)

    def close(self, exit_: Exit) -> None:
        self.ends.append(exit_)


class ListedSpans:
    """Remembers its spans."""

    def __init__(self) -> None:
        self.spans: dict[str, ListedSpan] = {}

    def open(self, *, execution_id: str, sandbox_id: str) -> ListedSpan:
        span = ListedSpan(traceparent=f"00-{execution_id}")
        self.spans[execution_id] = span
        return span
