"""A journal against a list: whatever is written, dropped, lost, read and cut off in between."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandbox_worker.brief_work import LONGEST_SECONDS, REST_SECONDS, BriefWork
from sandbox_worker.execution import (
    Exit,
    ExitReason,
    Gap,
    GapReason,
    OutputRecord,
    Piece,
    Stream,
)
from sandbox_worker.execution_errors import CursorGone
from sandbox_worker.journals.encoding import FRAME_BYTES
from sandbox_worker.journals.file_journal import FileJournal
from sandbox_worker.journals.reader import FileReader
from sandbox_worker.journals.store import JournalStore
from tests.fakes.clock import FakeClock
from tests.fakes.journals import AT, Disk, execution, read_all

_BOUND = 8 * 200
_LARGEST = _BOUND // 8 - FRAME_BYTES

Written = tuple[Stream, bytes]


class JournalMachine(RuleBasedStateMachine):
    """The model is every record that was ever appended, in order, kept or not."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.executor = ThreadPoolExecutor(1)
        self.clock = FakeClock()
        self.work = BriefWork(executor=self.executor, clock=self.clock)
        self.folder = tempfile.TemporaryDirectory(prefix="flj-")
        self.root = Path(self.folder.name) / "journals"
        self.disk = Disk()
        self.execution = execution()
        self.store = self.reopened()
        self.journal: FileJournal = self.loop.run_until_complete(self.store.open(self.execution))
        self.written: list[Written] = []
        self.readers: list[tuple[FileReader, list[int]]] = []
        self.exit: Exit | None = None

    def reopened(self) -> JournalStore:
        return JournalStore(
            root=self.root, work=self.work, most_bytes=_BOUND, write=self.disk.write
        )

    def teardown(self) -> None:
        self.executor.shutdown()
        self.loop.close()
        self.folder.cleanup()

    @rule(seconds=st.sampled_from([LONGEST_SECONDS * 2, REST_SECONDS]))
    def wait_for_the_disk(self, seconds: float) -> None:
        self.loop.run_until_complete(self.work.run(lambda: self.clock.advance(seconds)))

    @precondition(lambda self: self.exit is None)
    @rule(
        pieces=st.lists(
            st.tuples(st.sampled_from(Stream), st.binary(min_size=1, max_size=_LARGEST)),
            min_size=1,
            max_size=4,
        )
    )
    def append(self, pieces: list[Written]) -> None:
        made = [Piece(stream=stream, content=content, written_at=1) for stream, content in pieces]
        self.loop.run_until_complete(self.journal.append(made))
        self.written += pieces

    @rule(room=st.integers(0, 400))
    def fill_the_disk(self, room: int) -> None:
        self.disk.room = room

    @rule()
    def free_the_disk(self) -> None:
        self.disk.room = 10**9

    @rule(most=st.integers(1, 300))
    def write_in_small_pieces(self, most: int) -> None:
        self.disk.most = most

    @precondition(lambda self: len(self.readers) < 4)
    @rule(data=st.data())
    def open_a_reader(self, data: st.DataObject) -> None:
        after = data.draw(st.integers(0, len(self.written)))
        # Only what was dropped or lost after a cursor is refused, and never all that is kept.
        with suppress(CursorGone) if after else nullcontext():
            self.readers.append((self.journal.reader(after), [after]))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read_on(self, data: st.DataObject) -> None:
        reader, place = data.draw(st.sampled_from(self.readers))
        output: Gap | Sequence[OutputRecord] | None = None
        with suppress(CursorGone) if place[0] else nullcontext():
            output = self.loop.run_until_complete(reader.read())
        if output is None:
            self.leave(reader)
            return
        self.check(output, place)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def close_a_reader(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(self.readers))[0])

    @precondition(lambda self: self.exit is None)
    @rule()
    def finish(self) -> None:
        exit_ = Exit(reason=ExitReason.EXITED, last_sequence=len(self.written), ended_at=AT, code=0)
        if self.loop.run_until_complete(self.journal.finish(exit_)):
            self.exit = exit_

    @rule(is_undone=st.booleans())
    def evict(self, is_undone: bool) -> None:
        """Let the oldest go; the process may be lost before the disk has done that."""
        if not self.journal.may_evict(newest=True):
            return
        before = {path: path.read_bytes() for path in self.root.glob("*.segment")}
        self.loop.run_until_complete(self.journal.evict(GapReason.EVICTED))
        if not is_undone:
            return
        for path, content in before.items():
            path.write_bytes(content)
        self.crash(0)

    @rule(torn=st.integers(0, 60))
    def crash(self, torn: int) -> None:
        """Lose the process; without an exit the newest segment may also lack its tail."""
        for reader, _ in list(self.readers):
            self.leave(reader)
        segments = sorted(self.root.glob("*.segment"))
        if self.exit is None and segments and segments[-1].stat().st_size:
            content = segments[-1].read_bytes()
            segments[-1].write_bytes(content[: max(0, len(content) - torn)])
        self.store = self.reopened()
        (kept,) = self.loop.run_until_complete(self.store.recover())
        assert isinstance(kept.journal, FileJournal)
        self.journal = kept.journal
        assert kept.execution.exit == self.exit
        if self.exit is None:
            # What came after the last whole record is not known to anybody any more.
            del self.written[self.journal.last_sequence :]
        assert self.journal.last_sequence == len(self.written)
        assert self.journal.size == sum(len(content) for _, content in self.written)

    @invariant()
    def it_is_bounded_and_whole(self) -> None:
        segments = list(self.root.glob("*.segment"))
        assert sum(path.stat().st_size for path in segments) <= _BOUND + _BOUND // 8
        if not hasattr(self, "written"):
            return
        place = [0]
        reader = self.journal.reader(0)
        for output in self.loop.run_until_complete(read_all(reader)):
            self.check(output if isinstance(output, Gap) else [output], place)
        reader.close()
        assert place == [len(self.written)]

    def leave(self, reader: FileReader) -> None:
        reader.close()
        self.readers = [each for each in self.readers if each[0] is not reader]

    def check(self, output: Gap | Sequence[OutputRecord], place: list[int]) -> None:
        """Compare what was read with what was written after a place, and move it on."""
        if isinstance(output, Gap):
            assert output.first == place[0] + 1
            missing = self.written[place[0] : output.last]
            assert output.size == sum(len(content) for _, content in missing)
            place[0] = output.last
            return
        for record in output:
            place[0] += 1
            assert record.sequence == place[0]
            assert (record.stream, record.content) == self.written[place[0] - 1]


JournalMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_journal_model = JournalMachine.TestCase
