"""Sessions and gateway registrations in Redis.

`fairlead:session:<id>` is a hash of version and record, with a time to live; sets index the
sessions that are not closed by gateway and by launch. One sorted set more, by tenant, is written
only when a session begins or ends, and therefore has no time to live. A write is one Lua script, so
that version, record, indexes and the notice to the other replicas go together. What is to be
written while Redis writes goes into the next script, all of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from redis.asyncio import Redis

from chassis.errors import Unavailable
from chassis.redis_client import redis_errors
from signalling.gateway import Gateway
from signalling.launch_errors import LaunchNotHeld
from signalling.session import Session
from signalling.session_ports import Notice
from signalling.session_records import session_of, session_text
from signalling.tunnel import TunnelTerms

CHANGES = "fairlead:session:changes"
"""The channel on which changes are told, as `origin session gateway`, with a session and a gateway
more for each further change of the same script.
"""

_READ_SECONDS = 10.0
_GATEWAYS = "fairlead:gateways"
_LAUNCH_HAS_ENDED = 2
_MOST_WRITES = 64
"""How many records one script writes at most: nobody else is served for a few milliseconds."""

# For each record answers 1 when it wrote, 2 for the first one of a session whose launch has ended.
# A retried write whose first answer was lost finds its own record and answers 1 as well.
_SAVE = """
local told = ''
local function save(keys, version, record, ttl, name, gateway, restore, closed)
  local stored = redis.call('HMGET', keys[1], 'version', 'record')
  if stored[1] then
    if stored[1] == version and stored[2] == record then return 1 end
    if tonumber(stored[1]) ~= tonumber(version) - 1 then return 0 end
  elseif version == '1' then
    if redis.call('EXISTS', keys[5]) == 1 then return 2 end
  elseif restore ~= '1' then
    return 0
  end
  redis.call('HSET', keys[1], 'version', version, 'record', record)
  redis.call('PEXPIRE', keys[1], ttl)
  for i = 2, 3 do
    if closed == '1' then
      redis.call('SREM', keys[i], name)
    else
      redis.call('SADD', keys[i], name)
      redis.call('PEXPIRE', keys[i], math.max(tonumber(ttl), redis.call('PTTL', keys[i])))
    end
  end
  if closed == '1' then
    redis.call('ZREM', keys[4], name)
  elseif not stored[1] then
    redis.call('ZADD', keys[4], 0, name)
  end
  told = told .. ' ' .. name .. ' ' .. gateway
  return 1
end
local answers = {}
for i = 1, #KEYS / 5 do
  answers[i] = save({unpack(KEYS, 5 * i - 4, 5 * i)}, unpack(ARGV, 7 * i - 4, 7 * i + 2))
