"""The client's polls: a carrier through hops that pass only whole requests and whole answers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from fairlead_tunnel.carriers import ClientAttach, TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.endpoints import EndpointPool, Lease, Outcome
from fairlead_tunnel.handshake import AttachRefused, HandshakeInvalid
from fairlead_tunnel.http_posts import Answer
from fairlead_tunnel.outbox import SMALLEST_BATCH, Batch
from fairlead_tunnel.poll_pace import ACTIVE_HOLD, PollPace
from fairlead_tunnel.poll_posts import BODY_RESERVE, PollPosts, Posts
from fairlead_tunnel.poll_wire import (
    Ask,
    PollCut,
    PollInvalid,
    open_answer,
    request_head,
    seal_ask,
    seal_record,
)
from fairlead_tunnel.records import MAX_BATCH_BYTES, Opener, RecordInvalid, Sealer

POLL_REPLAYED: Final = "poll_replayed"
"""The gateway has had this poll, or much newer ones; its answer went elsewhere."""
POLL_CUT: Final = "poll_cut"
"""The end of this poll's body was missing when the gateway got it."""

_FULL: Final = 64 * 1024
_CLOSE_SECONDS: Final = 2.0
_LEAVE_SECONDS: Final = 60.0
"""By then the gateway has noticed by itself that nobody polls."""


class _Line:
    """What stands for all polls in the driver; they send, and this does not."""

    can_send = False
    takes_last = False
    most_bytes = MAX_BATCH_BYTES

    def __init__(self) -> None:
        self.hello = b""
        self.is_closing = False
        self.news = asyncio.Event()

    def greet(self, hello: bytes) -> None:
        """Keep the hello, which the first poll brings."""
        self.hello = hello

    def send(self, batch: Batch) -> None:
        """Send nothing: it never can."""

    def close(self) -> None:
        """End all polls after what was sent."""
        self.is_closing = True
        self.news.set()

    def abort(self) -> None:
        """End all polls."""
        self.close()


class _Request:
    """One poll while its batches are collected: it takes an endpoint with the first of them."""

    def __init__(self, carrier: PollCarrier, number: int) -> None:
        self._carrier = carrier
        self.number = number
        self.lease: Lease | None = None
        self.batches: list[bytes] = []
        self.size = 0
        self.is_posted = False
        self.is_answered = False
        self.reached = False
        """Whether a gateway may have got it."""

    @property
    def can_send(self) -> bool:
        """Say whether a batch may be added."""
        return not self.is_posted and self.most_bytes >= SMALLEST_BATCH

    @property
    def takes_last(self) -> bool:
        """Say whether the batch that ends the tunnel may be added."""
        return self.can_send

    @property
    def most_bytes(self) -> int:
        """How long that batch may be."""
        return min(self._carrier.room_for(self) - BODY_RESERVE - self.size, MAX_BATCH_BYTES)

    def send(self, batch: Batch) -> None:
        """Add a batch; what the tunnel has now goes with it."""
        self.batches.append(b"".join(batch.pieces))
        self.size += batch.size
        if len(self.batches) == 1:
            self._carrier.post_soon(self)

    def close(self) -> None:
        """Leave it to the carrier."""

    def abort(self) -> None:
        """Leave it to the carrier."""


