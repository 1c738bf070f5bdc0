"""File operations that are noted, and answered by a table."""

from __future__ import annotations

from chassis.errors import FairleadError
from sandbox_worker.file import FileOperation, FileOutcome


class ListedFileWork:
    """Notes every operation; `answers` says what one gives or raises, in place of nothing."""

    def __init__(self) -> None:
        self.asked: list[FileOperation] = []
        self.answers: dict[FileOperation, FileOutcome | FairleadError] = {}

    async def perform(
        self, *, tenant: str, sandbox_id: str, operation: FileOperation
    ) -> FileOutcome:
        self.asked.append(operation)
        answer = self.answers.get(operation, FileOutcome())
        if isinstance(answer, FairleadError):
            raise answer
        return answer
