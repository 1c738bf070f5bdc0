"""What git's complaints mean; git has no exit codes for this, so its texts (LC_ALL=C) are
matched, in this one file.
"""

from __future__ import annotations

import re

# Historical commits carry such faults in great numbers; they harm nobody. Everything else that
# fsck calls an error refuses the pack, above all what concerns paths, `.gitmodules` and symlinks.
FORGIVEN = ",".join(
    f"{name}=ignore"
    for name in (
        "badDate",
        "badDateOverflow",
        "badEmail",
        "badName",
        "badTimezone",
        "missingEmail",
        "missingNameBeforeEmail",
        "missingSpaceBeforeDate",
        "missingSpaceBeforeEmail",
        "multipleAuthors",
        "zeroPaddedDate",
        "zeroPaddedFilemode",
    )
)

_LACKING_IN_PACK = re.compile(
    r"did not receive expected object|unresolved deltas?|Not all child objects of .* are reachable"
    r"|object of unexpected type|Error on reachable objects"
    r"|cannot read existing object|local object .* is corrupt"
)
_LACKING_IN_STORE = re.compile(
    r"unable to read (sha1 file|tree|object)|unable to find|missing|corrupt|bad object"
    r"|not a (tree|valid) object|failed to (unpack|read|inflate)|could not (read|parse|get)|inflate"
    r"|packfile .* (cannot be|is)|object .* is empty|does not exist|unknown revision|invalid object"
    r"|failed to unpack tree object",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"Out of memory|Cannot allocate memory|unable to create thread")
_DISK = re.compile(
    r"No space left|Disk quota|Too many open files|Cannot allocate memory|Out of memory"
    r"|Input/output error|Permission denied|Read-only file system|File name too long"
)


def pack_lacks_objects(complaint: str) -> bool:
    """Say whether `git index-pack --strict` missed objects, rather than refusing what was there."""
    return _LACKING_IN_PACK.search(complaint) is not None and not _DISK.search(complaint)


def pack_is_at_fault(complaint: str) -> bool:
    """Say whether `git index-pack` failed for what is in the pack, not for this machine's disk or
    memory.
    """
    return not _DISK.search(complaint)


def is_out_of_memory(complaint: str) -> bool:
    """Say whether git had less memory than it needed."""
    return _MEMORY.search(complaint) is not None


def store_lacks_objects(complaint: str) -> bool:
    """Say whether a checkout failed because objects are absent or unreadable."""
    return _LACKING_IN_STORE.search(complaint) is not None and not _DISK.search(complaint)


def first_line(complaint: str) -> str:
    """Return the fault as one short line that names no path of this host."""
    lines = [line for line in complaint.splitlines() if line.startswith(("fatal:", "error:"))]
    text = lines[0].partition(":")[2].strip() if lines else "it is cut short or malformed"
    return re.sub(r"/\S+", "…", text)[:200]
