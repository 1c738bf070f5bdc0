"""Reads `.gitmodules` (gitmodules(5)) strictly: a file of git-config(1)'s syntax, of which nothing
but names, paths and URLs of submodules is taken. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DIRECTORY_FAULT = "is a directory"
TOO_LARGE_FAULT = "has more than 1 MiB"

MOST_BYTES = 1024 * 1024
_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\s*\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(=?)[ \t]*")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


class GitmodulesInvalid(ValueError):
    """The file cannot be used; the text says why, to follow the word `it`."""


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule as it is declared; `path` is relative and stays inside the tree."""

    name: str
    path: str
    url: str


def fault_of(content: bytes | None) -> str:
    """Return what is wrong with the content, or nothing; None stands for a symbolic link."""
    if content is None:
        return "is a symbolic link"
    try:
        parse_gitmodules(content)
    except GitmodulesInvalid as error:
        return str(error)
    return ""


def parse_gitmodules(content: bytes) -> tuple[Submodule, ...]:
    """Return the submodules with a path and a URL, in their order; raises GitmodulesInvalid."""
    if len(content) > MOST_BYTES:
        raise GitmodulesInvalid(TOO_LARGE_FAULT)
    try:
        text = content.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise GitmodulesInvalid("is not UTF-8") from None
    if "\0" in text:
        raise GitmodulesInvalid("holds a NUL character")
    found: dict[str, dict[str, str]] = {}
    for section, name, key, value in _entries(text):
        if section == "submodule" and key in ("path", "url"):
            found.setdefault(name, {})[key] = value
    whole = (
        _checked(name, keys["path"], keys["url"])
        for name, keys in found.items()
        if "path" in keys and "url" in keys
    )
    return tuple(whole)


def _checked(name: str, path: str, url: str) -> Submodule:
    parts = path.split("/")
    is_inside = all(part not in ("", ".", "..") and part.lower() != ".git" for part in parts)
    if not is_inside or path.startswith("-") or not path.isprintable() or len(path) > 1000:
        raise GitmodulesInvalid("names a path that is not one inside the tree")
    if not name or not name.isprintable() or ".." in re.split(r"[/\\]", name) or len(name) > 200:
        raise GitmodulesInvalid("has a submodule whose name cannot be one")
    if not url or url.startswith("-") or not url.isprintable():
        raise GitmodulesInvalid("has a submodule whose url cannot be one")
    return Submodule(name, path, url)


def _entries(text: str) -> list[tuple[str, str, str, str]]:
    """Return section, subsection, key and value of every entry."""
    found = []
    section = name = ""
    position = 0
    while position < len(text):
        character = text[position]
        if character in " \t\n":
            position += 1
        elif character in "#;":
            position = _line_end(text, position)
        elif character == "[":
            head = _SECTION.match(text, position)
            if head is None:
                raise GitmodulesInvalid(f"is malformed in line {_line(text, position)}")
            section = head[1].lower()
            name = re.sub(r"\\(.)", r"\1", head[2] or "")
            position = head.end()
        else:
            key = _KEY.match(text, position)
            if key is None or not section:
                raise GitmodulesInvalid(f"is malformed in line {_line(text, position)}")
            value, position = _value(text, key.end()) if key[2] else _bare(text, key.end())
            found.append((section, name, key[1].lower(), value))
    return found


def _bare(text: str, position: int) -> tuple[str, int]:
    """Read past a key that has no value, which stands for true."""
    end = _line_end(text, position)
    if text[position:end].strip() and text[position] not in "#;":
        raise GitmodulesInvalid(f"is malformed in line {_line(text, position)}")
    return "true", end


def _value(text: str, position: int) -> tuple[str, int]:
    """Read a value: quotes keep spaces and comment signs, a backslash escapes or continues."""
    written: list[str] = []
    kept = 0
    quoted = False
    while position < len(text):
        character = text[position]
        if character == "\n":
            if quoted:
                break
            return "".join(written[:kept]), position + 1
        if character == "\\":
            escaped = text[position + 1 : position + 2]
            if escaped != "\n":
                if escaped not in _ESCAPES or not escaped:
                    break
                written.append(_ESCAPES[escaped])
                kept = len(written)
            position += 2
            continue
        if character == '"':
            quoted = not quoted
            kept = len(written)
        elif character in "#;" and not quoted:
            position = _line_end(text, position)
            continue
        else:
            written.append(character)
            if quoted or character not in " \t":
                kept = len(written)
        position += 1
    if quoted or position < len(text):
        raise GitmodulesInvalid(f"is malformed in line {_line(text, position)}")
    return "".join(written[:kept]), position


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