end
if told ~= '' then redis.call('PUBLISH', ARGV[1], ARGV[2] .. told) end
return answers
"""

# KEYS[1] is the index of a tenant. What has expired without a word leaves it.
_FORGET = """
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then redis.call('ZREM', KEYS[1], ARGV[i - 1]) end
end
"""


@dataclass(frozen=True, slots=True)
class _Write:
    """A record to be written: what the script needs of it, and who waits for the answer."""

    keys: Sequence[str]
    args: Sequence[str]
    answer: asyncio.Future[int]


class RedisSessions:
    """The store of session records; `origin` names this replica in what it tells the others."""

    def __init__(self, *, redis: Redis, origin: str) -> None:
        self._redis = redis
        self._origin = origin
        self._save = redis.register_script(_SAVE)
        self._forget = redis.register_script(_FORGET)
        self._waiting: deque[_Write] = deque()  # one for each caller: no more than are served
        self._writing: asyncio.Task[None] | None = None

    async def get(self, session_id: str) -> Session | None:
        """Return the record, or None when there is none (any more)."""
        with redis_errors():
            text = await cast(
                "Awaitable[str | None]", self._redis.hget(_session_key(session_id), "record")
            )
        return None if text is None else session_of(text)

    async def get_many(self, session_ids: Sequence[str]) -> Sequence[Session]:
        """Return the records that there are, in one round trip."""
        if not session_ids:
            return []
        with redis_errors():
            pipeline = self._redis.pipeline(transaction=False)
            for session_id in session_ids:
                pipeline.hget(_session_key(session_id), "record")
            texts = await pipeline.execute()
        return [session_of(text) for text in texts if text is not None]

    async def save(self, session: Session, *, ttl_seconds: float, restore: bool = False) -> bool:
        """Write a record if the stored one is its predecessor, and say whether that was so."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        keys = (
            _session_key(session.session_id),
            _gateway_sessions_key(session.gateway_id),
            _launch_sessions_key(session.launch_id),
            _tenant_sessions_key(session.tenant),
            _launch_ended_key(session.launch_id),
        )
        args = (
            str(session.version),
            session_text(session),
            str(max(1, int(ttl_seconds * 1000))),
            session.session_id,
            session.gateway_id,
            "1" if restore else "0",
            "1" if session.is_closed else "0",
        )
        self._waiting.append(_Write(keys, args, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        written = await answer
        if written == _LAUNCH_HAS_ENDED:
            raise LaunchNotHeld(session.launch_id)
        return written == 1

    async def _write(self) -> None:
        """Write until nothing waits; the record of a caller who has left is written as well."""
        while self._waiting:
            count = min(len(self._waiting), _MOST_WRITES)
            await self._write_together([self._waiting.popleft() for _ in range(count)])
        self._writing = None

    async def _write_together(self, writes: Sequence[_Write]) -> None:
        try:
            with redis_errors():
                answers = await cast(
                    "Awaitable[list[int]]",
                    self._save(
                        keys=[key for write in writes for key in write.keys],
                        args=[
                            CHANGES,
                            self._origin,
                            *(arg for each in writes for arg in each.args),
                        ],
                    ),
                )
        except Exception as error:
            # Who came meanwhile has waited for the same Redis, and is not kept for another try.
            others = tuple(self._waiting) if isinstance(error, Unavailable) else ()
            if others:
                self._waiting.clear()
            for write in (*writes, *others):
                if not write.answer.done():
                    write.answer.set_exception(error)
            return
        for write, answer in zip(writes, answers, strict=True):
            if not write.answer.done():
                write.answer.set_result(answer)

    async def end_launch(self, launch_id: str, *, remembered_seconds: float) -> None:
        """Let nobody open another session of a launch from now on."""
        with redis_errors():
            await self._redis.set(
                _launch_ended_key(launch_id), "1", px=int(remembered_seconds * 1000)
            )

    async def of_gateway(self, gateway_id: str) -> Sequence[Session]:
        """Return the sessions of a gateway that are not closed, by id."""
        return await self._of(_gateway_sessions_key(gateway_id))

    async def of_launch(self, launch_id: str) -> Sequence[Session]:
        """Return the sessions of a launch that are not closed, by id."""
        return await self._of(_launch_sessions_key(launch_id))

    async def of_tenant(
        self, tenant: str, *, after: str, size: int
    ) -> tuple[Sequence[Session], str]:
        """Return sessions of a tenant that are not closed, by id, and the id to go on after."""
        index = _tenant_sessions_key(tenant)
        with redis_errors():
            least = f"({after}" if after else "-"
            ids = await cast(
                "Awaitable[list[str]]",
                self._redis.zrangebylex(index, least, "+", start=0, num=size + 1),
            )
        page = ids[:size]
        found = await self.get_many(page)
        gone = sorted(set(page) - {session.session_id for session in found})
        if gone:
            with redis_errors():
                keys = (index, *(_session_key(session_id) for session_id in gone))
                await cast("Awaitable[object]", self._forget(keys=keys, args=gone))
        following = page[-1] if len(ids) > size else ""
        return [session for session in found if not session.is_closed], following

    async def _of(self, index: str) -> Sequence[Session]:
        with redis_errors():
            ids = sorted(await cast("Awaitable[set[str]]", self._redis.smembers(index)))
        return [session for session in await self.get_many(ids) if not session.is_closed]

    async def changes(self) -> AsyncGenerator[Sequence[Notice] | None, None]:
        """Yield what other replicas changed; None whenever the subscription is made (anew), as what
        was said before is unknown.

        Subscribing and reading are one task's: the connection has one user at a time.
        """
        with redis_errors():
            async with self._redis.pubsub() as channel:
                await channel.subscribe(CHANGES)
                while True:
                    message = await channel.get_message(timeout=_READ_SECONDS)
                    batch: list[Notice] = []
                    while message is not None:
                        if message["type"] == "subscribe":
                            yield None
                        elif not message["data"].startswith(self._origin):
                            told = message["data"].split(" ")[1:]
                            batch.extend(map(Notice, told[::2], told[1::2]))
                        message = await channel.get_message(timeout=0)
                    if batch:
                        yield batch


class RedisGateways:
    """The registrations of gateways: `fairlead:gateway:<id>`, each with a lease, and an index."""

    def __init__(self, *, redis: Redis, lease_seconds: int) -> None:
        self._redis = redis
        self._lease_seconds = lease_seconds

    async def put(self, gateway: Gateway) -> None:
        """Register a gateway or renew its lease."""
        record = _gateway_text(gateway)
        with redis_errors():
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.sadd(_GATEWAYS, gateway.gateway_id)
            pipeline.expire(_GATEWAYS, self._lease_seconds)
            pipeline.set(_gateway_key(gateway.gateway_id), record, ex=self._lease_seconds)
            await pipeline.execute()

    async def remove(self, gateway_id: str) -> None:
        """Forget a gateway; an unknown one is no error."""
        with redis_errors():
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.srem(_GATEWAYS, gateway_id)
            pipeline.delete(_gateway_key(gateway_id))
            await pipeline.execute()

    async def list(self) -> Sequence[Gateway]:
        """Return the registered gateways, by id; those whose lease has run out leave the index."""
        with redis_errors():
            ids = sorted(await cast("Awaitable[set[str]]", self._redis.smembers(_GATEWAYS)))
            texts = await self._redis.mget([_gateway_key(name) for name in ids]) if ids else []
            gone = [name for name, text in zip(ids, texts, strict=True) if text is None]
            if gone:
                await self._redis.srem(_GATEWAYS, *gone)
        return [_gateway(str(text)) for text in texts if text is not None]


def _session_key(session_id: str) -> str:
    return f"fairlead:session:{session_id}"


def _gateway_key(gateway_id: str) -> str:
    return f"fairlead:gateway:{gateway_id}"


def _gateway_sessions_key(gateway_id: str) -> str:
    return f"fairlead:gateway-sessions:{gateway_id}"


def _launch_sessions_key(launch_id: str) -> str:
    return f"fairlead:launch-sessions:{launch_id}"


def _launch_ended_key(launch_id: str) -> str:
    return f"fairlead:launch-ended:{launch_id}"


def _tenant_sessions_key(tenant: str) -> str:
    return f"fairlead:tenant-sessions:{tenant}"


def _gateway_text(gateway: Gateway) -> str:
    terms = gateway.tunnel
    record: dict[str, object] = {
        "gateway_id": gateway.gateway_id,
        "connected_at": gateway.connected_at.isoformat(),
        "capacity": gateway.capacity,
        "sessions": gateway.sessions,
        "channels": gateway.channels,
        "draining": gateway.draining,
        "can_trickle": gateway.can_trickle,
    }
    if terms is not None:
        record["tunnel"] = {
            "public_key": terms.public_key.hex(),
            "ticket_secret": terms.ticket_secret.hex(),
            "urls": terms.urls,
        }
    return json.dumps(record)


def _gateway(text: str) -> Gateway:
    record = json.loads(text)
    terms = record.get("tunnel")
    return Gateway(
        gateway_id=record["gateway_id"],
        connected_at=datetime.fromisoformat(record["connected_at"]),
        capacity=record["capacity"],
        sessions=record["sessions"],
        channels=record["channels"],
        draining=record["draining"],
        can_trickle=record["can_trickle"],
        tunnel=terms
        and TunnelTerms(
            public_key=bytes.fromhex(terms["public_key"]),
            ticket_secret=bytes.fromhex(terms["ticket_secret"]),
            urls=tuple(terms["urls"]),
        ),
    )
