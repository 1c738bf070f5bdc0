"""Lanes on which threads of the child ask, which its code started by itself."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from membrane.errors import ChildLost, ProtocolError
from membrane.frames import LENT
from membrane.framing import LaneLost
from membrane.packets import pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from membrane.lane import Lane
    from membrane.service import Service

MOST_LENT = 16
"""Such lanes of one child at a time: each takes a thread here."""


class Lending:
    """The lanes that a link lends; one thread of the service serves each."""

    def __init__(
        self,
        *,
        tell: Callable[[bytes, socket.socket | None], None],
        admit: Callable[[int, socket.socket], Lane],
        end: Callable[[str], None],
        drop: Callable[[Lane], None],
        service: Service,
    ) -> None:
        """`tell` writes to control, `admit` makes and `drop` forgets a lane of the link, and `end`
        ends that.
        """
        self._tell = tell
        self._admit = admit
        self._end = end
        self._drop = drop
        self._service = service
        self._lent = 0

    def lend(self, ticket: int) -> None:
        """Serve a thread of the child on a lane and a thread of its own; refuse it where there are
        many, and in sub-interpreters, which have no threads.
        """
        near, far = socket.socketpair()
        is_lent = self._lent < MOST_LENT and not self._service.is_threadless
        try:
            with far:
                self._tell(pack(LENT, ticket), far if is_lent else None)
        except OSError:
            near.close()
            self._end("the child does not read what it is told")
            return
        if not is_lent:
            near.close()
            return
        try:
            lane = self._admit(-ticket, near)
        except ChildLost:
            return
        self._lent += 1
        self._service.run(lambda: self._serve(lane))

    def _serve(self, lane: Lane) -> None:
        try:
            lane.serve()
        except LaneLost:
            return
        except ProtocolError as error:
            self._end(f"the child broke the protocol: {error}")
        finally:
            self._lent -= 1
            self._drop(lane)
