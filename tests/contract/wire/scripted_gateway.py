"""A gateway at the other end of its stream, which says what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc

from fairlead.gateway.v1 import gateway_pb2 as gateway
from signalling.tunnel import TunnelTerms
from tests.fakes.sessions import ANSWER, MEETING

GATEWAY = "gtw_" + "a" * 26
Stream = grpc.aio.StreamStreamCall[gateway.SynchronizeRequest, gateway.SynchronizeResponse]


class ScriptedGateway:
    """A gateway that says what a test tells it to."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    async def say(self, request: gateway.SynchronizeRequest) -> None:
        await self.stream.write(request)

    async def next(self) -> gateway.SynchronizeResponse:
        response = await asyncio.wait_for(self.stream.read(), 60)
        assert isinstance(response, gateway.SynchronizeResponse), "the stream has ended"
        return response

    async def hello(
        self,
        *held: str,
        capacity: int = 0,
        can_trickle: bool = False,
        tunnel: TunnelTerms | None = None,
        ended: Sequence[gateway.SessionChanged] = (),
    ) -> gateway.Welcome:
        hello = gateway.Hello(
            gateway_id=GATEWAY,
            session_ids=held,
            capacity=capacity,
            workers_address=MEETING.address,
            can_trickle=can_trickle,
            ended=ended,
        )
        if tunnel is not None:
            hello.tunnel.CopyFrom(
                gateway.TunnelTerms(
                    public_key=tunnel.public_key,
                    ticket_secret=tunnel.ticket_secret,
                    urls=tunnel.urls,
                )
            )
        await self.say(gateway.SynchronizeRequest(hello=hello))
        return (await self.next()).welcome

    async def answer(self, session_id: str) -> None:
        answered = gateway.SessionAnswered(session_id=session_id, answer=ANSWER)
        await self.say(gateway.SynchronizeRequest(answered=answered))

    async def change(self, session_id: str, *, connected: bool, reason: str = "") -> None:
        changed = gateway.SessionChanged(
            session_id=session_id, connected=connected, close_reason=reason
        )
        await self.say(gateway.SynchronizeRequest(changed=changed))

    async def port(self, session_id: str, number: int, port: int = 8080) -> gateway.PortGranted:
        wanted = gateway.PortWanted(
            request_id=number,
            session_id=session_id,
            port=port,
            traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
            ticket=MEETING.ticket,
        )
        await self.say(gateway.SynchronizeRequest(port_wanted=wanted))
        granted = (await self.next()).port_granted
        assert granted.request_id == number
        return granted
