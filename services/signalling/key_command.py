"""The command `fairlead-key`: prints the first key; adds, lists, revokes and expires keys in the
file that running services read.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from chassis.errors import FairleadError
from signalling.api_keys import DEFAULT_TENANT, ApiKeys, KeyRecord
from signalling.settings import Settings

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_WHERE = (
    "Run it where signalling runs, as its user: `docker compose exec signalling fairlead-key` with"
    " containers, else in the checkout of the stack, or with FAIRLEAD_STATE or"
    " FAIRLEAD_SIGNALLING_STATE as the stack has it."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked and return the exit status, 1 for what cannot be done here."""
    # Said before the verb or behind it; a default of its own would undo the former.
    usual = argparse.Namespace(output="text", tenant=DEFAULT_TENANT, admin=False)
    chosen = _parser().parse_args(arguments, usual)
    verb = chosen.verb or ("add" if chosen.new else "print")
    if chosen.admin and verb != "add":
        _parser().error("--admin is for a key that is added: give --new")
    try:
        settings = Settings()
        state = _state(settings)
        if verb == "print":
            return _print_first(settings.bootstrap_key_file or state.parent / "api-key")
        _check_place(state)
        _print(_done(ApiKeys(state=state), verb, chosen), chosen.output)
    except FairleadError as error:
        sys.stderr.write(f"fairlead-key: {error.message} {error.remedy}\n")
        return 1
    except _Misplaced as error:
        sys.stderr.write(f"fairlead-key: {error} {_WHERE}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"fairlead-key: {error.strerror}: {error.filename}. {_WHERE}\n")
        return 1
    return 0


class _Misplaced(Exception):
    """There are no keys here, or they are somebody else's."""


def _parser() -> argparse.ArgumentParser:
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("-o", "--output", choices=("text", "json"), default=argparse.SUPPRESS)
    adding = argparse.ArgumentParser(add_help=False)
    adding.add_argument(
        "--tenant", default=argparse.SUPPRESS, help="tenant of the key that is added"
    )
    adding.add_argument(
        "--admin",
        action="store_true",
        default=argparse.SUPPRESS,
        help="let it list and close sessions of other tenants",
    )
    parser = argparse.ArgumentParser(
        prog="fairlead-key",
        description="Print the first API key of this stack, or manage its keys.",
        parents=[output, adding],
    )
    parser.add_argument("--new", action="store_true", help="the same as `add`")
    parser.set_defaults(expires=None)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    add = verbs.add_parser("add", help="add a key and print it", parents=[output, adding])
    add.add_argument("--expires", type=_moment, help="when it ends, such as 30d, 12h or a date")
    verbs.add_parser("list", help="list the keys, never their text", parents=[output])
    revoke = verbs.add_parser("revoke", help="end a key now", parents=[output])
    expire = verbs.add_parser("expire", help="end a key at a time", parents=[output])
    for each in (revoke, expire):
        each.add_argument("key", help="its id, or the beginning of its id or text")
    expire.add_argument("expires", type=_moment_or_never, help="such as 30d, 12h, a date, or never")
    return parser


def _moment(text: str) -> datetime:
    """Read a time: a duration from now, or ISO 8601, in UTC where no zone is named."""
    if found := re.fullmatch(r"([0-9]{1,6})([smhd])", text):
        return datetime.now(UTC) + timedelta(seconds=int(found[1]) * _UNITS[found[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 30d nor a date") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def _moment_or_never(text: str) -> datetime | None:
    return None if text == "never" else _moment(text)


def _check_place(state: Path) -> None:
    """Raise _Misplaced unless the keys of a stack are here and are this user's."""
    if not state.is_dir():
        raise _Misplaced(f"There is no state directory of signalling at {state}.")
    owner = state.stat().st_uid
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"uid {owner}"
        raise _Misplaced(f"The keys in {state} belong to {name}.")


def _state(settings: Settings) -> Path:
    """Return the state directory of the stack that is meant: the one that is named, that of the
    checkout, or the usual one.
    """
    if "FAIRLEAD_SIGNALLING_STATE" in os.environ:
        return settings.state
    if named := os.environ.get("FAIRLEAD_STATE"):
        return Path(named) / "signalling"
    here = Path.cwd()
    for place in (here, *here.parents):
        if (place / ".fairlead" / "signalling").is_dir():
            return place / ".fairlead" / "signalling"
    return settings.state


def _print_first(source: Path) -> int:
    try:
        sys.stdout.write(source.read_text(encoding="utf-8"))
    except OSError:
        sys.stderr.write(
            f"fairlead-key: no first key is written down at {source}. Set "
            "FAIRLEAD_SIGNALLING_BOOTSTRAP_KEY_FILE as the service has it, or add a key with "
            f"`fairlead-key add`. {_WHERE}\n"
        )
        return 1
    return 0


def _done(keys: ApiKeys, verb: str, chosen: argparse.Namespace) -> list[Mapping[str, object]]:
    """Do it, and return what is to be shown of which keys."""
    match verb:
        case "add":
            text = keys.add(chosen.tenant, is_admin=chosen.admin, expires_at=chosen.expires)
            (record,) = [each for each, _ in keys.list() if text.startswith(each.prefix or "-")]
            return [{"key": text, **_shown(record, None)}]
        case "revoke":
            return [_shown(keys.revoke(chosen.key), None)]
        case "expire":
            return [_shown(keys.expire(chosen.key, chosen.expires), None)]
        case _:
            return [_shown(record, used) for record, used in keys.list()]


def _shown(record: KeyRecord, used: datetime | None) -> Mapping[str, object]:
    """Return what may be shown of a key: never its hash."""
    return {
        "key_id": record.key_id,
        "prefix": record.prefix,
        "tenant": record.tenant,
        "is_admin": record.is_admin,
        "created_at": record.created_at,
        "last_used_at": None if used is None else used.isoformat(),
        "expires_at": record.expires_at or None,
        "has_ended": record.has_ended(datetime.now(UTC)),
    }


def _print(rows: list[Mapping[str, object]], output: str) -> None:
    """Print rows as JSON, one a line, or for a person; a key that was made alone."""
    if output == "json":
        sys.stdout.writelines(json.dumps(row) + "\n" for row in rows)
        return
    if len(rows) == 1 and "key" in rows[0]:
        sys.stdout.write(f"{rows[0]['key']}\n")
        return
    lines = [("ID", "KEY", "TENANT", "CREATED", "LAST USE", "ENDS")]
    for row in rows:
        ends = str(row["expires_at"] or "never")[:16]
        lines.append(
            (
                str(row["key_id"]),
                f"{row['prefix'] or 'flk_'}…",
                f"{row['tenant']}{' (admin)' if row['is_admin'] else ''}",
                str(row["created_at"])[:16],
                str(row["last_used_at"] or "-")[:16],
                f"ended {ends}" if row["has_ended"] else ends,
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
