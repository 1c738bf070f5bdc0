"""A fault of the worker's own is a problem and a line in its log, and the terminal goes on."""

from __future__ import annotations

import json
import logging

import pytest

from fairlead_tunnel.byte_channel import Message
from fairlead_tunnel.conversation import Conversation
from sandbox_worker.execution_errors import ExecutionNotFound
from sandbox_worker.terminal_talks import TerminalTalks
from tests.fakes.execution_bench import Bench

pytestmark = pytest.mark.asyncio


class Talk(Conversation):
    """A conversation whose other side says what is scripted, and then ends."""

    def __init__(self, *heard: Message) -> None:
        self.heard = list(heard)
        self.said: list[Message] = []
        self.has_finished = False
        self.is_closed = False

    async def receive(self) -> Message | None:
        return self.heard.pop(0) if self.heard else None

    async def send(self, message: Message) -> None:
        self.said.append(message)

    def finish(self) -> None:
        self.has_finished = True

    def close(self) -> None:
        self.is_closed = True


async def reason_of(talks: TerminalTalks, *heard: Message) -> str:
    talk = Talk(*heard)
    await talks.hold(talk, tenant="t", execution_id="exe_a")
    assert talk.has_finished
    assert talk.is_closed
    assert talk.heard == []
    (said,) = talk.said
    return str(json.loads(said)["problem"]["reason"])


async def test_what_is_refused_is_the_last_message_and_the_rest_is_read() -> None:
    talks = TerminalTalks(executions=Bench().executions)
    assert await reason_of(talks) == "terminal_frame_invalid"
    assert await reason_of(talks, '{"type": "open"}', b"late") == "execution_not_found"
    with pytest.raises(ExecutionNotFound):
        talks.check(tenant="t", sandbox_id="sbx_a", execution_id="exe_a")


async def test_a_fault_says_nothing_of_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("secret")

    executions = Bench().executions
    monkeypatch.setattr(executions, "attach", fail)
    with caplog.at_level(logging.ERROR):
        assert await reason_of(TerminalTalks(executions=executions), '{"type": "open"}') == (
            "internal"
        )
    assert "terminal failed" in caplog.text
