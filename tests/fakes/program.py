"""One execution of the fake worker, and what a watcher sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from chassis.errors import OutOfRange, Unavailable
from signalling.execution import Command, Execution, OutputFrame, OutputGap, OutputRecord
from tests.fakes.faults import Faults


@dataclass
class Program:
    """One execution of the fake worker."""

    execution: Execution
    tenant: str
    command: Command
    records: list[OutputRecord] = field(default_factory=list)
    dropped: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def announce(self) -> None:
        """Wake whoever watches."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def frames(
        self, after: int, *, cut: asyncio.Event, faults: Faults
    ) -> AsyncIterator[OutputFrame]:
        """Yield the execution, what is kept after a number, and the exit, until the cut."""
        yield self.execution
        if 0 < after < self.dropped:
            raise OutOfRange("It was dropped.", reason="cursor_gone")
        if after < self.dropped:
            yield OutputGap(after + 1, self.dropped, 10 * (self.dropped - after))
            after = self.dropped
        while True:
            changed, exit_ = self.changed, self.execution.exit
            ahead = [record for record in self.records if record.sequence > after]
            for record in ahead:
                await faults.at("executions.watch:record")
                yield record
                after = record.sequence
            if ahead:
                continue
            if exit_ is not None:
                yield exit_
                return
            waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(cut.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if cut.is_set():
                raise Unavailable("The stream broke.", reason="sandbox_worker_unavailable")
