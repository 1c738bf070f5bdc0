"""`make bench NAME=relay`: bytes, opens and pings through tunnels, ours and those of others in the
same run, GooseRelayVPN too when `GOOSE_PATH` names a checkout of it; every byte is checked where it
arrives.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from benchmarks.recording import Recording
from benchmarks.relay import bulk, far, goose, held, idle, polls
from benchmarks.relay.load import loaded
from benchmarks.relay.ours import our_stack, pumps
from benchmarks.relay.peers import installed


async def measured(recording: Recording) -> None:
    """Measure all tunnels in turns."""
    others = installed(recording.notes)
    async with loaded() as load, AsyncExitStack() as stacks:
        ours = [
            (await stacks.enter_async_context(our_stack(load.target, pump=pump))).peer
            for pump in pumps()
        ]
        found = await bulk.measure(load, [*ours, *others])
        bulk.report(recording, found, [peer.name for peer in ours])
    async with loaded() as load:
        await idle.of_gateways(recording, load)
        await polls.through_the_hop(recording, load)
        await held.opens(recording, load)
        await goose.beside_goose(recording, load)


def main() -> None:
    recording = Recording(name="relay", runs=bulk.ROUNDS)
    asyncio.run(measured(recording))
    asyncio.run(far.over_the_link(recording))
    recording.notes.append(
        "ours are `fairlead forward` to a host that the gateway dials, on a whole stack;"
        " cpu_s_per_gib is that of client and gateway, without the load tool's"
    )
    recording.write()


if __name__ == "__main__":
    main()
