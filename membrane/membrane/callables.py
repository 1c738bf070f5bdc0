"""Signatures and docstrings of callables, told as plain data and believed within bounds only."""

from __future__ import annotations

import inspect
import keyword

from membrane.errors import ProtocolError

LONGEST_DOC = 64 * 1024
LONGEST_NOTE = 512
MOST_PARAMETERS = 1000
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_KINDS = {kind.name: kind for kind in inspect._ParameterKind}


class Shown:
    """A default or an annotation that did not come over, as the text that it is shown by."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def told(function: object) -> list[object]:
    """Tell docstring and signature of a callable: [doc, [parameters, result]], None for what is
    not known. A parameter is [name, kind, annotation, default]; an annotation is None or a text, a
    default [], [atom], or [None, text].
    """
    doc = inspect.getdoc(function)
    described: list[object | None] = [
        _text(doc, LONGEST_DOC) if isinstance(doc, str) else None,
        None,
    ]
    if not callable(function):
        return described
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return described
    parameters = [
        [each.name, each.kind.name, _note(each.annotation), _default(each.default)]
        for each in list(signature.parameters.values())[:MOST_PARAMETERS]
    ]
    described[1] = [parameters, _note(signature.return_annotation)]
    return described


def read(described: object) -> tuple[str | None, inspect.Signature | None]:
    """Build what `told` told; raise ProtocolError for anything else."""
    match described:
        case [str() | None as doc, None] if doc is None or len(doc) <= LONGEST_DOC:
            return doc, None
        case [str() | None as doc, [list() as parameters, str() | None as result]] if (
            doc is None or len(doc) <= LONGEST_DOC
        ) and len(parameters) <= MOST_PARAMETERS:
            try:
                signature = inspect.Signature(
                    list(map(_read_parameter, parameters)),
                    return_annotation=_read_note(result),
                )
            except (ValueError, TypeError) as error:
                raise ProtocolError(f"no function has such a signature: {error}") from None
            return doc, signature
    raise ProtocolError("a callable is described by a docstring and a signature")


def _read_parameter(told: object) -> inspect.Parameter:
    match told:
        case [str() as name, str() as kind, str() | None as note, list() as default] if (
            kind in _KINDS and name.isidentifier() and not keyword.iskeyword(name)
        ) and len(name) <= LONGEST_NOTE:
            value: object = inspect.Parameter.empty
            match default:
                case []:
                    pass
                case [None, str() as text]:
                    value = Shown(text[:LONGEST_NOTE])
                case [atom] if type(atom) in _ATOMS:
                    value = atom
                case _:
                    raise ProtocolError("a default is an atom or a text")
            return inspect.Parameter(name, _KINDS[kind], default=value, annotation=_read_note(note))
    raise ProtocolError("a parameter is a name, a kind, an annotation and a default")


def _read_note(note: str | None) -> object:
    # A string would be taken for source that may be evaluated (inspect.get_annotations).
    return inspect.Parameter.empty if note is None else Shown(note[:LONGEST_NOTE])


def _note(note: object) -> str | None:
    if note is inspect.Parameter.empty:
        return None
    return _text(note if isinstance(note, str) else inspect.formatannotation(note), LONGEST_NOTE)


def _default(default: object) -> list[object]:
    if default is inspect.Parameter.empty:
        return []
    shown = repr(default)
    is_wide = type(default) is int and default.bit_length() > 63
    if type(default) in _ATOMS and len(shown) <= LONGEST_NOTE and shown.isascii() and not is_wide:
        return [default]
    return [None, _text(shown, LONGEST_NOTE)]


def _text(text: object, most: int) -> str:
    # Half of a surrogate pair has no encoding.
    return str(text)[:most].encode("utf-8", "backslashreplace").decode()[:most]
