"""Sentences of a tunnel that flaps are counted, and the newest one is said in the end."""

from __future__ import annotations

import asyncio

from fairlead_sdk.cli.tunnelled import Notices
from tests.fakes.virtual_time import run


def test_hundreds_of_sentences_become_some_and_end_with_the_newest() -> None:
    said: list[str] = []

    async def flap() -> None:
        notices = Notices(said.append, clock=asyncio.get_running_loop().time)
        for number in range(600):
            notices.say(f"sentence {number}.")
            await asyncio.sleep(0.05)
        await asyncio.sleep(60)
        notices.say("afterwards.")

    run(flap())
    assert said[:8] == [f"sentence {number}." for number in range(8)]
    assert len(said) < 30
    assert said[-2].startswith("sentence 599. (")
    assert said[-1] == "afterwards."
