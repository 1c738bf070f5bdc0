"""API keys: random texts of which only the SHA-256 is kept, in one file of the state directory.

Replicas that share the directory share the keys, and read the file again when it changes. When a
key was used last is kept beside it, in a file for each replica: no request writes.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from chassis.errors import FailedPrecondition, InvalidArgument, NotFound, Unauthenticated
from chassis.ids import random_id
from signalling.caller import Caller

log = logging.getLogger(__name__)

DEFAULT_TENANT = "default"
_KEY = re.compile(r"flk_[A-Za-z0-9_-]{43}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SHOWN = 10
"""The characters of a key that a list shows: 36 bits of 256."""
_KEPT_AFTER_END = timedelta(days=30)
_SCRATCH_SECONDS = 60.0
_REMEDY = (
    "Set FAIRLEAD_API_KEY to a key of this stack: `fairlead up` writes one to its state directory, "
    "`fairlead-key` prints it."
)


class KeyMissing(Unauthenticated):
    """A request came without a key."""

    def __init__(self) -> None:
        super().__init__("The request carries no API key.", reason="key_missing", remedy=_REMEDY)


class KeyInvalid(Unauthenticated):
    """A request came with a key that this stack does not know."""

    def __init__(self) -> None:
        super().__init__(
            "The API key is not one of this stack.", reason="key_invalid", remedy=_REMEDY
        )


class KeyEnded(Unauthenticated):
    """The key was revoked, or its time is over."""

    def __init__(self) -> None:
        super().__init__(
            "The API key was revoked or has expired.",
            reason="key_ended",
            remedy="Ask the operator for another one; `fairlead-key add` makes it.",
        )


class KeyNotFound(NotFound):
    """No key has this id or beginning, or more than one has."""

    def __init__(self, name: str, count: int) -> None:
        found = "No key has" if not count else f"{count} keys have"
        super().__init__(
            f"{found} the id or the beginning '{name}'.",
            reason="key_not_found",
            remedy="`fairlead-key list` shows the keys with their ids.",
        )


class KeyFileInvalid(FailedPrecondition):
    """The key file is not what `fairlead-key` writes."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The key file {name} cannot be read as a list of keys.",
            reason="key_file_invalid",
            remedy="Restore it, or remove it and start again to get a new first key.",
        )


