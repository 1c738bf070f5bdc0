"""Terminals for the blocking client, call by call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from fairlead_sdk.loop_thread import LoopThread
from fairlead_sdk.records import Exit
from fairlead_sdk.terminals import AsyncPty, AsyncTerminal


class PtyTerminal:
    """An attachment to one terminal; see `AsyncTerminal`."""

    def __init__(self, *, loop: LoopThread, terminal: AsyncTerminal) -> None:
        self._loop = loop
        self._terminal = terminal

    @property
    def execution_id(self) -> str:
        """Id of the execution, by which it can be attached to again."""
        return self._terminal.execution_id

    def send(self, content: bytes) -> None:
        """Type; see `AsyncTerminal.send`."""
        self._loop.run(self._terminal.send(content))

    def resize(self, rows: int, columns: int) -> None:
        """Tell it how large it is shown now."""
        self._loop.run(self._terminal.resize(rows, columns))

    def output(self) -> Iterator[bytes]:
        """Give what the terminal shows, until its program has ended; see
        `AsyncTerminal.output`.
        """
        pieces = self._terminal.output()

        async def following() -> bytes | None:
            return await anext(pieces, None)

        try:
            while (piece := self._loop.run(following())) is not None:
                yield piece
        finally:
            self._loop.run(pieces.aclose())

    def wait(self) -> Exit:
        """Wait for the exit; what is shown until then, and was not read, is dropped."""
        return self._loop.run(self._terminal.wait())

    def kill(self) -> None:
        """Kill what runs on it."""
        self._loop.run(self._terminal.kill())

    def detach(self) -> None:
        """Let go of the terminal, after what was typed; again is harmless."""
        self._loop.run(self._terminal.detach())

    def __enter__(self) -> PtyTerminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.detach()


class Pty:
    """The terminals of one sandbox."""

    def __init__(self, *, loop: LoopThread, pty: AsyncPty) -> None:
        self._loop = loop
        self._pty = pty

    def create(
        self,
        command: str | Sequence[str] = "",
        *,
        rows: int = 24,
        columns: int = 80,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        timeout: float | None = None,
    ) -> PtyTerminal:
        """Run a command on a terminal and attach to it; see `AsyncPty.create`."""
        making = self._pty.create(
            command,
            rows=rows,
            columns=columns,
            environment=environment,
            directory=directory,
            timeout=timeout,
        )
        return PtyTerminal(loop=self._loop, terminal=self._loop.run(making))

    def attach(self, execution_id: str, *, take_over: bool = False) -> PtyTerminal:
        """Attach to a terminal that is there; see `AsyncPty.attach`."""
        attaching = self._pty.attach(execution_id, take_over=take_over)
        return PtyTerminal(loop=self._loop, terminal=self._loop.run(attaching))
