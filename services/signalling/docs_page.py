"""A page that lists the operations of the OpenAPI document; it loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font: 14px ui-monospace, monospace }
section { border-top: 1px solid #8884; padding: .5rem 0 }
b { display: inline-block; min-width: 4.5rem }
"""


def docs_page(document: Mapping[str, object]) -> str:
    """Return the HTML for an OpenAPI document."""
    operations = []
    match document:
        case {"paths": dict(paths)}:
            for path, methods in paths.items():
                for method, operation in methods.items():
                    operations.append(_operation(path, method, operation))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Fairlead API</title>'
        f"<style>{_STYLE}</style><h1>Fairlead API</h1>"
        "<p>Send <code>Authorization: Bearer &lt;key&gt;</code>. Every shape is in "
        '<a href="/openapi.json">openapi.json</a>.</p>'
        f"{''.join(operations)}</html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, object]) -> str:
    statuses = ""
    match operation:
        case {"responses": dict(responses)}:
            statuses = ", ".join(sorted(responses))
    parameters = ""
    match operation:
        case {"parameters": list(found)}:
            parameters = ", ".join(f"{item['name']} ({item['in']})" for item in found)
    return (
        f"<section><code><b>{escape(method.upper())}</b> {escape(path)}</code>"
        f"<br>{escape(str(operation.get('description', '')))}"
        + (f"<br>Parameters: {escape(parameters)}" if parameters else "")
        + f"<br>Answers: {escape(statuses)}</section>"
    )
