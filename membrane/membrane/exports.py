"""Handle tables: what of ours the other side holds, and what of theirs is alive here.

A handle is released by count: each time it is sent the owner adds one, and a release says how many
were received, so that a release that meets another sending of the same handle on its way never
drops it.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable

from membrane.errors import ProtocolError

LARGEST_HANDLE = 1 << 53


class _Held:
    __slots__ = ("granted", "handle", "pinned", "sent", "value")

    def __init__(self, *, handle: int, value: object) -> None:
        self.handle = handle
        self.value = value
        self.sent = 0
        self.pinned = False
        self.granted = False


class Exports:
    """Hold the objects of this side that the other side has handles of; the same object has the
    same handle.

    Handles count up from 1 and are never used twice. Safe from any thread. Where it is `gated`,
    `get` knows only what was granted: the caller's side is, against a child that asks for what it
    was not given.
    """

    def __init__(self, *, gated: bool) -> None:
        self._gated = gated
        # Re-entrant: any allocation under it may collect garbage, whose finalizers may use a proxy.
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._by_handle: dict[int, _Held] = {}
        self._by_identity: dict[int, _Held] = {}

    def hold(self, value: object, *, pinned: bool = False, granted: bool = True) -> int:
        """Give the handle of an object that is about to be sent.

        A pinned one stays until the link ends. One that is not granted names a class in
        descriptions and nothing else: `get` does not know it, so that who got an object has not got
        its class.
        """
        with self._lock:
            held = self._by_identity.get(id(value))
            if held is None:
                held = _Held(handle=next(self._numbers), value=value)
                self._by_identity[id(value)] = held
                self._by_handle[held.handle] = held
            held.sent += 1
            held.pinned |= pinned
            held.granted |= granted
            return held.handle

    @property
    def held(self) -> dict[int, _Held]:
        """What is held by handle, to look into and nothing else."""
        return self._by_handle

    def get(self, handle: object) -> object:
        """Give the object of a handle; raise ProtocolError for one that was never sent or is
        released.
        """
        # A bool is an int to the dict: the type is asked for first.
        held = self._by_handle.get(handle) if type(handle) is int else None
        if held is None or (self._gated and not held.granted):
            raise ProtocolError(f"handle {handle!r} is unknown or released")
        return held.value

    def handle_of(self, value: object) -> int | None:
        """Give the handle that an object has now, without sending it."""
        held = self._by_identity.get(id(value))
        return None if held is None else held.handle

    def of_identity(self, identity: int) -> object | None:
        """Give the object with this `id`, if the other side holds it."""
        held = self._by_identity.get(identity)
        return None if held is None else held.value

    def is_granted(self, value: object) -> bool:
        """Say whether the other side has this very object already."""
        held = self._by_identity.get(id(value))
        return held is not None and held.granted

    def release(self, pairs: object) -> None:
        """Take back what the other side let go of: [handle, count, ...]; raise ProtocolError for
        nonsense.
        """
        if not isinstance(pairs, list) or len(pairs) % 2:
            raise ProtocolError("releases are pairs of a handle and a count")
        gone = []
        with self._lock:
            for place in range(0, len(pairs), 2):
                handle, count = pairs[place], pairs[place + 1]
                held = self._by_handle.get(handle) if type(handle) is int else None
                if held is None or type(count) is not int or not 0 < count <= held.sent:
                    raise ProtocolError(f"a release of handle {handle!r} does not match")
                held.sent -= count
                if not held.sent and not held.pinned:
                    del self._by_handle[handle]
                    del self._by_identity[id(held.value)]
                    gone.append(held)
        # Outside the lock: dropping an object may run its finalizer, which may come back here.
        gone.clear()

    def clear(self) -> None:
        """Let go of everything; the link has ended."""
        with self._lock:
            gone = list(self._by_handle.values())
            self._by_handle.clear()
            self._by_identity.clear()
        gone.clear()

    def __len__(self) -> int:
        return len(self._by_handle)


class _Seen(weakref.ref[object]):
    """A weak reference to a proxy that knows its handle and how often it was received."""

    __slots__ = ("handle", "received")

    handle: int
    received: int


class Imports:
    """Know the proxies of the other side's objects while they live: the same handle is the same
    proxy.

    A proxy that dies is noted in a deque and goes out with the next frame: its finalizer, which may
    run anywhere, takes no lock and writes to no socket.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._alive: dict[int, _Seen] = {}
        self.due: deque[_Seen | tuple[int, int]] = deque()
        """What `drain` has to tell of, proxies that died and releases put back; empty mostly."""

    def adopt(self, handle: int, make: Callable[[], object]) -> object:
        """Give the living proxy of a handle that came in, or the one that `make` builds; count the
        receipt.
        """
        with self._lock:
            seen = self._alive.get(handle)
            proxy = None if seen is None else seen()
            if seen is None or proxy is None:
                proxy = make()
                seen = _Seen(proxy, self.due.append)
                seen.handle = handle
                seen.received = 0
                self._alive[handle] = seen
            seen.received += 1
            return proxy

    def find(self, handle: int) -> object | None:
        """Give the living proxy of a handle, if there is one."""
        seen = self._alive.get(handle)
        return None if seen is None else seen()

    def forget(self, handle: int) -> None:
        """Release a handle though its proxy lives on, which must not be used with it any more."""
        with self._lock:
            seen = self._alive.pop(handle, None)
            if seen is not None:
                self.due.append((handle, seen.received))
                seen.received = 0

    def drain(self) -> list[int] | None:
        """Give the releases that are due, as [handle, count, ...], or None; they are the caller's
        to send.
        """
        if not self.due:
            return None
        due: list[int] = []
        with self._lock:
            while self.due:
                seen = self.due.popleft()
                if isinstance(seen, tuple):
                    due += seen
                    continue
                if seen.received:
                    due += (seen.handle, seen.received)
                if self._alive.get(seen.handle) is seen:
                    del self._alive[seen.handle]
        return due

    def __len__(self) -> int:
        return sum(1 for seen in list(self._alive.values()) if seen() is not None)
