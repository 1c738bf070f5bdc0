"""Sessions and gateway registrations in Redis.

`fairlead:session:<id>` is a hash of version and record, with a time to live; two sets index the
sessions that are not closed by gateway and by launch. A write is one Lua script, so that version,
record and indexes change together.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import cast

from redis.asyncio import Redis

from chassis.redis_client import redis_errors
from signalling.gateway import Gateway
from signalling.session import CloseReason, Session, SessionState

# Answers 1 when it wrote. A retried write whose first answer was lost finds its own record and
# answers 1 as well.
_SAVE = """
local stored = redis.call('HMGET', KEYS[1], 'version', 'record')
if stored[1] then
  if stored[1] == ARGV[1] and stored[2] == ARGV[2] then return 1 end
  if tonumber(stored[1]) ~= tonumber(ARGV[1]) - 1 then return 0 end
elseif ARGV[1] ~= '1' and ARGV[5] ~= '1' then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'record', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
for i = 2, 3 do
  if ARGV[6] == '1' then
    redis.call('SREM', KEYS[i], ARGV[4])
  else
    redis.call('SADD', KEYS[i], ARGV[4])
    redis.call('PEXPIRE', KEYS[i], math.max(tonumber(ARGV[3]), redis.call('PTTL', KEYS[i])))
  end
end
return 1
"""


class RedisSessions:
    """The store of session records."""

    def __init__(self, *, redis: Redis) -> None:
        self._redis = redis

    async def get(self, session_id: str) -> Session | None:
        """Return the record, or None when there is none (any more)."""
        with redis_errors():
            text = await cast(
                "Awaitable[str | None]", self._redis.hget(_session_key(session_id), "record")
            )
        return None if text is None else _session(text)

    async def save(self, session: Session, *, ttl_seconds: float, restore: bool = False) -> bool:
        """Write a record if the stored one is its predecessor, and say whether that was so."""
        with redis_errors():
            written = await cast(
                "Awaitable[int]",
                self._redis.eval(
                    _SAVE,
                    3,
                    _session_key(session.session_id),
                    _gateway_sessions_key(session.gateway_id),
                    _launch_sessions_key(session.launch_id),
                    str(session.version),
                    _text(session),
                    str(max(1, int(ttl_seconds * 1000))),
                    session.session_id,
                    "1" if restore else "0",
                    "1" if session.is_closed else "0",
                ),
            )
        return written == 1

    async def of_gateway(self, gateway_id: str) -> Sequence[Session]:
        """Return the sessions of a gateway that are not closed, by id."""
        return await self._of(_gateway_sessions_key(gateway_id))

    async def of_launch(self, launch_id: str) -> Sequence[Session]:
        """Return the sessions of a launch that are not closed, by id."""
        return await self._of(_launch_sessions_key(launch_id))

    async def _of(self, index: str) -> Sequence[Session]:
        with redis_errors():
            ids = sorted(await cast("Awaitable[set[str]]", self._redis.smembers(index)))
        found = [await self.get(session_id) for session_id in ids]
        return [session for session in found if session is not None and not session.is_closed]


class RedisGateways:
    """The registrations of gateways: `fairlead:gateway:<id>`, each with a lease."""

    def __init__(self, *, redis: Redis, lease_seconds: int) -> None:
        self._redis = redis
        self._lease_seconds = lease_seconds

    async def put(self, gateway: Gateway) -> None:
        """Register a gateway or renew its lease."""
        record = json.dumps(asdict(gateway) | {"connected_at": gateway.connected_at.isoformat()})
        with redis_errors():
            await self._redis.set(_gateway_key(gateway.gateway_id), record, ex=self._lease_seconds)

    async def remove(self, gateway_id: str) -> None:
        """Forget a gateway; an unknown one is no error."""
        with redis_errors():
            await self._redis.delete(_gateway_key(gateway_id))

    async def list(self) -> Sequence[Gateway]:
        """Return the registered gateways, by id."""
        with redis_errors():
            keys = sorted(
                [key async for key in self._redis.scan_iter(_gateway_key("*"), count=500)]
            )
            texts = await self._redis.mget(keys) if keys else []
        return [_gateway(str(text)) for text in texts if text is not None]


def _session_key(session_id: str) -> str:
    return f"fairlead:session:{session_id}"


def _gateway_key(gateway_id: str) -> str:
    return f"fairlead:gateway:{gateway_id}"


def _gateway_sessions_key(gateway_id: str) -> str:
    return f"fairlead:gateway-sessions:{gateway_id}"


def _launch_sessions_key(launch_id: str) -> str:
    return f"fairlead:launch-sessions:{launch_id}"


def _text(session: Session) -> str:
    record = asdict(session)
    record["created_at"] = session.created_at.isoformat()
    record["expires_at"] = session.expires_at.isoformat()
    return json.dumps(record)


def _session(text: str) -> Session:
    record = json.loads(text)
    reason = record["close_reason"]
    return Session(
        session_id=record["session_id"],
        tenant=record["tenant"],
        launch_id=record["launch_id"],
        gateway_id=record["gateway_id"],
        created_at=datetime.fromisoformat(record["created_at"]),
        expires_at=datetime.fromisoformat(record["expires_at"]),
        state=SessionState(record["state"]),
        offer=record["offer"],
        answer=record["answer"],
        traceparent=record["traceparent"],
        close_reason=None if reason is None else CloseReason(reason),
        close_detail=record["close_detail"],
        version=record["version"],
    )


def _gateway(text: str) -> Gateway:
    record = json.loads(text)
    return Gateway(
        gateway_id=record["gateway_id"],
        connected_at=datetime.fromisoformat(record["connected_at"]),
        capacity=record["capacity"],
        sessions=record["sessions"],
        channels=record["channels"],
        draining=record["draining"],
    )
