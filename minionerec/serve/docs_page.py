"""The description of the HTTP interface as a page of plain HTML: no script, and nothing from other hosts."""

import html
import json
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }
h2 { border-top: 1px solid #cbd5e1; padding-top: 1.2rem; font-size: 1.1rem; overflow-wrap: anywhere; }
code, pre { font: 13px/1.45 ui-monospace, monospace; background: #f1f5f9; border-radius: 4px; }
code { padding: .1em .3em; } pre { padding: .8rem; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0; }
@media (prefers-color-scheme: dark) {
  body { background: #10161d; color: #dbe4ee; } code, pre { background: #1c2733; } h2 { border-color: #334155; }
  a { color: #8ec5ff; }
}
"""


def docs_page(document: dict[str, Any]) -> str:
    """A page of an OpenAPI document.

    Args:
        document: The document; its schemas are shown as they are.
    """
    parts = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = "".join(
        f"<h3 id='{_text(name)}'>{_text(name)}</h3>{_fields(schema)}"
        for name, schema in document["components"]["schemas"].items()
    )
    info = document["info"]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{_text(info['title'])}</title><link rel='stylesheet' href='docs.css'></head><body>"
        f"<h1>{_text(info['title'])}</h1><p>{_text(info['description'])}</p>"
        f"<p>For programs: <a href='openapi.json'>openapi.json</a></p>{''.join(parts)}<h2>Schemas</h2>{schemas}"
        "</body></html>"
    )


def _text(value: Any) -> str:
    return html.escape(str(value))


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    found = [f"<h2>{method.upper()} {_text(path)}</h2><p>{_text(operation['summary'])}</p>"]
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [
            f"<tr><td><code>{_text(each['name'])}</code></td><td>{_text(_range(each['schema']))}</td>"
            f"<td>{_text(each.get('description', ''))}</td></tr>"
            for each in parameters
        ]
        found.append(f"<table>{''.join(rows)}</table>")
    if "requestBody" in operation:
        found.append(_examples("asks", operation["requestBody"]["content"]))
    for status, response in operation["responses"].items():
        if status == "200":
            found.append(_examples("answers", response["content"]))
    told = [
        f"<tr><td><code>{_text(status)}</code></td><td>{_text(response['description'])}</td></tr>"
        for status, response in operation["responses"].items()
    ]
    return "".join([*found, f"<table>{''.join(told)}</table>"])


def _examples(word: str, content: dict[str, Any]) -> str:
    return "".join(
        f"<p>{_text(f'{word}, {name}')}</p><pre>{_text(json.dumps(example['value'], indent=1))}</pre>"
        for kind in content.values()
        for name, example in kind.get("examples", {}).items()
    )


def _fields(schema: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{_text(name)}</code></td><td>{_text(_range(each))}</td>"
        f"<td>{_text(each.get('description', ''))}</td></tr>"
        for name, each in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _range(schema: dict[str, Any]) -> str:
    """What a value may be, in few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "")
    said = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if "items" in schema:
        said += f" of {_range(schema['items'])}"
    bounds = [
        f"{word} {schema[name]}"
        for name, word in (("minimum", "from"), ("maximum", "to"), ("minItems", "at least"), ("maxItems", "at most"))
        if name in schema
    ]
    return ", ".join([said, *bounds] + ([f"default {json.dumps(schema['default'])}"] if "default" in schema else []))
