"""Awaiting what lives on the other side: the request waits on a thread of its own, the event loop
goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING

from membrane.errors import UnsupportedUse
from membrane.forwarding import Bond, Forwarding, bond_of, handle_of
from membrane.frames import AWAIT

if TYPE_CHECKING:
    import asyncio

    from membrane.calls import CallOptions


class Awaiting:
    """The event loops of this side that wait for the other, so that its callbacks run where their
    callers are.
    """

    def __init__(self) -> None:
        self._loops: list[asyncio.AbstractEventLoop] = []

    def entered(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops.append(loop)

    def left(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops.remove(loop)

    def run(self, coroutine: Coroutine[object, object, object]) -> object:
        """Run a coroutine to its end: on the loop that waits, if one does, else on a fresh one."""
        import asyncio  # 40 ms that most children never need

        for loop in reversed(self._loops):
            if loop.is_running():
                return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
        return asyncio.run(coroutine)


async def on_a_thread(bond: Bond, call: Callable[[], object]) -> object:
    """Run a blocking request beside the event loop; a cancelled wait leaves it to end by itself."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def deliver(outcome: tuple[object, BaseException | None]) -> None:
        if not done.done():
            done.set_result(outcome)

    def run() -> None:
        outcome: tuple[object, BaseException | None]
        try:
            outcome = call(), None
        except BaseException as error:  # whatever it is, it belongs to who awaits
            outcome = None, error
        try:
            loop.call_soon_threadsafe(deliver, outcome)
        except RuntimeError:
            # The loop was closed: nobody awaits this any more.
            return

    loops = getattr(bond, "awaiting", None)
    if loops is not None:
        loops.entered(loop)
    try:
        start_thread(run)
        value, error = await done
    finally:
        if loops is not None:
            loops.left(loop)
    if error is not None:
        try:
            raise error
        finally:
            del error
    return value


def start_thread(run: Callable[[], None]) -> None:
    """Start a thread that does not keep the process from ending."""
    try:
        threading.Thread(target=run, name="membrane-await", daemon=True).start()
    except RuntimeError:
        # Sub-interpreters refuse daemon threads.
        threading.Thread(target=run, name="membrane-await").start()


async def await_call(
    owner: object,
    bond: Bond,
    handle: int,
    name: str,
    extra: object,
    values: Sequence[object],
    options: CallOptions | None = None,
) -> object:
    """Call a coroutine function of the other side and await it there: one round trip.

    `owner` is the proxy whose handle it is: its object is not released before it is awaited.
    """
    try:
        return await on_a_thread(
            bond, lambda: bond.request(AWAIT, handle, name, extra, values, options)[1][0]
        )
    finally:
        del owner


def await_operator(value: Forwarding, name: str, operands: tuple[object, ...]) -> object:
    """Give what Python's awaiting operators are to give: an iterator for `__await__`, else an
    awaitable.
    """
    bond = bond_of(value)
    if bond is None:
        raise UnsupportedUse(f"{name} of a class of the other side works on its own objects only")
    if name == "__await__":
        return _await(bond, value)
    return await_call(value, bond, handle_of(value), name, None, operands)


def _await(bond: Bond, value: Forwarding) -> Generator[object, None, object]:
    return (yield from await_call(value, bond, handle_of(value), "", None, ()).__await__())
