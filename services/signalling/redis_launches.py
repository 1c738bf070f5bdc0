"""Launch records, their control events and where executions are, in Redis.

`fairlead:launch:<tenant>:<id>` is a hash of version, owner and record, and a launch's
`fairlead:launch-events:<id>` a bounded stream whose entry ids are the events' numbers. Each write
is one script: record, events and indexes change together, and a write that is repeated because its
answer was lost does no harm.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Awaitable, Sequence
from typing import TypeAlias, cast

from redis.asyncio import Redis

from chassis.errors import InvalidArgument
from chassis.redis_client import LONGEST_BLOCK_MILLISECONDS, redis_errors
from signalling.launch import ControlEvent
from signalling.launch_errors import CursorGone
from signalling.launch_json import control_json, host_json, record_json
from signalling.launch_parsing import parse_control, parse_host, parse_record
from signalling.launch_record import ExecutionPlace, LaunchRecord
from signalling.live_launch import RECOVERY_GAP
from signalling.ports import Saved

RETENTION_SECONDS = 24 * 3600
_MOST_EVENTS = 512
_MOST_LISTED = 10_000
_MARK_SECONDS = 24 * 3600

# KEYS: record, the tenant's list, the owner's set. Answers the record that is already there.
_CREATE = f"""
local known = redis.call('HGET', KEYS[1], 'record')
if known then return known end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'owner', ARGV[3], 'record', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[6])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -{_MOST_LISTED + 1})
redis.call('SADD', KEYS[3], ARGV[7])
return false
"""

# KEYS: record, the tenant's list, the owner's set, events, sandbox, execution.
# ARGV[9] is 1 for a write over whatever is there; ARGV[10] is where sandbox and execution are;
# numbers and events come after it.
_SAVE = f"""
local stored = redis.call('HMGET', KEYS[1], 'version', 'owner')
if ARGV[9] ~= '1' then
  if not stored[1] then return 'missing' end
  local behind = tonumber(ARGV[2]) - tonumber(stored[1])
  if behind ~= 1 and not (behind == 0 and stored[2] == ARGV[3]) then return 'conflict' end
end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'owner', ARGV[3], 'record', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[6])
redis.call(ARGV[8] == '1' and 'SREM' or 'SADD', KEYS[3], ARGV[7])
for i = 11, #ARGV, 2 do
  -- Refused where the event is there already.
  redis.pcall('XADD', KEYS[4], 'MAXLEN', {_MOST_EVENTS}, ARGV[i] .. '-0', 'event', ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[4], ARGV[4])
if ARGV[10] ~= '' then
  for i = 5, #KEYS do redis.call('SET', KEYS[i], ARGV[10], 'PX', ARGV[4]) end
