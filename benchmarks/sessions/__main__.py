"""`make bench NAME=sessions`: negotiations, open connections, what idle sessions take, and bytes
through data channels, with pion, node-datachannel and aiortc in the same run.
"""

from __future__ import annotations

import asyncio

from benchmarks.local_stack import local_stack
from benchmarks.recording import Recording
from benchmarks.sessions import channels, front, spans, whole


async def through_a_stack(recording: Recording) -> None:
    """Measure what signalling and a gateway have part in."""
    # A gateway that is stopped is lost after three heartbeats.
    with local_stack(FAIRLEAD_SIGNALLING_GATEWAY_HEARTBEAT_SECONDS="1") as stack:
        async with whole.held_launch(stack) as launch:
            await whole.on_loopback(recording, stack, launch.launch_id)
            await whole.over_the_link(recording, stack, launch.launch_id)
            await front.with_stub(recording, stack, launch.launch_id)


def main() -> None:
    recording = Recording(name="sessions", runs=whole.SESSIONS)
    asyncio.run(through_a_stack(recording))
    asyncio.run(spans.sampling_off(recording))
    asyncio.run(channels.in_turns(recording))
    recording.notes.append(
        "the gateway's core is the native one where it is built; the figures of channels are those"
        " of one channel between two processes, hashed where the bytes arrive, without a mesh"
    )
    recording.write()


if __name__ == "__main__":
    main()
