"""Types for editors: `python -m membrane.stubs pkg.module:Class` writes a Protocol of a class.

The class is imported by a child only. What cannot be known without its module is Any.
"""

from __future__ import annotations

import argparse
import ast
import keyword
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from membrane import isolate
from membrane.errors import ProtocolError

if TYPE_CHECKING:
    from membrane.signatures import Member, Parameter

_MEANT_ALIKE = frozenset(
    {
        *("Any", "None", "bool", "int", "float", "complex", "str", "bytes", "bytearray", "object"),
        *("memoryview", "list", "tuple", "dict", "set", "frozenset", "range", "slice", "type"),
    }
)
"""Names that annotations may consist of; what names anything else is Any."""
_TARGET = re.compile(r"[\w.]+:[\w.]+")
_KINDS = frozenset({"method", "coroutine", "classmethod", "staticmethod", "property", "attribute"})
_LONGEST_ANNOTATION = 1000
_MARKS = {
    "method": "_method",
    "coroutine": "_method",
    "classmethod": "_class_method",
    "staticmethod": "_static_method",
}
"""What of `membrane.typed` gives a member its `batch` and `with_options`."""


def stub(target: str, members: Sequence[Member]) -> str:
    """Write the module that holds the Protocol of `target`, whose members were told.

    What was told comes from a process with strangers' code in it, and goes into a file that others
    read as source: raises ProtocolError for what is no name where a name has to be.
    """
    name = target.rpartition(":")[2].rpartition(".")[2]
    written = [line for member in members for line in _written(member)]
    marks = sorted({line.strip()[1:] for line in written if line.strip()[1:] in _MARKS.values()})
    lines = [
        f'"""What `isolate("{target}")` gives; written by `python -m membrane.stubs`."""',
        "",
        "from typing import Any, Protocol",
        "",
        *[f"from membrane.typed import {each[1:]} as {each}" for each in marks],
        *([""] if marks else []),
        "",
        f"class {_name(name)}(Protocol):",
    ]
    lines += written
    names = {each[1] for each in members}
    if "close" not in names:
        lines += ["    @classmethod", "    def close(cls) -> None: ..."]
    return "\n".join(lines) + "\n"


def _written(member: Member) -> list[str]:
    kind, name, parameters, returned, doc = member
    if kind not in _KINDS:
        raise ProtocolError(f"{kind!r} is no kind of a member")
    returned = "None" if name == "__init__" else _annotation(returned)
    if kind == "attribute":
        return [f"    {_name(name)}: {returned}"]
    first = {"classmethod": ["cls"], "staticmethod": []}.get(kind, ["self"])
    told = first if kind == "property" else [*first, *_parameters(parameters)]
    start = "async def" if kind == "coroutine" else "def"
    head = f"    {start} {_name(name)}({', '.join(told)}) -> {returned}:"
    # Operators and the constructor are no methods that are got from a proxy.
    is_dunder = name.startswith("__") and name.endswith("__")
    mark = [f"    @{_MARKS[kind]}"] if kind in _MARKS and not is_dunder else []
    if kind == "property" or (is_dunder and kind in ("classmethod", "staticmethod")):
        mark = [f"    @{kind}"]
    if not doc:
        return [*mark, f"{head} ..."]
    return [*mark, head, f"        {str(doc)!r}", "        ..."]


def _parameters(parameters: Sequence[Parameter] | None) -> list[str]:
    """Write parameters as a signature has them, defaults as `...`."""
    if parameters is None:
        return ["*arguments: Any", "**keywords: Any"]
    written: list[str] = []
    kinds = [kind for _, kind, _, _ in parameters]
    for index, (name, kind, annotation, has_default) in enumerate(parameters):
        star = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(kind, "")
        if kind == "KEYWORD_ONLY" and not {"VAR_POSITIONAL", "KEYWORD_ONLY"} & set(kinds[:index]):
            written.append("*")
        written.append(
            f"{star}{_name(name)}: {_annotation(annotation)}{' = ...' if has_default else ''}"
        )
        if kind == "POSITIONAL_ONLY" and kinds[index + 1 : index + 2] != ["POSITIONAL_ONLY"]:
            written.append("/")
    return written


def _name(word: object) -> str:
    if not isinstance(word, str) or not word.isidentifier() or keyword.iskeyword(word):
        raise ProtocolError(f"{word!r} is no name of a member or parameter")
    return word


def _annotation(text: object) -> str:
    """Return an annotation that means the same here as there; Any for all else."""
    if not isinstance(text, str) or len(text) > _LONGEST_ANNOTATION:
        return "Any"
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "Any"
    for node in ast.walk(tree.body):
        match node:
            case ast.Name(id=name) if name in _MEANT_ALIKE:
                pass
            case (
                ast.Constant(value=None) | ast.Subscript() | ast.Tuple() | ast.BitOr() | ast.Load()
            ):
                pass
            case ast.BinOp(op=ast.BitOr()):
                pass
            case ast.Constant(value=value) if value is ...:
                pass
            case _:
                return "Any"
    return ast.unparse(tree.body)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the stub of the class that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m membrane.stubs", description=__doc__)
    parser.add_argument("target", help="pkg.module:Class")
    target = parser.parse_args(arguments).target
    if not _TARGET.fullmatch(target):
        parser.error(f"{target!r} names no class; name one as pkg.module:Class")
    signatures = isolate("membrane.signatures:Signatures")
    try:
        members = cast("list[Member]", signatures().members(target))
    finally:
        signatures.close()
    sys.stdout.write(stub(target, members))


if __name__ == "__main__":
    main()
