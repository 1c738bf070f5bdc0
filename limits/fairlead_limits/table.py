"""What the fields of requests may hold: sizes, durations, counts and names, one row for each.

The front door checks a row before anything is created, and hosts check it again; the SDK, the
OpenAPI document and docs/limits.md are made from the same rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
_DAY: Final = 24 * 3600.0
_YEAR: Final = 365 * _DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A number, or a size that the caller of `allows` has measured, between two bounds.

    `field` is the path of the field, `what` the subject of the sentence, `unit` what is counted;
    `reason` is the reason of the error. With `zero_means` 0 is allowed too, and means that.
    """

    field: str
    what: str
    reason: str
    least: float = 0
    most: float
    unit: str = ""
    zero_means: str = ""
    remedy: str = "Correct the field and send the request again."

    def allows(self, size: float) -> bool:
        """Say whether the number is within the bounds; what is not a number never is."""
        return self.least <= size <= self.most or (bool(self.zero_means) and size == 0)

    @property
    def rule(self) -> str:
        """Return what is allowed, in words."""
        most = quantity(self.most, self.unit)
        if not self.least:
            found = f"at most {most}" if self.unit else f"0 to {most}"
        elif self.unit in ("characters", "entries"):
            found = f"{self.least:.0f} to {most}"
        else:
            found = f"{quantity(self.least, self.unit)} to {most}"
        return f"{found}, or 0 for {self.zero_means}" if self.zero_means else found

    @property
    def sentence(self) -> str:
        """Return what a caller reads who broke it."""
        return f"{self.what} must {'be' if self.is_number else 'have'} {self.rule}."

    @property
    def schema(self) -> dict[str, float | str]:
        """Return what JSON Schema can say of it; a size in bytes is beyond it."""
        match self.unit:
            case "bytes" if not self.is_number:
                return {}
            case "characters":
                return {"minLength": int(self.least), "maxLength": int(self.most)}
            case "entries":
                return {"minItems": int(self.least), "maxItems": int(self.most)}
            case _:
                least = 0 if self.zero_means else self.least
                return {"minimum": _whole(least), "maximum": _whole(self.most)}

    @property
    def count(self) -> int:
        """Return the upper bound as a whole number."""
        return int(self.most)

    @property
    def is_number(self) -> bool:
        """Say whether the field itself is a number."""
        return self.field.startswith("limits.") or self.unit in ("", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A text that matches a pattern as a whole; `rule` says the pattern in words."""

    field: str
    what: str
    reason: str
    pattern: str
    rule: str
    remedy: str = "Correct the field and send the request again."
    unit: ClassVar[str] = "name"

    def allows(self, text: str) -> bool:
        """Say whether the text matches."""
        return re.fullmatch(self.pattern, text) is not None

    @property
    def sentence(self) -> str:
        """Return what a caller reads who broke it."""
        return f"{self.what} must be {self.rule}."

    @property
    def schema(self) -> dict[str, float | str]:
        """Return it as JSON Schema."""
        return {"pattern": f"^(?:{self.pattern})$"}


Limit = Range | Name


def _whole(number: float) -> float:
    return int(number) if float(number).is_integer() else number


def quantity(number: float, unit: str) -> str:
    """Return a number with its unit as a person writes it: `64 KiB`, `24 h`, `0.001 s`."""
    if unit == "s":
        for name, seconds in (("days", _DAY), ("h", 3600.0), ("min", 60.0)):
            if number >= 2 * seconds - (seconds if name == "h" else 0) and number % seconds == 0:
                return "24 h" if number == _DAY else f"{number / seconds:.0f} {name}"
        return f"{number:g} s"
    if number in (2**62, 2**31 - 1):
        return ("2^62" if number == 2**62 else "2^31 - 1") + (f" {unit}" if unit else "")
    if unit == "bytes":
        for name, size in (("MiB", MIB), ("KiB", KIB)):
            if number >= size and number % size == 0:
                return f"{number / size:.0f} {name}"
    return f"{number:.0f} {unit}".rstrip() if float(number).is_integer() else f"{number:g} {unit}"


_PROFILES: Final = "the profile's"

# What every create has.
IDEMPOTENCY_KEY: Final = Name(
    field="idempotency_key",
    what="The idempotency key",
    reason="idempotency_key_invalid",
    pattern=r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?",
    rule="1 to 255 printable ASCII characters without spaces at its ends",
)
LEASE: Final = Range(
    field="lease",
    what="The lease",
    reason="lease_invalid",
    least=0.001,
    most=_DAY,
    unit="s",
    remedy="Ask for less, and renew it.",
)
DEFAULT_LEASE_SECONDS: Final = 30 * 60.0

# What is run.
ARGUMENTS: Final = Range(
    field="command.arguments",
    what="The command",
    reason="command_too_long",
    least=1,
    most=4096,
    unit="entries",
)
ARGUMENT_BYTES: Final = Range(
    field="command.arguments",
    what="The arguments of the command, with a byte behind each,",
    reason="command_too_long",
    most=128 * KIB,
    unit="bytes",
    remedy="Write them to a file, or send them on standard input.",
)
ENVIRONMENT_BYTES: Final = Range(
    field="command.environment",
    what="The environment, as `name=value` with a byte behind each,",
    reason="environment_invalid",
    most=128 * KIB,
    unit="bytes",
    remedy="Write it to a file, and read it in the command.",
)
VARIABLE: Final = Name(
    field="command.environment",
    what="The name of a variable",
    reason="environment_invalid",
    pattern=r"[A-Za-z_][A-Za-z0-9_]{0,255}",
    rule="1 to 256 letters, digits and underscores, first no digit",
)
DIRECTORY_BYTES: Final = Range(
    field="command.directory",
    what="The directory",
    reason="directory_invalid",
    most=4096,
    unit="bytes",
)
TIMEOUT: Final = Range(
    field="command.timeout",
    what="The timeout",
    reason="timeout_invalid",
    least=0.001,
    most=_DAY,
    unit="s",
    remedy="Ask for less, or leave it out: the command then runs as long as its sandbox.",
)
GRACE: Final = Range(
    field="command.grace",
    what="The grace",
    reason="grace_invalid",
    most=600.0,
    unit="s",
)
DEFAULT_GRACE_SECONDS: Final = 2.0
TERMINAL_CELLS: Final = Range(
    field="command.terminal",
    what="Each of the rows and columns of a terminal",
    reason="terminal_size_invalid",
    least=1,
    most=65535,
)
STDIN_BYTES: Final = Range(
    field="content",
    what="A piece of standard input",
    reason="stdin_too_large",
    most=256 * KIB,
    unit="bytes",
    remedy="Send it in smaller pieces.",
)
POSITION: Final = Range(
    field="offset",
    what="The number",
    reason="offset_invalid",
    most=2**62,
    remedy="Take it from the last answer, or start at 0.",
)
SIGNAL: Final = Range(
    field="signal",
    what="The signal",
    reason="signal_invalid",
    least=1,
    most=64,
    remedy="`kill -l` lists the signals with their numbers.",
)
BATCH_ITEMS: Final = Range(
    field="items",
    what="The list of a batch",
    reason="batch_invalid",
    least=1,
    most=64,
    unit="entries",
)

# Where it runs.
ISOLATION: Final = Name(
    field="isolation",
    what="The isolation",
    reason="isolation_invalid",
    pattern=r"[a-z][a-z0-9-]{0,31}",
    rule="1 to 32 lower-case letters, digits and hyphens, first a letter",
    remedy="Leave it out for the host's best, or name one that `GET /v1/hosts` lists.",
)
PROFILE: Final = Name(
    field="profile",
    what="The profile",
    reason="profile_invalid",
    pattern=r"[a-z][a-z0-9_-]{0,31}",
    rule="1 to 32 lower-case letters, digits, `-` and `_`, first a letter",
    remedy="Leave it out for `default`, or name one that `GET /v1/hosts` lists.",
)
ALLOW_ENTRIES: Final = Range(
    field="network.allow",
    what="The allow list",
    reason="allow_list_too_long",
    most=256,
    unit="entries",
    remedy="Join names below *.name.",
)


def _limit(name: str, least: float, most: float, unit: str = "") -> Range:
    return Range(
        field=f"limits.{name}",
        what=f"The field limits.{name}",
        reason="limit_invalid",
        least=least,
        most=most,
        unit=unit,
        zero_means=_PROFILES,
        remedy="Leave it out for the profile's.",
    )


SANDBOX_LIMITS: Final = {
    "memory_bytes": _limit("memory_bytes", 64 * MIB, 2**62, "bytes"),
    "processes": _limit("processes", 8, 2**31 - 1),
    "open_files": _limit("open_files", 64, 2**31 - 1),
    "file_bytes": _limit("file_bytes", 4 * KIB, 2**62, "bytes"),
    "cpu_milli": _limit("cpu_milli", 10, 2**31 - 1),
    "disk_bytes": _limit("disk_bytes", 64 * KIB, 2**62, "bytes"),
    "wall_time": _limit("wall_time", 0.001, _YEAR, "s"),
    "output_bytes": _limit("output_bytes", MIB, 2**62, "bytes"),
}
"""By the name of the limit. Smaller ones would keep a sandbox's own init from working."""

# What is checked out.
PROJECT: Final = Name(
    field="source.project",
    what="The project",
    reason="project_invalid",
    pattern=r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}",
    rule="1 to 200 characters without control characters",
    remedy="Leave it to the client, which uses the id of the root commit.",
)
REF_BYTES: Final = 1000
"""The longest name of a branch or another ref."""
REF_PART_BYTES: Final = 250
"""The longest part of it between slashes: a ref is a file, whose `<part>.lock` has 255 at most."""
CHANGES_BYTES: Final = Range(
    field="source.changes.pack",
    what="The pack of the changes",
    reason="changes_too_large",
    most=256 * KIB,
    unit="bytes",
    remedy="Send the tree without the pack; the launch asks for an upload.",
)
COMMITS_BYTES: Final = Range(
    field="source.commits.pack",
    what="The pack of the commits",
    reason="commits_too_large",
    most=256 * KIB,
    unit="bytes",
    remedy="Leave the commits out; the answer asks for an upload.",
)
AGAINST: Final = Range(
    field="source.commits.against",
    what="The list of tips that a pack is thin against",
    reason="too_many_tips",
    most=64,
    unit="entries",
    remedy="Name fewer.",
)
ADDRESS: Final = Range(
    field="source.upstream.url",
    what="The address of a repository",
    reason="origin_invalid",
    least=1,
    most=2000,
    unit="characters",
    remedy="Give the https or ssh address of the repository.",
)
MAX_AGE: Final = Range(
    field="source.upstream.max_age",
    what="The age",
    reason="max_age_invalid",
    most=_DAY,
    unit="s",
    remedy="Leave it out: 30 seconds are the default.",
)
TAGS: Final = Range(
    field="source.tags",
    what="The list of tags",
    reason="too_many_tags",
    most=256,
    unit="entries",
    remedy="Send fewer; an upload takes the rest.",
)
TAG_BYTES: Final = Range(
    field="source.tags",
    what="The names of the tags together",
    reason="too_many_tags",
    most=32 * KIB,
    unit="bytes",
    remedy="Send fewer; an upload takes the rest.",
)
TIPS: Final = Range(
    field="tips",
    what="The list of an upload's tips",
    reason="too_many_tips",
    most=5000,
    unit="entries",
    remedy="Send fewer heads.",
)
UPLOAD_HEAD_BYTES: Final = MIB
"""The longest first line of an upload, which holds the tips."""
WORKSPACE_NAME: Final = Name(
    field="name",
    what="The name of a workspace",
    reason="name_invalid",
    pattern=r"[a-z0-9][a-z0-9._-]{0,63}",
    rule="1 to 64 of a-z, 0-9, `.`, `_` and `-`, first a letter or a digit",
    remedy="Choose a name such as 'fix-login', or none.",
)

