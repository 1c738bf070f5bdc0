"""API keys: random texts of which only the SHA-256 is kept, in one file of the state directory.

Also the console entry `fairlead-key`, which prints the first key or adds one; a running service
notices.
"""

from __future__ import annotations

import argparse
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
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from chassis.errors import FailedPrecondition, InvalidArgument, Unauthenticated
from chassis.ids import random_id
from signalling.caller import Caller
from signalling.settings import Settings

log = logging.getLogger(__name__)

DEFAULT_TENANT = "default"
_KEY = re.compile(r"flk_[A-Za-z0-9_-]{43}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
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
    """What is kept of a key; `sha256` is lower-case hexadecimal."""

    key_id: str
    sha256: str
    tenant: str
    created_at: str
    is_admin: bool = False


class ApiKeys:
    """The keys of `<state>/keys.json`, read again whenever the file changes."""

    def __init__(self, *, state: Path) -> None:
        self._path = state / "keys.json"
        self._stamp: tuple[int, int, int] | None = None
        self._records: tuple[KeyRecord, ...] = ()

    def caller_of(self, authorization: str) -> Caller:
        """Return who sends an `Authorization` value (RFC 6750), or raise KeyMissing or
        KeyInvalid.

        Every stored hash is compared, in constant time, whichever of them matches.
        """
        scheme, _, text = authorization.strip().partition(" ")
        text = text.strip()
        if not scheme or (scheme.lower() == "bearer" and not text):
            raise KeyMissing
        if scheme.lower() != "bearer" or _KEY.fullmatch(text) is None:
            raise KeyInvalid
        digest = _digest(text)
        caller = None
        for record in self._current():
            if hmac.compare_digest(record.sha256, digest):
                caller = Caller(record.tenant, is_admin=record.is_admin)
        if caller is None:
            raise KeyInvalid
        return caller

    def is_empty(self) -> bool:
        """Say whether there is no key at all; raises KeyFileInvalid."""
        return not self._load()

    def add(self, tenant: str, *, is_admin: bool = False) -> str:
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
        )
        with self._locked():
            records = [*self._load(), record]
            content = json.dumps([asdict(item) for item in records], indent=2) + "\n"
            write_private(self._path, content)
        return text

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_name("keys.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _current(self) -> tuple[KeyRecord, ...]:
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

    def _load(self) -> tuple[KeyRecord, ...]:
        try:
            content = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        try:
            return tuple(
                KeyRecord(
                    key_id=str(item["key_id"]),
                    sha256=str(item["sha256"]),
                    tenant=str(item["tenant"]),
                    created_at=str(item["created_at"]),
                    is_admin=item.get("is_admin") is True,
                )
                for item in json.loads(content)
            )
        except (ValueError, KeyError, TypeError) as error:
            raise KeyFileInvalid(self._path.name) from error


def make_first_key(keys: ApiKeys, bootstrap_file: Path | None) -> None:
    """Give a stack without keys its first one, for tenant `default`, written to `bootstrap_file`
    (mode 0600).
    """
    if not keys.is_empty():
        return
    if bootstrap_file is None:
        log.warning("no API key exists, every call will be refused; `fairlead-key --new` makes one")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the first key, or with `--new` add one and print it; the exit status is 1 when there is
    none to print.
    """
    parser = argparse.ArgumentParser(
        prog="fairlead-key", description="Print the first API key of this stack, or add one."
    )
    parser.add_argument("--new", action="store_true", help="add a key and print it")
    parser.add_argument("--tenant", default=DEFAULT_TENANT, help="tenant of the key that is added")
    parser.add_argument(
        "--admin", action="store_true", help="let it list and close sessions of other tenants"
    )
    chosen = parser.parse_args(arguments)
    if chosen.admin and not chosen.new:
        parser.error("--admin is for a key that is added: give --new")
    settings = Settings()
    if chosen.new:
        try:
            text = ApiKeys(state=settings.state).add(chosen.tenant, is_admin=chosen.admin)
        except (TenantInvalid, KeyFileInvalid, OSError) as error:
            sys.stderr.write(f"fairlead-key: {error}\n")
            return 1
        sys.stdout.write(text + "\n")
        return 0
    source = settings.bootstrap_key_file
    try:
        if source is None:
            raise FileNotFoundError
        sys.stdout.write(source.read_text(encoding="utf-8"))
    except OSError:
        sys.stderr.write(
            "fairlead-key: no first key is written down here. Set "
            "FAIRLEAD_SIGNALLING_BOOTSTRAP_KEY_FILE as the service has it, or add a key with "
            "`fairlead-key --new`.\n"
        )
        return 1
    return 0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
