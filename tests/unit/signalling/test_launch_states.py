"""The state diagram of a launch, and its life under random orders: one terminal event, nothing
left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chassis.errors import Unavailable
from signalling.execution import Exit, ExitReason
from signalling.launch import Failure, ImpossibleTransition, Launch, LaunchState
from signalling.launch_errors import LaunchNotFound, LaunchNotHeld
from tests.fakes.launch_room import OFFER, TENANT, World, ends, request, sequences
from tests.fakes.virtual_time import run, settle

NOW = datetime(2026, 11, 21, tzinfo=UTC)
EXIT = Exit(ExitReason.EXITED, 0, None, 0, NOW)


class Diagram(RuleBasedStateMachine):
    """Applies every transition in every state and knows which of them the diagram has."""

    def __init__(self) -> None:
        super().__init__()
        self.launch = Launch(
            launch_id="lch_x",
            state=LaunchState.REQUESTED,
            created_at=NOW,
            project="p",
            commit="c",
            branch="",
            arguments=(),
            keep=False,
            trace_id="",
            expires_at=NOW,
        )
        self.ends = 0

    def _go(self, allowed: bool, to: LaunchState) -> None:
        changes: dict[LaunchState, Callable[[], Launch]] = {
            LaunchState.PROVISIONED: lambda: self.launch.provisioned(),
            LaunchState.RUNNING: lambda: self.launch.started("exe"),
            LaunchState.EXITED: lambda: self.launch.exited(EXIT, NOW),
            LaunchState.FAILED: lambda: self.launch.failed(Failure(None, "r", "m"), NOW),
            LaunchState.CANCELLED: lambda: self.launch.cancelled(NOW),
        }
        change = changes[to]
        if not allowed:
            with pytest.raises(ImpossibleTransition):
                change()
            return
        self.launch = change()
        assert self.launch.state is to
        self.ends += to.terminal

    @rule()
    def provision(self) -> None:
        self._go(self.launch.state is LaunchState.REQUESTED, LaunchState.PROVISIONED)

    @rule()
    def start(self) -> None:
        self._go(self.launch.state is LaunchState.REQUESTED, LaunchState.RUNNING)

    @rule()
    def end_command(self) -> None:
        self._go(self.launch.state is LaunchState.RUNNING, LaunchState.EXITED)

    @rule()
    def fail(self) -> None:
        self._go(not self.launch.state.terminal, LaunchState.FAILED)

    @rule()
    def cancel(self) -> None:
        self._go(not self.launch.state.terminal, LaunchState.CANCELLED)

    @rule()
    def make(self) -> None:
        made = self.launch.workspace_made("wsp", commit="a" * 40, branch="main")
        self.launch = made.sandbox_made("sbx", "process")

    @precondition(lambda self: self.launch.released_at is None)
    @rule()
    def release(self) -> None:
        self.launch = self.launch.released(NOW)

    @rule()
    def release_again(self) -> None:
        if self.launch.released_at is not None:
            assert self.launch.released(NOW + timedelta(days=1)) is self.launch

    @invariant()
    def is_consistent(self) -> None:
        launch = self.launch
        assert (launch.ended_at is not None) == launch.state.terminal
        assert self.ends <= 1
        assert (launch.exit is not None) == (launch.state is LaunchState.EXITED)
        assert (launch.failure is not None) == (launch.state is LaunchState.FAILED)
        assert launch.finished == (launch.state.terminal and launch.released_at is not None)
        assert not (launch.held and launch.released_at)
        assert (launch.expires_at is None) == (launch.released_at is not None)


TestDiagram = Diagram.TestCase


ORDERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "exit", "cut", "cancel", "renew", "store away", "store back", "lose", "wait"]
        ),
        st.integers(0, 40),
    ),
    max_size=12,
)


@given(
    orders=ORDERS,
    keep=st.booleans(),
    command=st.booleans(),
    offer=st.booleans(),
    broken=st.sampled_from(["", "sandboxes.bind:after", "channels.answer:after"]),
)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_a_launch_ends_once_and_leaves_nothing(
    orders: list[tuple[str, int]], keep: bool, command: bool, offer: bool, broken: str
) -> None:
    async def scenario() -> None:
        world = World()
        if broken:
            world.faults.refuse(broken, Unavailable("It is away.", reason="away"))
        changes: dict[str, object] = {"keep": keep, "offer": OFFER if offer else ""}
        if not command:
            changes["command"] = None
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(**changes), None)
            watching = asyncio.ensure_future(room.watch(launch.launch_id))
            written, lost = 0, False

            async def cancel() -> None:
                """Cancel; an ended launch may be forgotten where the store lost everything."""
                with suppress(*((LaunchNotFound,) if lost else ()), Unavailable):
                    await room.launcher.cancel(TENANT, launch.launch_id)

            for order, turns in orders:
                await settle(turns)
                running = [
                    (execution_id, program)
                    for execution_id, program in world.worker.programs.items()
                    if program.execution.exit is None
                ]
                match order:
                    case "write" if running:
                        world.worker.write(running[0][0], b"x")
                        written += 1
                    case "exit" if running:
                        world.worker.finish(running[0][0])
                    case "cut":
                        world.worker.cut_streams()
                    case "cancel":
                        await cancel()
                    case "renew":
                        with suppress(LaunchNotHeld, LaunchNotFound, Unavailable):
                            await room.launcher.renew(TENANT, launch.launch_id, None)
                    case "store away":
                        world.store.away = True
                    case "store back":
                        world.store.away = False
                    case "lose":
                        world.store.lose()
                        lost = True
                    case "wait":
                        await asyncio.sleep(turns)
            world.store.away = False
            await cancel()
            events = await watching
            assert ends(events) == 1
            assert events[-1].terminal
            outputs = sequences(events)
            assert outputs == list(range(1, written + 1))
            assert world.leftovers == []
        stored = await world.store.get(TENANT, launch.launch_id)
        assert stored is None or stored.launch.finished

    run(scenario())