class TenantInvalid(InvalidArgument):
    """A tenant's name has characters that it may not have."""

    def __init__(self) -> None:
        super().__init__(
            "A tenant's name is 1 to 63 lower-case letters, digits and dashes.",
            reason="tenant_invalid",
        )


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is kept of a key; `sha256` is lower-case hexadecimal, times are ISO 8601.

    `prefix` is the beginning of its text, empty for a key of before there was one. A key ends at
    `expires_at`, which a revocation sets to its own time.
    """

    key_id: str
    sha256: str
    tenant: str
    created_at: str
    is_admin: bool = False
    prefix: str = ""
    expires_at: str = ""

    def has_ended(self, now: datetime) -> bool:
        """Say whether the key is good no longer."""
        return bool(self.expires_at) and datetime.fromisoformat(self.expires_at) <= now


class ApiKeys:
    """The keys of `<state>/keys.json`, read again whenever the file changes.

    `replica` names the file that `write_uses` keeps the times of the last uses in.
    """

    def __init__(self, *, state: Path, replica: str = "") -> None:
        self._state = state
        self._path = state / "keys.json"
        self._uses_path = state / f"key-uses-{hashlib.sha256(replica.encode()).hexdigest()[:16]}"
        self._stamp: tuple[int, int, int] | None = None
        self._records: tuple[KeyRecord, ...] = ()
        self._uses: dict[str, datetime] = {}
        self._written: dict[str, datetime] = {}

    def caller_of(self, authorization: str) -> Caller:
        """Return who sends an `Authorization` value (RFC 6750), or raise KeyMissing, KeyInvalid or
        KeyEnded.

        Every stored hash is compared, in constant time, whichever of them matches.
        """
        scheme, _, text = authorization.strip().partition(" ")
        text = text.strip()
        if not scheme or (scheme.lower() == "bearer" and not text):
            raise KeyMissing
        if scheme.lower() != "bearer" or _KEY.fullmatch(text) is None:
            raise KeyInvalid
        digest = _digest(text)
        found = None
        for record in self.records():
            if hmac.compare_digest(record.sha256, digest):
                found = record
        if found is None:
            raise KeyInvalid
        now = datetime.now(UTC)
        if found.has_ended(now):
            raise KeyEnded
        self._uses[found.key_id] = now
        return Caller(found.tenant, is_admin=found.is_admin, key_id=found.key_id)

    def is_empty(self) -> bool:
        """Say whether there is no key at all; raises KeyFileInvalid."""
        return not self._load()

    def add(
        self, tenant: str, *, is_admin: bool = False, expires_at: datetime | None = None
    ) -> str:
        """Make a key for a tenant and return its text, which is kept nowhere; an administrator's
        also reaches sessions of other tenants.
        """
        if _TENANT.fullmatch(tenant) is None:
            raise TenantInvalid
        text = "flk_" + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        record = KeyRecord(
            key_id=random_id("key"),
            sha256=_digest(text),
            tenant=tenant,
            created_at=datetime.now(UTC).isoformat(),
            is_admin=is_admin,
            prefix=text[:_SHOWN],
            expires_at="" if expires_at is None else expires_at.isoformat(),
        )
        with self._locked():
            self._write([*self._load(), record])
        return text

    def expire(self, name: str, at: datetime | None) -> KeyRecord:
        """Let the key with an id, or the only one with this beginning of id or text, end at a time,
        or never; raises KeyNotFound and KeyFileInvalid.
        """
        with self._locked():
            records = self._load()
            found = [each for each in records if name and _is_named(each, name)]
            if len(found) != 1:
                raise KeyNotFound(name[:_SHOWN], len(found))
            changed = replace(found[0], expires_at="" if at is None else at.isoformat())
            self._write([changed if each is found[0] else each for each in records])
        return changed

    def revoke(self, name: str) -> KeyRecord:
        """End a key now; raises KeyNotFound and KeyFileInvalid."""
        return self.expire(name, datetime.now(UTC))

    def list(self) -> Sequence[tuple[KeyRecord, datetime | None]]:
        """Return all keys, those that have ended in the last 30 days among them, each with the time
        of its last use as far as any replica has written it down.
        """
        uses: dict[str, datetime] = {}
        for file in self._state.glob("key-uses-*"):
            for key_id, at in _uses_of(file).items():
                uses[key_id] = max(at, uses.get(key_id, at))
        return [(record, uses.get(record.key_id)) for record in self._load()]

    def records(self) -> tuple[KeyRecord, ...]:
        """Return the keys as the file has them now; those of before where it cannot be read."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        except FileNotFoundError:
            stamp = None
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._records = self._load()
            except KeyFileInvalid:
                log.exception("key file is invalid, the keys of before stay")
        return self._records

    def write_uses(self) -> None:
        """Write down when keys were used last, if any was since the last time."""
        if self._uses == self._written:
            return
        known = {record.key_id for record in self.records()}
        before = _uses_of(self._uses_path)
        uses = {key_id: at for key_id, at in (before | self._uses).items() if key_id in known}
        content = json.dumps({key_id: at.isoformat() for key_id, at in uses.items()})
        write_private(self._uses_path, content + "\n")
        self._written = dict(self._uses)

    def _write(self, records: Sequence[KeyRecord]) -> None:
        """Replace the file, without keys that ended long ago; the lock is held."""
        oldest = datetime.now(UTC) - _KEPT_AFTER_END
        kept = [asdict(record) for record in records if not record.has_ended(oldest)]
        now = datetime.now(UTC).timestamp()
        for scratch in self._state.glob(".keys.json.*"):  # Of one that was killed while it wrote.
            with contextlib.suppress(FileNotFoundError):
                if now - scratch.stat().st_mtime > _SCRATCH_SECONDS:
                    scratch.unlink()
        write_private(self._path, json.dumps(kept, indent=2) + "\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_name("keys.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _load(self) -> tuple[KeyRecord, ...]:
        try:
            content = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        try:
            return tuple(_record(item) for item in json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise KeyFileInvalid(self._path.name) from error


def _record(item: dict[str, object]) -> KeyRecord:
    expires_at = str(item.get("expires_at", ""))
    if expires_at:
        datetime.fromisoformat(expires_at)
    return KeyRecord(
        key_id=str(item["key_id"]),
        sha256=str(item["sha256"]),
        tenant=str(item["tenant"]),
        created_at=str(item["created_at"]),
        is_admin=item.get("is_admin") is True,
        prefix=str(item.get("prefix", "")),
        expires_at=expires_at,
    )


def _is_named(record: KeyRecord, name: str) -> bool:
    if name.startswith("flk_"):
        return record.sha256 == _digest(name) or (
            bool(record.prefix) and record.prefix.startswith(name)
        )
    return record.key_id.startswith(name) or record.key_id.startswith(f"key_{name}")


def _uses_of(file: Path) -> dict[str, datetime]:
    """Read the times of last uses; a file that cannot be read has none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(key_id): datetime.fromisoformat(at) for key_id, at in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def make_first_key(keys: ApiKeys, bootstrap_file: Path | None) -> None:
    """Give a stack without keys its first one, for tenant `default`, written to `bootstrap_file`
    (mode 0600).
    """
    if not keys.is_empty():
        return
    if bootstrap_file is None:
        log.warning("no API key exists, every call will be refused; `fairlead-key add` makes one")
        return
    bootstrap_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(bootstrap_file, keys.add(DEFAULT_TENANT) + "\n")
    log.info("first API key made")


def write_private(path: Path, content: str) -> None:
    """Replace a file as a whole, readable by its owner only."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
