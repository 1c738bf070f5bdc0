"""What is open by which API key, so that the end of a key ends it: requests, streams, WebSockets,
calls over gRPC, and the sessions that were opened with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

from chassis.errors import FairleadError
from signalling.api_keys import ApiKeys, KeyEnded, KeyRecord

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""How often the keys are looked at: well within the second in which a revocation holds."""
_WRITE_LOOKS = 120
"""The looks between two times that the last uses are written: half a minute."""


class _Call:
    """A task that serves a call."""

    __slots__ = ("has_ended", "task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.has_ended = False


class OpenCalls:
    """The calls of this process by the id of their key."""

    def __init__(self) -> None:
        self._calls: dict[str, set[_Call]] = {}

    @contextmanager
    def held(self, key_id: str) -> Iterator[None]:
        """Hold a call open for the calling task: when its key ends, what is in the block is
        cancelled, and KeyEnded is raised.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - calls are served in tasks
        call = _Call(task)
        calls = self._calls.setdefault(key_id, set())
        calls.add(call)
        try:
            yield
        except asyncio.CancelledError:
            if call.has_ended and task.uncancel() == 0:
                raise KeyEnded from None
            raise
        finally:
            calls.discard(call)
            if not calls and self._calls.get(key_id) is calls:
                del self._calls[key_id]

    @property
    def key_ids(self) -> frozenset[str]:
        """The keys that have open calls."""
        return frozenset(self._calls)

    def end(self, key_id: str) -> None:
        """End all calls of a key."""
        for call in self._calls.pop(key_id, set()):
            call.has_ended = True
            call.task.cancel()


class KeyWatch:
    """Notices within a second that a key has ended, in whichever process, and ends what it opened.

    `end_sessions` closes the sessions of a key's tenant that were opened with the key.
    """

    def __init__(
        self,
        *,
        keys: ApiKeys,
        calls: OpenCalls,
        end_sessions: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._keys = keys
        self._calls = calls
        self._end_sessions = end_sessions
        self._good: dict[str, KeyRecord] = {}
        self._waiting: dict[str, KeyRecord] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look at the keys in the block; what is known of their use is written at its end."""
        running = asyncio.create_task(self.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.write_uses()

    async def run(self) -> None:
        """Look at the keys until cancelled."""
        # What ended while no process looked has sessions that are still open.
        now = datetime.now(UTC)
        self._waiting = {each.key_id: each for each in self._keys.records() if each.has_ended(now)}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._end_sessions_again_and_again())
            looks = 0
            while True:
                self.look()
                looks += 1
                if looks % _WRITE_LOOKS == 0:
                    self.write_uses()
                await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """End the calls of keys that have ended since the last look."""
        now = datetime.now(UTC)
        good = {each.key_id: each for each in self._keys.records() if not each.has_ended(now)}
        for key_id in self._calls.key_ids - good.keys():
            self._calls.end(key_id)
        for key_id in self._good.keys() - good.keys():
            log.info("API key has ended", extra={"key_id": key_id})
            self._waiting[key_id] = self._good[key_id]
        self._good = good

    async def end_sessions(self) -> None:
        """Close the sessions of keys that have ended; what fails is tried again."""
        for key_id, record in list(self._waiting.items()):
            try:
                await self._end_sessions(record.tenant, key_id)
            except FairleadError as error:
                extra = {"key_id": key_id, "reason": error.reason}
                log.warning("sessions of an ended API key are still open", extra=extra)
                return
            self._waiting.pop(key_id, None)

    async def _end_sessions_again_and_again(self) -> None:
        while True:
            await self.end_sessions()
            await asyncio.sleep(LOOK_SECONDS)

    def write_uses(self) -> None:
        """Write down when keys were used last; a disk that does not take it costs that alone."""
        try:
            self._keys.write_uses()
        except OSError:
            log.warning("the last uses of API keys were not written", exc_info=True)
