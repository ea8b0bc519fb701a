"""What descriptions of paths and bodies in OpenAPI are made of."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
FINISH: Schema = {"enum": ["stop", "length", "tool_calls"]}
#: Statuses of every path that needs a key, and more of those that generate.
ERRORS = (400, 401, 403, 404, 408, 417, 429, 431, 500, 501, 503, 505)
GENERATION_ERRORS = (*ERRORS, 409, 413, 415, 422, 504)


def operation(summary: str, content: Schema, errors: tuple[int, ...] = ERRORS, error: str = "Error") -> Schema:
    """Return a path's operation: its answer, and its errors."""
    refusals = {str(status): {"$ref": f"#/components/responses/{error}"} for status in errors}
    return {"summary": summary, "responses": {"200": {"description": "The answer.", "content": content}, **refusals}}


def object_of(**properties: Schema) -> Schema:
    """Return an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def list_of(item: Schema) -> Schema:
    """Return a list."""
    return {"type": "array", "items": item}


def ref(name: str) -> Schema:
    """Refer to a schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def json_of(schema: Schema) -> Schema:
    """Return a content of JSON."""
    return {"application/json": {"schema": schema}}


def header(name: str, description: str, **schema: Any) -> Schema:
    """Return a header of a request; `schema` adds to that of a text."""
    return {"name": name, "in": "header", "description": description, "schema": {**TEXT, **schema}}


def query(name: str, schema: Schema) -> Schema:
    """Return a parameter of a path's query."""
    return {"name": name, "in": "query", "schema": schema}


def path_part(name: str) -> Schema:
    """Return a part of a path, which is not empty."""
    return {"name": name, "in": "path", "required": True, "schema": {**TEXT, "minLength": 1}}


#: A server-sent event: the chunk as JSON, or `[DONE]`.
EVENT: Schema = {**object_of(data=TEXT), "description": "A chunk, or `[DONE]`."}
OR_NULL: Schema = {"type": ["string", "null"]}
TIMEOUT = header(
    "X-Request-Timeout", "Seconds after which the client gives up.", pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?$"
)
KEEPING = (
    header("Idempotency-Key", "The same key and body give the same answer.", pattern=r"^[!-~]{0,255}$"),
    header("X-Spotwise-Resumable", "With `true` the answer goes on without its client."),
    header("X-Resume", "With `true` each event of a stream has an id, from which the stream can go on."),
    header("Last-Event-ID", "Of the last event that the client got: its stream goes on from there."),
)
