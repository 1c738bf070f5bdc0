"""The lifetime of a stack in this process: from taking the state directory to leaving nothing,
whatever the signals.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from devstack.errors import INTERRUPTED, UNAVAILABLE, StackError
from devstack.rooms import Plan, Planner
from devstack.screen import Screen
from devstack.state import StateDirectory
from devstack.supervisor import Supervisor

Scenario = Callable[[Supervisor, Plan], Awaitable[int]]


class _Interrupts:
    """SIGINT, SIGTERM and SIGHUP: the first cancels what goes on, any during the stop makes it
    impatient.
    """

    def __init__(self, *, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._task = asyncio.current_task()
        self._is_stopping = False

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)

    def begin_stop(self) -> None:
        self._is_stopping = True

    def _on_signal(self) -> None:
        if self._is_stopping:
            self._supervisor.hurry()
        elif self._task:
            self._is_stopping = True
            self._task.cancel()


class AlreadyRunning(Exception):
    """Another supervisor holds the state directory."""


async def live(
    *, state: StateDirectory, planner: Planner, screen: Screen, scenario: Scenario
) -> int:
    """Start a stack, play `scenario` on it, stop it; return the scenario's exit status.

    130 when a signal came before the scenario had said anything else; AlreadyRunning when the
    directory is held.
    """
    supervisor = Supervisor(state=state, planner=planner, report=screen.report)
    interrupts = _Interrupts(supervisor=supervisor)
    interrupts.listen()
    try:
        if not state.acquire():
            raise AlreadyRunning
        try:
            return await _play(supervisor, screen, scenario)
        finally:
            interrupts.begin_stop()
            await supervisor.stop()
            state.release()
    except asyncio.CancelledError:
        return INTERRUPTED
    except StackError as error:
        screen.failure(error.text())
        return UNAVAILABLE


async def _play(supervisor: Supervisor, screen: Screen, scenario: Scenario) -> int:
    def announce(plan: Plan, redis: str) -> None:
        screen.table({"redis": redis, **{room.name: room.address for room in plan.rooms}})

    plan = await supervisor.start(announce)
    screen.close_table()
    return await scenario(supervisor, plan)
