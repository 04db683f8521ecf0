"""The page at /docs: the endpoints and their fields, from the OpenAPI document. Plain HTML, no scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>GlassGPT: endpoints</title>
</head>
<body>
<h1>{title}</h1>
<p>The endpoints of this server, from <a href="/openapi.json">its OpenAPI document</a>.
<a href="/">Start</a>.</p>
<ul>{contents}</ul>
{operations}
</body>
</html>
"""
EXAMPLE = """curl {url}v1/completions -H 'Content-Type: application/json' \\
  -d '{{"prompt": "The old house", "max_tokens": 20}}'"""


@router.get("/docs")
async def get_docs(request: Request) -> Response:
    document = request.app.openapi()
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    page = PAGE.format(
        title=escape(f"{document['info']['title']} {document['info']['version']}"),
        contents="".join(
            f'<li><a href="#{anchor(name)}"><code>{escape(name)}</code></a></li>' for name, _ in operations
        ),
        operations="".join(
            describe_operation(document, name, operation, str(request.base_url))
            for name, operation in operations
        ),
    )
    return Response(page, media_type="text/html; charset=utf-8")


def anchor(name: str) -> str:
    return escape(name.lower().replace(" ", "-").replace("/", "-"), quote=True)


def describe_operation(document: dict[str, Any], name: str, operation: dict[str, Any], url: str) -> str:
    parts = [f'<h2 id="{anchor(name)}"><code>{escape(name)}</code></h2>']
    if "description" in operation:
        parts.append(f"<p>{escape(operation['description'])}</p>")
    if name == "POST /v1/completions":
        parts.append(f"<pre>{escape(EXAMPLE.format(url=url))}</pre>")
    rows = [
        (field["name"], field["schema"], bool(field.get("required")))
        for field in operation.get("parameters", [])
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        schema = resolve(document, body)
        needed = schema.get("required", [])
        rows += [(field, value, field in needed) for field, value in schema.get("properties", {}).items()]
    if rows:
        head = "<tr><th>field</th><th>type</th><th>meaning</th></tr>"
        parts.append(f"<table>{head}{''.join(describe_field(document, *row) for row in rows)}</table>")
    answers = (
        f"<dt>{escape(status)}</dt><dd>{escape(answer['description'])}</dd>"
        for status, answer in sorted(operation["responses"].items())
    )
    return "".join([*parts, f"<dl>{''.join(answers)}</dl>"])


def describe_field(document: dict[str, Any], name: str, schema: dict[str, Any], required: bool) -> str:
    meaning = schema.get("description", "")
    if required:
        meaning = f"Required. {meaning}".strip()
    kinds = " or ".join(dict.fromkeys(describe_types(document, schema)))
    return f"<tr><td><code>{escape(name)}</code></td><td>{escape(kinds)}</td><td>{escape(meaning)}</td></tr>"


def describe_types(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """What a field may be, in words; null is left out, since every field may be."""
    schema = resolve(document, schema)
    if "anyOf" in schema or "oneOf" in schema:
        for option in schema["anyOf"] if "anyOf" in schema else schema["oneOf"]:
            yield from describe_types(document, option)
    elif "const" in schema or "enum" in schema:
        yield ", ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    elif schema.get("type") == "array":
        yield "list of " + " or ".join(dict.fromkeys(describe_types(document, schema.get("items", {}))))
    elif schema.get("type") != "null":
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        kind = str(schema.get("type", "anything"))
        yield kind if low is None or high is None else f"{kind}, {low} to {high}"


def resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A schema itself in place of a reference to it."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema
