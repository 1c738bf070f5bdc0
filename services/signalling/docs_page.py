"""A page that lists the operations of the OpenAPI document and sends requests to them; it loads
nothing from anywhere, and its content security policy lets it speak to this origin alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre, textarea, input { font: 14px ui-monospace, monospace }
details { border-top: 1px solid #8884; padding: .5rem 0 }
summary { cursor: pointer }
b { display: inline-block; min-width: 4.5rem }
label { display: block; margin: .3rem 0 }
input, textarea { width: 100%; box-sizing: border-box }
input[type=password] { max-width: 32rem }
textarea { min-height: 8rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8882; padding: .5rem }
"""

_SCRIPT = """
const key = document.getElementById("key");
for (const form of document.forms) form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const shown = form.querySelector("pre"), query = new URLSearchParams(), headers = {};
  let path = form.dataset.path;
  for (const field of form.querySelectorAll("input")) {
    if (field.dataset.in === "path")
      path = path.replace(`{${field.name}}`, () => encodeURIComponent(field.value));
    else if (field.value && field.dataset.in === "query") query.set(field.name, field.value);
    else if (field.value) headers[field.name] = field.value;
  }
  if (key.value) headers.Authorization = `Bearer ${key.value}`;
  const body = form.querySelector("textarea");
  if (body) headers["Content-Type"] = body.dataset.type;
  const asked = query.size ? `${path}?${query}` : path;
  shown.textContent = "…";
  try {
    const answer = await fetch(asked, {
      method: form.dataset.method, headers, body: body ? body.value : undefined,
    });
    shown.textContent = `${answer.status} ${answer.statusText}\\n`;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read())
      shown.textContent += part.value;
  } catch (error) {
    shown.textContent += String(error);
  }
});
"""


def _hashed(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


DOCS_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src {_hashed(_SCRIPT)}; style-src"
    f" {_hashed(_STYLE)}; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""What goes with the page."""


def docs_page(document: Mapping[str, object]) -> str:
    """Return the HTML for an OpenAPI document."""
    operations, preface = [], ""
    match document:
        case {"paths": dict(paths), "components": {"schemas": dict(schemas)}, "info": dict(info)}:
            preface = "".join(
                f"<p>{escape(part)}</p>" for part in str(info["description"]).split("\n\n")
            )
            for path, methods in paths.items():
                for method, operation in methods.items():
                    operations.append(_operation(path, method, operation, schemas))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Fairlead API</title>'
        f"<style>{_STYLE}</style><h1>Fairlead API</h1>{preface}"
        '<p>Every shape is in <a href="/openapi.json">openapi.json</a>.</p><label>API key, which'
        ' stays in this page <input id="key" type="password" autocomplete="off"></label>'
        f"{''.join(operations)}<script>{_SCRIPT}</script></html>"
    )


def _operation(
    path: str, method: str, operation: Mapping[str, object], schemas: Mapping[str, object]
) -> str:
    statuses, fields = "", ""
    match operation:
        case {"responses": dict(responses)}:
            statuses = ", ".join(sorted(responses))
    match operation:
        case {"parameters": list(found)}:
            fields = "".join(map(_field, found))
    match operation:
        case {"requestBody": {"content": dict(contents)}}:
            kind, content = next(iter(contents.items()))
            fields += _body(kind, content, schemas)
    return (
        f"<details><summary><code><b>{escape(method.upper())}</b> {escape(path)}</code>"
        f" {escape(str(operation.get('summary', '')))}</summary>"
        f"<p>{escape(str(operation.get('description', '')))}<br>Answers: {escape(statuses)}</p>"
        f'<form data-method="{escape(method.upper())}" data-path="{escape(path)}">{fields}'
        "<button>Send</button><pre></pre></form></details>"
    )


def _field(parameter: Mapping[str, object]) -> str:
    name, place = escape(str(parameter["name"])), escape(str(parameter["in"]))
    required = " required" if parameter.get("required") else ""
    example = escape(str(parameter.get("example", "")))
    return (
        f"<label>{name} ({place}): {escape(str(parameter.get('description', '')))}"
        f'<input name="{name}" data-in="{place}" placeholder="{example}"{required}></label>'
    )


def _body(kind: str, content: Mapping[str, object], schemas: Mapping[str, object]) -> str:
    text = ""
    match content:
        case {"schema": {"$ref": str(reference)}} | {
            "schema": {"anyOf": [{"$ref": str(reference)}, *_]}
        }:
            match schemas.get(reference.rpartition("/")[2]):
                case {"examples": [example, *_]}:
                    text = json.dumps(example, indent=2)
    return f'<label>Body<textarea data-type="{escape(kind)}">{escape(text)}</textarea></label>'
