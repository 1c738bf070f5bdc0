"""What a class offers to its users, told by the process that imported it, as plain data.

It is isolated like any other class, by `membrane.stubs`: nothing but that imports it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

_ANY = "Any"
Parameter = tuple[str, str, str, bool]
"""Name, kind as `inspect` calls it, annotation, whether it has a default."""
Member = tuple[str, str, list[Parameter] | None, str, str]
"""Kind, name, parameters where they are known, annotation of the result, first line of the doc."""


class Signatures:
    """Tells the members of classes."""

    def members(self, target: str) -> list[Member]:
        """List the public members of `pkg.module:Class`, constructor first, then by name.

        Kinds are method, coroutine, classmethod, staticmethod, property and attribute. Raises what
        the import raises, AttributeError for a class that is not there and TypeError for what is
        no class.
        """
        module, _, path = target.partition(":")
        found: object = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        if not isinstance(found, type):
            raise TypeError(f"{target} is no class; name one as pkg.module:Class")
        return [_member("__init__", found.__init__), *_members(found)]  # type: ignore[misc]


def _members(kind: type) -> Iterator[Member]:
    annotated = {
        name: _annotation(note)
        for base in reversed(kind.__mro__)
        for name, note in vars(base).get("__annotations__", {}).items()
    }
    for name in sorted({*dir(kind), *annotated}):
        if not name.isidentifier() or _is_left_out(name):
            continue
        member = inspect.getattr_static(kind, name, None)
        if name not in annotated or callable(member) or isinstance(member, property):
            yield _member(name, member)
        else:
            yield "attribute", name, None, annotated[name], ""


def _is_left_out(name: str) -> bool:
    """Say whether a name is private, or an operator that every object has."""
    if name.startswith("__") and name.endswith("__"):
        return hasattr(object, name) or name in {"__dict__", "__weakref__", "__module__"}
    return name.startswith("_")


def _member(name: str, member: object) -> Member:
    if isinstance(member, property):
        returned = inspect.get_annotations(member.fget).get("return", _ANY) if member.fget else _ANY
        return "property", name, None, _annotation(returned), _first_line(member)
    kind = "method"
    if isinstance(member, (classmethod, staticmethod)):
        kind, member = type(member).__name__, member.__func__
    if not callable(member) or isinstance(member, type):
        return "attribute", name, None, _ANY, ""
    if inspect.iscoroutinefunction(member):
        kind = "coroutine"
    try:
        signature = inspect.signature(member)
    except (TypeError, ValueError):
        return kind, name, None, _ANY, _first_line(member)
    parameters = [
        (each.name, each.kind.name, _annotation(each.annotation), each.default is not each.empty)
        for each in signature.parameters.values()
    ]
    if kind != "staticmethod":
        parameters = parameters[1:]
    return kind, name, parameters, _annotation(signature.return_annotation), _first_line(member)


def _annotation(note: object) -> str:
    """Write an annotation as it would stand in a source file."""
    if note is inspect.Parameter.empty:
        return _ANY
    if note is None or note is type(None):
        return "None"
    if isinstance(note, str):
        return note
    if isinstance(note, type) and not hasattr(note, "__args__"):
        return note.__name__ if note.__module__ == "builtins" else _ANY
    return str(note)


def _first_line(member: object) -> str:
    doc = inspect.getdoc(member) or ""
    return doc.partition("\n")[0].strip()