end
return 'done'
"""

_Entries: TypeAlias = "list[tuple[str, dict[str, str]]]"
_TOKEN = re.compile(r"([0-9]{1,16})\.(lch_[a-z2-7]{26})")


class PageTokenInvalid(InvalidArgument):
    """The text is not a page token of a list of launches."""

    def __init__(self) -> None:
        super().__init__(
            "The page token is not one that a list of launches gave.",
            reason="page_token_invalid",
            remedy="Start over without a page token.",
            fields={"field": "page_token"},
        )


class RedisLaunches:
    """The store of launch records."""

    def __init__(self, *, redis: Redis) -> None:
        self._redis = redis

    async def create(self, record: LaunchRecord) -> LaunchRecord | None:
        """Keep a new record; return the one that is already there, if there is another."""
        text = _text(record)
        with redis_errors():
            known = await cast(
                "Awaitable[str | None]",
                self._redis.eval(
                    _CREATE,
                    3,
                    *_keys(record),
                    text,
                    str(record.version),
                    record.owner,
                    str(RETENTION_SECONDS * 1000),
                    str(_score(record)),
                    record.launch_id,
                    _member(record),
                ),
            )
        return None if known is None or known == text else parse_record(known)

    async def save(self, record: LaunchRecord, events: Sequence[ControlEvent]) -> Saved:
        """Replace the version before and append events, both or neither."""
        return await self._write(record, events, whatever_is_there=False)

    async def restore(self, record: LaunchRecord, events: Sequence[ControlEvent]) -> None:
        """Write a record and all its events, whatever is there."""
        await self._write(record, events, whatever_is_there=True)

    async def _write(
        self, record: LaunchRecord, events: Sequence[ControlEvent], *, whatever_is_there: bool
    ) -> Saved:
        launch = record.launch
        keys = [*_keys(record), _events_key(record.launch_id)]
        if launch.sandbox_id:
            keys.append(_sandbox_key(launch.sandbox_id))
        if launch.execution_id:
            keys.append(_execution_key(launch.execution_id))
        place = ExecutionPlace(record.tenant, record.host, launch.sandbox_id)
        numbered: list[str] = []
        for event in events:
            numbered += [str(event.number), json.dumps(control_json(event))]
        with redis_errors():
            answer = await cast(
                "Awaitable[str]",
                self._redis.eval(
                    _SAVE,
                    len(keys),
                    *keys,
                    _text(record),
                    str(record.version),
                    record.owner,
                    str(RETENTION_SECONDS * 1000),
                    str(_score(record)),
                    record.launch_id,
                    _member(record),
                    "1" if launch.finished else "0",
                    "1" if whatever_is_there else "0",
                    _place_text(place) if launch.sandbox_id else "",
                    *numbered,
                ),
            )
        return Saved(answer)

    async def discard(self, record: LaunchRecord) -> None:
        """Remove a record that nobody runs."""
        key, listed, owned = _keys(record)
        with redis_errors():
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.delete(key, _events_key(record.launch_id))
                pipeline.zrem(listed, record.launch_id)
                pipeline.srem(owned, _member(record))
                await pipeline.execute()

    async def get(self, tenant: str, launch_id: str) -> LaunchRecord | None:
        """Return a record of this tenant."""
        with redis_errors():
            text = await cast(
                "Awaitable[str | None]", self._redis.hget(_record_key(tenant, launch_id), "record")
            )
        return None if text is None else parse_record(text)

    async def page(self, tenant: str, size: int, token: str) -> tuple[Sequence[LaunchRecord], str]:
        """Return a page of records, newest first; raises PageTokenInvalid."""
        listed, before = _list_key(tenant), _parse_token(token)
        found: list[LaunchRecord] = []
        start = 0
        with redis_errors():
            while len(found) <= size:
                entries = cast(
                    "list[tuple[str, float]]",
                    await self._redis.zrange(
                        listed,
                        before[0] if before else "+inf",
                        "-inf",
                        desc=True,
                        byscore=True,
                        withscores=True,
                        offset=start,
                        num=size + 1,
                    ),
                )
                start += len(entries)
                ids = [
                    launch_id
                    for launch_id, score in entries
                    if before is None or (int(score), launch_id) < before
                ]
                found += await self._records(tenant, ids)
                if len(entries) <= size:
                    break
        page = found[:size]
        more = len(found) > size
        return page, _token(page[-1]) if more else ""

    async def owned(self, owner: str) -> Sequence[LaunchRecord]:
        """Return the records of a replica's launches that are not finished."""
        with redis_errors():
            members = await cast("Awaitable[set[str]]", self._redis.smembers(_owned_key(owner)))
            found = []
            for member in sorted(members):
                launch_id, _, tenant = member.partition(" ")
                records = await self._records(tenant, [launch_id])
                if records and records[0].owner == owner and not records[0].launch.finished:
                    found += records
                else:
                    await self._redis.srem(_owned_key(owner), member)
        return found

    async def claim(self, owner: str) -> bool:
        """Leave a replica's mark; say whether it was absent."""
        with redis_errors():
            was_absent = await self._redis.set(
                f"fairlead:launch-owner:{owner}", "1", nx=True, ex=_MARK_SECONDS
            )
        return bool(was_absent)

    async def _records(self, tenant: str, ids: Sequence[str]) -> list[LaunchRecord]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for launch_id in ids:
                pipeline.hget(_record_key(tenant, launch_id), "record")
            texts = await pipeline.execute()
        return [parse_record(text) for text in texts if text is not None]


