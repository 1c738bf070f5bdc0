"""A sandbox in which somebody sits is kept from running out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from fairlead_sdk import AsyncFairlead
from fairlead_sdk.cli.holding import hold
from tests.fakes import launch_documents as documents
from tests.fakes.scripted_door import Answer, Script, ScriptedTransport, problem

EXECUTION = f"/v1/executions/{documents.EXECUTION_ID}"
SANDBOX = f"/v1/sandboxes/{documents.SANDBOX_ID}"
LAUNCH = f"/v1/launches/{documents.LAUNCH_ID}"


def sandbox(minutes: float, launch_id: str) -> Answer:
    ends = datetime.now(UTC) + timedelta(minutes=minutes)
    return Answer(
        document={
            "sandbox_id": documents.SANDBOX_ID,
            "launch_id": launch_id,
            "expires_at": ends.isoformat(),
        }
    )


async def looked(script: Script, times: int) -> None:
    """Let it look so many times."""
    left = times

    async def sleep(seconds: float) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise asyncio.CancelledError

    transport = ScriptedTransport(script)
    async with AsyncFairlead(url="http://door", api_key="k", transport=transport) as client:
        with pytest.raises(asyncio.CancelledError):
            await hold(client, documents.EXECUTION_ID, sleep=sleep)


@pytest.mark.parametrize(
    ("launch_id", "path"), [("", SANDBOX), (documents.LAUNCH_ID, LAUNCH)], ids=["own", "launch"]
)
def test_it_renews_what_is_about_to_end(launch_id: str, path: str) -> None:
    script = (
        Script()
        .on("GET", EXECUTION, Answer(document=documents.execution()))
        .on("GET", SANDBOX, sandbox(5, launch_id))
        .on("POST", f"{path}/renew", Answer(document={}))
    )
    asyncio.run(looked(script, 2))
    assert len(script.asked("POST", f"{path}/renew")) == 2
    assert len(script.asked("GET", EXECUTION)) == 1


def test_it_leaves_alone_what_lasts_and_asks_again_after_a_failure() -> None:
    script = (
        Script()
        .on("GET", EXECUTION, Answer(document=documents.execution()))
        .on("GET", SANDBOX, sandbox(25, ""))
    )
    asyncio.run(looked(script, 2))
    assert not script.asked("POST", f"{SANDBOX}/renew")
    script.on("GET", SANDBOX, problem(404, "sandbox_not_found"))
    asyncio.run(looked(script, 2))
    assert len(script.asked("GET", SANDBOX)) == 4
