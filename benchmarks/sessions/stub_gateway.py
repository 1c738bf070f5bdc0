"""`python -m benchmarks.sessions.stub_gateway ADDRESS SECRET_FILE`: a gateway that answers every
offer at once, over the real wire, and connects to nobody. Prints a line when it is welcome, and for
each line on its input how many messages with candidates have come.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from benchmarks.sessions.program import own_input
from chassis.ids import random_id
from chassis.rpc_channel import open_channel
from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead.gateway.v1 import gateway_pb2_grpc as rpc

ANSWER = "\r\n".join(
    [
        "v=0",
        "o=- 1 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 0.0.0.0",
        "a=mid:0",
        "a=sctp-port:5000",
        "a=ice-ufrag:stub",
        "a=ice-pwd:of-the-stub-which-nobody-connects-to",
        "a=fingerprint:sha-256 " + ":".join(["00"] * 32),
        "a=setup:active",
        "a=candidate:1 1 udp 2130706431 127.0.0.1 9 typ host",
        "a=end-of-candidates",
        "",
    ]
)


class StubGateway:
    """One stream, and what came over it."""

    def __init__(self, *, stub: rpc.GatewayServiceAsyncStub) -> None:
        self._stream = stub.Synchronize()
        self.batches = 0

    async def serve(self) -> None:
        """Answer until the stream ends."""
        hello = pb.Hello(
            gateway_id=random_id("gtw"), capacity=1_000_000, workers_address="unix:/nowhere",
            can_trickle=True,
        )  # fmt: skip
        await self._stream.write(pb.SynchronizeRequest(hello=hello))
        held = 0
        while isinstance(response := await self._stream.read(), pb.SynchronizeResponse):
            match response.WhichOneof("message"):
                case "welcome":
                    sys.stdout.write("welcome\n")
                    sys.stdout.flush()
                    beating = asyncio.create_task(self._beat(response.welcome.heartbeat_seconds))
                case "wanted":
                    held += 1
                    await self._answer(response.wanted)
                case "candidates_given":
                    self.batches += 1
        beating.cancel()

    async def _answer(self, wanted: pb.SessionWanted) -> None:
        answered = pb.SessionAnswered(
            session_id=wanted.session_id, answer=ANSWER, round=wanted.round
        )
        await self._stream.write(pb.SynchronizeRequest(answered=answered))
        if "a=bench:idle" in wanted.offer:
            changed = pb.SessionChanged(session_id=wanted.session_id, connected=True)
            await self._stream.write(pb.SynchronizeRequest(changed=changed))

    async def _beat(self, seconds: int) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._stream.write(pb.SynchronizeRequest(heartbeat=pb.Heartbeat()))


async def main(address: str, secret: str) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    async with open_channel(address, tracer_provider=provider, secret=secret) as channel:
        gateway = StubGateway(stub=rpc.GatewayServiceStub(channel))
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(gateway.serve())
            asked = await own_input()
            while await asked.readline():
                sys.stdout.write(f"{gateway.batches}\n")
                sys.stdout.flush()
            serving.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_text().strip()))