class PollCarrier(ClientAttach):
    """All polls of one tunnel; `run` ends when the tunnel does, or the gateway knows it no more.

    It probes the endpoints of its pool for as long as it runs, by what `endpoints` and `poll_pace`
    say; everything here is I/O.
    """

    stream: _Line

    def __init__(
        self, *, driver: CarrierDriver, ticket: TunnelTicket, pool: EndpointPool, posts: Posts
    ) -> None:
        number, handshake = ticket.handshake()
        super().__init__(driver=driver, number=number, handshake=handshake)
        self.stream = _Line()
        self.pool = pool
        self._ticket = ticket
        self._pace = PollPace()
        self._posts = PollPosts(posts=posts, pace=self._pace)
        self._loop = asyncio.get_running_loop()
        self._head = request_head(ticket.tunnel_id, number)
        self._collecting: _Request | None = None
        self._polls: dict[asyncio.Task[Outcome], bool] = {}
        self._error: BaseException | None = None
        self._is_done = False
        self._is_retired = False

    def retire(self) -> None:
        """Poll no more, and tell the gateway by a last poll which answers nobody waits for."""
        self._is_retired = True
        self.stream.close()

    async def run(self) -> None:
        """Attach, and poll until the end; `ready` and `gone` tell how far it is.

        AttachRefused, HandshakeInvalid: the gateway ended it.
        """
        error: Exception | None = None
        try:
            self.begin()
            self._meet(await self._post_hello())
            await self._poll()
            if self._is_retired:
                await self._leave()
        except (AttachRefused, HandshakeInvalid) as refused:
            error = refused
            raise
        finally:
            self._collect_no_more()
            self.lost(error)

    async def _leave(self) -> None:
        """Post a last request until it is answered: what else the gateway has sent to polls, and
        did not arrive, it sends over another carrier then.
        """
        self._collect_no_more()
        async with asyncio.timeout(_LEAVE_SECONDS):
            while not self._driver.is_over:
                lease = await self._active_lease()
                request = _Request(self, self._ticket.next_number())
                request.lease = lease
                await asyncio.wait((self._start(request, lease, 0.0),))
                if request.is_answered or self._error is not None:
                    return

    def _collect_no_more(self) -> None:
        if self._collecting is not None:
            self._collecting.is_posted = True
            self._driver.detach(self._collecting.number)
            self._collecting = None

    async def _post_hello(self) -> bytes:
        """Post the hello until it is answered: the gateway gives the same answer to the same."""
        while True:
            lease = await self._active_lease()
            outcome, answer = Outcome.ABANDONED, None
            try:
                outcome, answer, _ = await self._posts.post(lease, self.stream.hello, hold=0.0)
            finally:
                self.pool.give_back(lease, outcome, self._loop.time())
            if answer is not None:
                self._pace.answered(
                    elapsed=answer.seconds, hold=0.0, is_empty=True, now=self._loop.time()
                )
                return answer.body

    async def _active_lease(self) -> Lease:
        while True:
            now = self._loop.time()
            lease = self.pool.take_active(now)
            if lease is not None:
                return lease
            await asyncio.sleep(max((self.pool.wake_at(now) or now) - now, 0.001))

    def _meet(self, answer: bytes) -> None:
        found = self.greet(answer)
        if found is None or found[1] != len(answer):
            raise HandshakeInvalid("an answer is cut short")
        keys = found[0]
        self._sealer = Sealer(suite=keys.suite, key=keys.send)
        self._opener = Opener(suite=keys.suite, key=keys.receive)
        self.opened()

    # Polls

    async def _poll(self) -> None:
        news = self.stream.news
        try:
            while not self.stream.is_closing:
                news.clear()
                self._collect()
                self._ask_when_idle()
                try:
                    async with asyncio.timeout_at(self._wake_at()):
                        await news.wait()
                except TimeoutError:
                    self._driver.flush_soon()
            await asyncio.sleep(0)  # what the tunnel said last is posted now
            telling = [task for task, is_idle in self._polls.items() if not is_idle]
            if telling and self._error is None:
                await asyncio.wait(telling, timeout=_CLOSE_SECONDS)
        finally:
            self._is_done = True
            polls = [*self._polls]
            for task in polls:
                task.cancel()
            if polls:
                await asyncio.wait(polls)
        if self._error is not None:
            raise self._error

    def _on_done(self, request: _Request, lease: Lease, task: asyncio.Task[Outcome]) -> None:
        """Free what a poll had, also where it was cancelled before it began, and end all polls with
        what went wrong in one beyond what an endpoint may do.
        """
        del self._polls[task]
        outcome = Outcome.ABANDONED
        if task.cancelled():
            pass
        elif (error := task.exception()) is not None:
            self._error = self._error or error
            self.stream.close()
        else:
            outcome = task.result()
        self._free(request, lease, outcome)
        self.stream.news.set()

    def _free(self, request: _Request, lease: Lease, outcome: Outcome) -> None:
        request.is_answered = outcome is Outcome.ANSWERED
        self.pool.give_back(lease, outcome, self._loop.time())
        self._driver.detach(request.number, heard=request.is_answered, reached=request.reached)

    def _wake_at(self) -> float | None:
        now = self._loop.time()
        times = [self.pool.wake_at(now), self._pace.idle_at()]
        return min((each for each in times if each is not None and each > now), default=None)

    def _collect(self) -> None:
        """Have a poll ready for what the tunnel will have to send."""
        if self._collecting is None and not (self.stream.is_closing or self._is_done):
            self._collecting = _Request(self, self._ticket.next_number())
            self._driver.attach(self._collecting.number, self._collecting)

    def _ask_when_idle(self) -> None:
        """Keep polls with the gateway, for what it will have to send."""
        now = self._loop.time()
        while now >= self._pace.idle_at() and (self._driver.channels or not self.pool.idle):
            lease = self.pool.take_idle(now)
            if lease is None:
                return
            request = _Request(self, self._ticket.next_number())
            request.lease = lease
            self._start(request, lease, self._pace.hold(now))

    def room_for(self, request: _Request) -> int:
        """Return how many bytes of batches a request may have, 0 when it cannot leave."""
        now = self._loop.time()
        if request.lease is not None:
            return request.lease.endpoint.up.at(now)
        return self.pool.room(now) if self.pool.can_take(now) else 0

    def post_soon(self, request: _Request) -> None:
        """Take an endpoint for a request that has its first batch, and post it after the others."""
        request.lease = self.pool.take_active(self._loop.time())
        self._loop.call_soon(self._post_collected, request)

    def _post_collected(self, request: _Request) -> None:
        self._collecting = None
        if request.lease is None:
            self._driver.detach(request.number)
        elif self._is_done:
            self._free(request, request.lease, Outcome.ABANDONED)
        else:
            self._pace.wake()
            is_full = request.most_bytes < _FULL
            self._start(request, request.lease, 0.0 if is_full else ACTIVE_HOLD)
        self._collect()

    def _start(self, request: _Request, lease: Lease, hold: float) -> asyncio.Task[Outcome]:
        request.is_posted = True
        last = self._driver.hello_batch(request.number, SMALLEST_BATCH)
        most = lease.endpoint.down.at(self._loop.time())
        records = [seal_record(self._sealer, each) for each in (*request.batches, last)]
        ask = Ask(request.number, round(hold * 1000), most, len(records))
        body = b"".join((self._head, seal_ask(self._sealer, ask), *records))
        task = self._loop.create_task(self._exchange(request, lease, body, hold))
        self._polls[task] = lease.is_idle
        task.add_done_callback(partial(self._on_done, request, lease))
        return task

    async def _exchange(self, request: _Request, lease: Lease, body: bytes, hold: float) -> Outcome:
        request.reached = True
        outcome, answer, request.reached = await self._posts.post(lease, body, hold=hold)
        return self._take(request, lease, answer, hold) if answer is not None else outcome

    def _take(self, request: _Request, lease: Lease, answer: Answer, hold: float) -> Outcome:
        now = self._loop.time()
        try:
            batches = open_answer(self._opener, answer.body, request.number)
        except PollCut:
            lease.endpoint.down.halve(len(answer.body), now)
            return Outcome.LOST
        except (PollInvalid, RecordInvalid):
            return Outcome.FOREIGN
        except AttachRefused as refused:
            if refused.reason == POLL_REPLAYED:
                return Outcome.LOST
            if refused.reason == POLL_CUT:
                lease.endpoint.up.halve(request.size, now)
                return Outcome.TOO_LARGE
            raise
        if request.size > lease.endpoint.up.at(now) // 2:
            lease.endpoint.losses = 0
        for batch in batches:
            self._driver.take(batch)
        self._pace.answered(
            elapsed=answer.seconds, hold=hold, is_empty=not batches, now=self._loop.time()
        )
        return Outcome.ANSWERED
