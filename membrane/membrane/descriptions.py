"""Descriptions of classes: what of a class the other side needs to build a proxy class, as plain
lists, and their checks.

    [handle, module, qualname, doc, methods, coroutines, attributes, dunders, absent, class_dunders,
        bases, facts]

`bases` are handles of classes described before, or names of built-in types that are not mirrored
("builtins.dict"); what such a base defines is folded into the description. `absent` are dunders set
to None ("__hash__"). `facts` is a flat mapping as a list of pairs for libraries that look at types:
annotations as text, names of dataclass fields, the built-in type of an exception class, slots, and
what records of the class consist of.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from membrane.builtin_types import EXCEPTIONS, NAMES_OF_BUILTINS
from membrane.dunders import ABSENT_ONLY, FORWARDED
from membrane.errors import ProtocolError
from membrane.records import are_fields, form_of

MOST_MEMBERS = 20_000
MOST_BASES = 64
LONGEST_NAME = 512
LONGEST_TEXT = 64 * 1024
MOST_CLASSES = 10_000
"""Class descriptions that one link takes: a child that sends more is out to fill the memory."""

MOST_DESCRIBED = 32 << 20
"""Characters in all of them together."""

PLAIN_METACLASSES: frozenset[str] = frozenset({"builtins.type", "abc.ABCMeta"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDescription:
    """Describe a class of the other side; all members are names."""

    handle: int
    module: str
    qualname: str
    doc: str | None
    methods: frozenset[str]
    coroutines: frozenset[str]
    attributes: frozenset[str]
    dunders: frozenset[str]
    absent: frozenset[str]
    class_dunders: frozenset[str]
    bases: tuple[int | str, ...]
    annotations: tuple[tuple[str, str], ...] = ()
    fields: tuple[str, ...] = ()
    exception: str | None = None
    slots: tuple[str, ...] | None = None
    record: tuple[str, tuple[str, ...]] | None = None

    @property
    def shape(self) -> tuple[object, ...]:
        """Give all that a proxy class is built from, without handles: equal shapes can share a
        proxy class.
        """
        return (
            self.module,
            self.qualname,
            self.methods,
            self.coroutines,
            self.attributes,
            self.dunders,
            self.absent,
            self.class_dunders,
            self.slots,
            len(self.bases),
        )

    @property
    def size(self) -> int:
        """Give about how many characters it holds, and as many again for each name."""
        names = [*self.methods, *self.attributes, *self.fields]
        notes = sum(len(name) + len(note) for name, note in self.annotations)
        return len(self.doc or "") + 100 * len(names) + sum(map(len, names)) + notes


def is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def full_name(kind: type) -> str:
    """Give "module.qualname" of a type, with text for whatever a class body put in their place."""
    return f"{text_of(kind, '__module__')}.{text_of(kind, '__qualname__')}"


def text_of(kind: type, name: str) -> str:
    # type.__dict__: a class or a metaclass may define anything under these names.
    if name == "__module__":
        word = type.__getattribute__(kind, "__module__")
    else:
        word = type.__dict__[name].__get__(kind)
    return word if type(word) is str else str(word)


def described_bases(kind: type) -> list[type]:
    """Give the bases that get a proxy class of their own: all that are not of the interpreter."""
    return [base for base in bases_of(kind) if not is_builtin(base)]


def bases_of(kind: type) -> tuple[type, ...]:
    return cast("tuple[type, ...]", type.__dict__["__bases__"].__get__(kind))


def members_of(kind: type) -> Mapping[str, object]:
    # A class's own namespace, whatever its metaclass gives for `__dict__`.
    return cast("Mapping[str, object]", type.__dict__["__dict__"].__get__(kind))


def is_builtin(kind: type) -> bool:
    """Say whether a type is of the interpreter or an extension module without a class body of its
    own.
    """
    return kind in NAMES_OF_BUILTINS or not kind.__flags__ & (1 << 9)


def describe(kind: type, *, handle: int, base_handles: dict[type, int]) -> list[object]:
    """Describe a class of this side as the list that travels."""
    methods: list[str] = []
    coroutines: list[str] = []
    attributes: list[str] = []
    dunders: set[str] = set()
    absent: set[str] = set()
    bases: list[object] = []
    seen: set[str] = set()
    direct = bases_of(kind)
    owners = [kind]
    for base in direct:
        if base in base_handles:
            bases.append(base_handles[base])
        elif base is not object:
            bases.append(full_name(base))
            owners.extend(one for one in base.__mro__ if one is not object and one not in owners)
    for owner in owners:
        for name, member in list(members_of(owner).items()):
            if type(name) is not str or name in seen:
                continue
            seen.add(name)
            if is_dunder(name):
                if member is None and name in (FORWARDED | ABSENT_ONLY):
                    absent.add(name)
                elif name in FORWARDED:
                    dunders.add(name)
            elif not name.isidentifier() or name.startswith("_membrane"):
                continue
            elif is_method(member):
                methods.append(name)
                if is_coroutine(member):
                    coroutines.append(name)
            else:
                attributes.append(name)
    doc = seen_doc(kind)
    return [
        handle,
        text_of(kind, "__module__")[:LONGEST_NAME],
        text_of(kind, "__qualname__")[:LONGEST_NAME],
        doc,
        methods,
        coroutines,
        attributes,
        sorted(dunders),
        sorted(absent),
        class_dunders(kind),
        bases,
        facts_of(kind),
    ]


def seen_doc(kind: type) -> str | None:
    doc = members_of(kind).get("__doc__")
    return doc[:LONGEST_TEXT] if type(doc) is str else None


def is_method(member: object) -> bool:
    if isinstance(member, (staticmethod, classmethod)):
        return True
    return callable(member) and not isinstance(member, type) and hasattr(type(member), "__get__")


def is_coroutine(member: object) -> bool:
    function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
    return isinstance(function, types.FunctionType) and inspect.iscoroutinefunction(function)


def class_dunders(kind: type) -> list[str]:
    """Name what the class's own metaclass defines of the operators: an Enum class can be
    iterated.
    """
    found: set[str] = set()
    metaclass: type = type(kind)
    for owner in metaclass.__mro__:
        if full_name(owner) in PLAIN_METACLASSES or owner is object:
            continue
        found.update(name for name in vars(owner) if name in FORWARDED and name != "__call__")
    return sorted(found)


def facts_of(kind: type) -> list[object]:
    facts: list[object] = []
    annotations = members_of(kind).get("__annotations__")
    if type(annotations) is dict and annotations:
        pairs = [
            [name, note if type(note) is str else annotation_text(note)]
            for name, note in annotations.items()
            if type(name) is str and name.isidentifier()
        ]
        facts.append(["annotations", pairs])
    if dataclasses.is_dataclass(kind):
        facts.append(["fields", [field.name for field in dataclasses.fields(kind)]])
    if (record := form_of(kind)) is not None:
        facts.append(["record", record[0], list(record[1])])
    slots = members_of(kind).get("__slots__")
    if isinstance(slots, (str, tuple, list, dict)):
        names = [slots] if isinstance(slots, str) else list(slots)
        facts.append(["slots", [name for name in names if type(name) is str][:MOST_MEMBERS]])
    if issubclass(kind, BaseException):
        facts.append(["exception", nearest_exception(kind)])
    return facts


def annotation_text(note: object) -> str:
    if isinstance(note, type):
        name = text_of(note, "__qualname__")
        module = text_of(note, "__module__")
        return name if module == "builtins" else f"{module}.{name}"
    try:
        return repr(note)[:LONGEST_NAME]
    except Exception:  # the repr of an annotation is a user's code
        return "object"


def nearest_exception(kind: type) -> str:
    """Name the nearest built-in Exception type of an exception class: what `except` finds it by."""
    for base in kind.__mro__:
        if EXCEPTIONS.get(base.__name__) is base:
            return base.__name__
    return "Exception"


def parse(plain: object) -> ClassDescription:
    """Check a description that came in; raise ProtocolError for anything but the documented
    list.
    """
    if not isinstance(plain, list) or len(plain) != 12:
        raise ProtocolError("a class description is a list of twelve")
    handle, module, qualname, doc, *lists, bases, facts = plain
    if type(handle) is not int or handle < 1:
        raise ProtocolError("a class description starts with its handle")
    if doc is not None and (type(doc) is not str or len(doc) > LONGEST_TEXT):
        raise ProtocolError("the doc of a class is text")
    methods, coroutines, attributes, dunders, absent, class_level = map(_names, lists)
    for name in methods | attributes:
        if is_dunder(name) or name.startswith("_membrane"):
            raise ProtocolError(f"a class cannot have a member {name!r}")
    if not dunders | class_level <= FORWARDED or not absent <= FORWARDED | ABSENT_ONLY:
        raise ProtocolError("a class description names an operator that is not forwarded")
    if not isinstance(bases, list) or len(bases) > MOST_BASES:
        raise ProtocolError("the bases of a class are a short list")
    for base in bases:
        if type(base) is not int and type(base) is not str:
            raise ProtocolError("a base is a handle or the name of a built-in type")
    annotations, fields, exception, slots, record = _facts(facts)
    return ClassDescription(
        handle=handle,
        module=_class_name(module),
        qualname=_class_name(qualname),
        doc=doc,
        methods=methods,
        coroutines=coroutines & methods,
        attributes=attributes - methods,
        dunders=dunders,
        absent=absent - dunders,
        class_dunders=class_level,
        bases=tuple(bases),
        annotations=annotations,
        fields=fields,
        exception=exception,
        slots=slots,
        record=record,
    )


def _class_name(word: object) -> str:
    if type(word) is not str or not word or len(word) > LONGEST_NAME or not word.isprintable():
        raise ProtocolError("a class has a printable name and module")
    return word


def _names(words: object) -> frozenset[str]:
    if not isinstance(words, list) or len(words) > MOST_MEMBERS:
        raise ProtocolError("members of a class are a list of names")
    for word in words:
        if type(word) is not str or len(word) > LONGEST_NAME or not word.isidentifier():
            raise ProtocolError("a member of a class is an identifier")
    return frozenset(words)


_Facts = tuple[
    tuple[tuple[str, str], ...],
    tuple[str, ...],
    str | None,
    tuple[str, ...] | None,
    tuple[str, tuple[str, ...]] | None,
]


def _facts(facts: object) -> _Facts:
    annotations: list[tuple[str, str]] = []
    fields: tuple[str, ...] = ()
    exception: str | None = None
    slots: tuple[str, ...] | None = None
    record: tuple[str, tuple[str, ...]] | None = None
    if not isinstance(facts, list) or len(facts) > 8:
        raise ProtocolError("facts of a class are a short list of pairs")
    for fact in facts:
        match fact:
            case ["annotations", list() as pairs] if len(pairs) <= MOST_MEMBERS:
                for pair in pairs:
                    match pair:
                        case [str() as name, str() as note] if name.isidentifier():
                            annotations.append((name, note[:LONGEST_NAME]))
                        case _:
                            raise ProtocolError("an annotation is a name and a text")
            case ["fields", list() as names]:
                _names(names)
                fields = tuple(names)
            case ["slots", list() as names]:
                _names(names)
                slots = tuple(names)
            case ["record", str() as form, list() as names] if are_fields(form, names):
                _names(names)
                record = form, tuple(names)
            case ["exception", str() as builtin] if builtin in EXCEPTIONS:
                exception = builtin
            case _:
                raise ProtocolError("a class description holds an unknown fact")
    return tuple(annotations), fields, exception, slots, record
