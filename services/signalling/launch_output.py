"""The output of a launch's command for one watcher, read from the worker's journal across broken
streams.
"""

from __future__ import annotations

import asyncio
import logging

from chassis.errors import (
    DeadlineExceeded,
    FairleadError,
    Internal,
    NotFound,
    OutOfRange,
    Unavailable,
)
from signalling.execution import Exit, OutputGap, OutputRecord
from signalling.launch import Launch, LaunchState
from signalling.launch_errors import CursorGone
from signalling.launch_record import LaunchRecord, LaunchTimings
from signalling.launches import Launches
from signalling.ports import Executions

_log = logging.getLogger(__name__)
_RECORDS_AHEAD = 8


class OutputUnavailable(Unavailable):
    """The launch has ended, and its host does not give the rest of the output now."""

    def __init__(self) -> None:
        super().__init__(
            "The host does not answer, so the rest of the output cannot be read now.",
            reason="output_unavailable",
            remedy="Watch again with the cursor of the last event.",
        )


class LaunchOutput:
    """Reads ahead by a few records; `flowing` as long as there may be more."""

    def __init__(
        self, *, executions: Executions, launches: Launches, timings: LaunchTimings
    ) -> None:
        self._executions = executions
        self._launches = launches
        self._timings = timings
        self._records: asyncio.Queue[OutputRecord | OutputGap | FairleadError | None] = (
            asyncio.Queue(_RECORDS_AHEAD)
        )
        self._reading: asyncio.Future[None] | None = None
        self._seen = 0
        self._whole = False
        self._over: Launch | None = None
        self.flowing = False

    @property
    def opened(self) -> bool:
        """Say whether it was opened."""
        return self._reading is not None

    def open(self, record: LaunchRecord, after: int) -> None:
        """Start to read after a sequence number."""
        self._seen = after
        self.flowing = True
        self._reading = asyncio.ensure_future(self._read(record, after))

    async def next(self) -> OutputRecord | OutputGap | None:
        """Return the next record or gap; None when there is none any more. Raises CursorGone."""
        item = await self._records.get()
        if isinstance(item, FairleadError):
            raise item
        if item is None:
            self.flowing = False
            self._settle()
            return None
        self._seen = last_of(item)
        self._settle()
        return item

    def launch_is_over(self, launch: Launch) -> None:
        """Note how the launch ended, and with it how far its output goes."""
        self._over = launch
        is_lost = launch.failure is not None and launch.failure.reason == "host_lost"
        if is_lost and launch.exit is None:  # else the host came back, and still has the output
            self.flowing = False
        self._settle()

    def give_up(self) -> None:
        """Wait no longer; raises OutputUnavailable where output is known to be missing."""
        self.flowing = False
        if self._over is not None and self._over.state is LaunchState.EXITED:
            raise OutputUnavailable

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _settle(self) -> None:
        """Compare what was seen with what there is."""
        if self._over is None or self._over.exit is None:
            return
        if self._seen >= self._over.exit.last_sequence:
            self.flowing = False
        elif not self.flowing and not self._whole and self._over.state is LaunchState.EXITED:
            raise CursorGone

    async def _read(self, record: LaunchRecord, after: int) -> None:
        pause = self._timings.retry_pause
        while True:
            host = self._launches.host_of(record)
            try:
                async with self._executions.watch(
                    host,
                    tenant=record.tenant,
                    execution_id=record.launch.execution_id,
                    after=after,
                ) as frames:
                    async for frame in frames:
                        pause = self._timings.retry_pause
                        match frame:
                            case OutputRecord() | OutputGap() if last_of(frame) > after:
                                after = last_of(frame)
                                await self._records.put(frame)
                            case Exit():
                                self._whole = True
                                await self._records.put(None)
                                return
            except OutOfRange:
                await self._records.put(CursorGone())
                return
            except NotFound:
                await self._records.put(None)
                return
            except (Unavailable, DeadlineExceeded, Internal) as away:
                _log.debug("output stream broke", extra={"reason": away.reason})
            except FairleadError as refused:
                await self._records.put(refused)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._timings.retry_pause_limit)


def last_of(output: OutputRecord | OutputGap) -> int:
    """Return the number of the last record that a piece of output or a gap stands for."""
    return output.sequence if isinstance(output, OutputRecord) else output.last_sequence