# How it is reached.
OFFER_BYTES: Final = Range(
    field="offer",
    what="The offer",
    reason="sdp_invalid",
    most=64 * KIB,
    unit="bytes",
    remedy="Send complete SDP with its candidates and one section for data channels.",
)
CANDIDATES: Final = Range(
    field="candidates",
    what="The list of candidates",
    reason="too_many_candidates",
    most=64,
    unit="entries",
    remedy="Send them in several calls.",
)
ROUND_CANDIDATES: Final = 256
"""The candidates of one round; what is beyond is told as `too_many`."""

# What is read and written afterwards.
PAGE_SIZE: Final = Range(
    field="page_size",
    what="The page size",
    reason="page_size_invalid",
    least=1,
    most=100,
    zero_means="50",
    remedy="Ask for fewer at once, and for the next page with its token.",
)
DEFAULT_PAGE: Final = 50
FILE_PAGE_SIZE: Final = Range(
    field="page_size",
    what="The page size of a directory",
    reason="page_size_invalid",
    least=1,
    most=1000,
    zero_means="500",
    remedy="Ask for fewer at once, and for the next page with its token.",
)
FILE_PIECE_BYTES: Final = MIB
"""The longest piece of content of a file in one message, and the largest file of a batch."""

ROWS: Final[tuple[Limit, ...]] = tuple(
    row
    for each in list(globals().values())
    for row in (each.values() if isinstance(each, dict) else (each,))
    if isinstance(row, Range | Name)
)
"""All rows, in the order of this file."""
