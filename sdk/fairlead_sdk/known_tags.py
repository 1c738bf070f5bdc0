"""The tags of a repository, and which of them the hosts of a front door are known to have.

Nothing is ever taken back there, so that only what is new or moved is worth sending.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead_limits import table
from fairlead_sdk import json_form as form
from fairlead_sdk.git import run_git
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.packs import is_refused, listed_tags
from fairlead_sdk.refs_reader import Unsure, loose_refs, object_id, packed_refs
from fairlead_sdk.repository import Repository, Tip

TAGS = "refs/tags/"
MOST_SENT = table.TAGS.count
MOST_SENT_BYTES = table.TAG_BYTES.count
"""How many tags travel with a launch, and how many bytes their names take; the others wait."""
_MOST_LOOSE = 1000
_ATTEMPTS = 3
_PACKED_TAG = re.compile(rb"^([0-9a-f]{40}) (refs/tags/[^\n]+)$", re.MULTILINE)


class KnownTags:
    """One list beside that of the known tips; where nothing can be written it is empty."""

    def __init__(self, *, common_directory: Path, url: str, project: str) -> None:
        name = hashlib.sha256(f"{url}\0{project}".encode()).hexdigest()[:24]
        self._path = common_directory / "fairlead" / f"tags-{name}"
        self.objects: dict[str, str] = {}
        with contextlib.suppress(OSError):
            lines = os.fsdecode(self._path.read_bytes()).split("\n")[:-1]
            pairs = (line.partition(" ") for line in lines)
            self.objects = {ref: name for name, _, ref in pairs if ref}

    def learn(self, objects: Mapping[str, str]) -> None:
        """Note that these are there, or that no launch brings them."""
        after = {**self.objects, **objects}
        if after == self.objects:
            return
        self.objects = after
        part = self._path.with_name(f"part-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            part.parent.mkdir(exist_ok=True)
            part.touch(0o600, exist_ok=False)
            part.write_bytes(os.fsencode("".join(f"{after[ref]} {ref}\n" for ref in sorted(after))))
            part.replace(self._path)


def known_tags(repository: Repository, *, url: str) -> KnownTags:
    """Give what is known of the tags at the hosts of the front door at `url`."""
    return KnownTags(
        common_directory=repository.common_directory, url=url, project=repository.project
    )


def unsent_tags(repository: Repository, known: KnownTags) -> tuple[Tip, ...]:
    """Give the newest tags that are not known there, as many as travel with a launch.

    It runs git only when there is one.
    """
    here = read_tags(repository)
    if all(known.objects.get(ref) == name for ref, name in here.items()):
        return ()
    found: list[Tip] = []
    others: dict[str, str] = {}
    size = 0
    for tag, kind in listed_tags(repository):
        if known.objects.get(tag.ref) == tag.commit:
            continue
        if kind != "commit" or is_refused(tag.ref):
            others[tag.ref] = tag.commit
            continue
        size += len(tag.ref.encode())
        if len(found) == MOST_SENT or size > MOST_SENT_BYTES:
            break
        found.append(tag)
    known.learn(others)
    return tuple(found)


def merged_tags(repository: Repository, tags: Sequence[Tip]) -> tuple[Tip, ...]:
    """Give those of the tags that lead to the commit here or to an ancestor of it."""
    merged = run_git(
        "for-each-ref",
        f"--merged={repository.commit}",
        "--format=%(refname)",
        "refs/tags",
        environment={"GIT_DIR": os.fspath(repository.git_directory)},
    )
    names = set(os.fsdecode(merged).split("\n"))
    return tuple(tag for tag in tags if tag.ref in names)


def learn_sent(repository: Repository, source: JsonObject, *, url: str) -> None:
    """Note that the tags of a source that was served, with none of them left out, are there."""
    sent = form.children(source, "tags")
    if sent:
        found = {form.text(each, "ref"): form.text(each, "commit") for each in sent}
        known_tags(repository, url=url).learn(found)


def learn_uploaded(repository: Repository, tips: Sequence[Tip], *, url: str) -> None:
    """Note that the tags among the tips of an upload are there, which lists them all again."""
    found = {tip.ref: tip.commit for tip in tips if tip.ref.startswith(TAGS)}
    if found:
        known_tags(repository, url=url).learn(found)


def read_tags(repository: Repository) -> dict[str, str]:
    """Give what each tag names, read from the refs' files where they are plain."""
    shared = os.fsencode(repository.common_directory)
    try:
        if repository.object_format != "sha1" or os.path.isdir(os.path.join(shared, b"reftable")):
            raise Unsure("refs in another form")
        return _read(shared)
    except (Unsure, OSError):
        return {tag.ref: tag.commit for tag, _ in listed_tags(repository)}


def _read(shared: bytes) -> dict[str, str]:
    for _ in range(_ATTEMPTS):
        try:
            loose = {}
            for name, content in loose_refs(shared, os.fsencode(TAGS)):
                loose[name] = object_id(content)
                if len(loose) > _MOST_LOOSE:
                    raise Unsure("too many tags")
        except FileNotFoundError:  # one was packed or removed meanwhile
            continue
        packed = {name: value for value, name in _PACKED_TAG.findall(packed_refs(shared))}
        return {os.fsdecode(n): v.decode("ascii") for n, v in {**packed, **loose}.items()}
    raise Unsure("the tags do not hold still")