class RedisEvents:
    """The control events of launches."""

    def __init__(self, *, redis: Redis) -> None:
        self._redis = redis

    async def after(self, launch_id: str, number: int, *, wait: float) -> Sequence[ControlEvent]:
        """Return the events after a number; waits up to `wait` seconds. Raises CursorGone."""
        key = _events_key(launch_id)
        with redis_errors():
            oldest = cast(_Entries, await self._redis.xrange(key, count=1) or [])
            first = _number(oldest[0][0]) if oldest else 1
            # Numbers above the gap follow a recovery: there the ones before were never kept.
            if number and number + 1 < first <= RECOVERY_GAP:
                raise CursorGone
            entries = cast(_Entries, await self._redis.xrange(key, min=f"({number}-0") or [])
            if not entries and wait > 0:
                block = min(int(wait * 1000), LONGEST_BLOCK_MILLISECONDS)
                answer = cast(
                    "list[tuple[str, _Entries]]",
                    await self._redis.xread({key: f"{number}-0"}, block=block) or [],
                )
                entries = answer[0][1] if answer else []
        return [parse_control(fields["event"]) for _, fields in entries]


class RedisLocations:
    """Where sandboxes and executions are."""

    def __init__(self, *, redis: Redis) -> None:
        self._redis = redis

    async def sandbox(self, sandbox_id: str) -> ExecutionPlace | None:
        """Return where a sandbox is."""
        return await self._place(_sandbox_key(sandbox_id))

    async def execution(self, execution_id: str) -> ExecutionPlace | None:
        """Return where an execution is."""
        return await self._place(_execution_key(execution_id))

    async def put_execution(self, execution_id: str, place: ExecutionPlace) -> None:
        """Keep where an execution is."""
        with redis_errors():
            await self._redis.set(
                _execution_key(execution_id), _place_text(place), ex=RETENTION_SECONDS
            )

    async def _place(self, key: str) -> ExecutionPlace | None:
        with redis_errors():
            text = await self._redis.get(key)
        if text is None:
            return None
        fields = json.loads(text)
        host = parse_host(json.dumps(fields["host"]))
        return ExecutionPlace(fields["tenant"], host, fields["sandbox"])


def _record_key(tenant: str, launch_id: str) -> str:
    return f"fairlead:launch:{tenant}:{launch_id}"


def _list_key(tenant: str) -> str:
    return f"fairlead:launches:{tenant}"


def _owned_key(owner: str) -> str:
    return f"fairlead:launches-owned:{owner}"


def _events_key(launch_id: str) -> str:
    return f"fairlead:launch-events:{launch_id}"


def _sandbox_key(sandbox_id: str) -> str:
    return f"fairlead:sandbox:{sandbox_id}"


def _execution_key(execution_id: str) -> str:
    return f"fairlead:execution:{execution_id}"


def _keys(record: LaunchRecord) -> tuple[str, str, str]:
    return (
        _record_key(record.tenant, record.launch_id),
        _list_key(record.tenant),
        _owned_key(record.owner),
    )


def _member(record: LaunchRecord) -> str:
    return f"{record.launch_id} {record.tenant}"


def _score(record: LaunchRecord) -> int:
    return int(record.launch.created_at.timestamp() * 1000)


def _text(record: LaunchRecord) -> str:
    return json.dumps(record_json(record))


def _place_text(place: ExecutionPlace) -> str:
    return json.dumps(
        {"tenant": place.tenant, "sandbox": place.sandbox_id, "host": host_json(place.host)}
    )


def _number(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


def _token(record: LaunchRecord) -> str:
    plain = f"{_score(record)}.{record.launch_id}"
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def _parse_token(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        match = _TOKEN.fullmatch(raw.decode("ascii"))
    except (binascii.Error, ValueError):
        raise PageTokenInvalid from None
    if match is None:
        raise PageTokenInvalid
    return int(match[1]), match[2]
