"""Descriptions of the API's answers in OpenAPI, and the parts that such descriptions are made of."""

from __future__ import annotations

from typing import Any

from spotwise.gateway.apis.preprocessor import MESSAGES
from spotwise.gateway.routes.responses import MOST_ITEMS
from spotwise.gateway.schema.embeddings import EmbeddingRequest
from spotwise.gateway.schema.parameters import Endpoint

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


ERROR = object_of(error=object_of(message=TEXT, type=TEXT, param=OR_NULL, code=OR_NULL))
MESSAGES_ERROR = object_of(type={"const": "error"}, error=object_of(type=TEXT, message=TEXT), request_id=TEXT)
MODEL_CARD = object_of(id=TEXT, object={"const": "model"}, created=COUNT, owned_by=TEXT, max_model_len=COUNT)
MODELS = object_of(object={"const": "list"}, data=list_of(ref("ModelCard")))
READINESS = object_of(status=TEXT, detail=TEXT)
HEALTH = object_of(status=TEXT, detail=TEXT, workers={"type": "object"})
TOKENS = object_of(
    count=COUNT,
    max_model_len=COUNT,
    tokens=list_of(COUNT),
    token_strs={"type": ["array", "null"], "items": TEXT},
)
CALL = object_of(id=TEXT, type={"const": "function"}, function=object_of(name=TEXT, arguments=TEXT))
MESSAGE: Schema = {"message": object_of(role={"const": "assistant"}, content=OR_NULL)}
MESSAGE["message"]["properties"] |= {"reasoning_content": TEXT, "tool_calls": list_of(CALL)}
CONTINUED = {
    Endpoint.CHAT: "a chat",
    Endpoint.COMPLETIONS: "a text",
    Endpoint.RESPONSES: "a conversation",
}
ITEM = object_of(id=TEXT, type=TEXT)
RESPONSE = object_of(
    id=TEXT,
    object={"const": "response"},
    created_at=COUNT,
    model=TEXT,
    status={"enum": ["completed", "incomplete"]},
    output={**list_of(ITEM), "minItems": 1},
    usage=object_of(input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT),
)
ITEMS = object_of(object={"const": "list"}, data=list_of(ITEM), first_id=OR_NULL, last_id=OR_NULL, has_more=FLAG)
RESPONSE_PATHS: Schema = {
    "/v1/responses/{response_id}": {
        "parameters": [path_part("response_id")],
        "get": operation("A stored response.", json_of(RESPONSE))
        | {"parameters": [query("stream", {"enum": ["false", "0", ""]})]},
        "delete": operation(
            "Forget a response.", json_of(object_of(id=TEXT, object={"const": "response"}, deleted=FLAG))
        ),
    },
    "/v1/responses/{response_id}/input_items": {
        "parameters": [path_part("response_id")],
        "get": operation("The items that a response answers.", json_of(ITEMS))
        | {
            "parameters": [
                query("limit", {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}),
                query("order", {"enum": ["asc", "desc"]}),
                query("after", TEXT),
            ]
        },
    },
}
MESSAGE_ANSWER: Schema = {
    **json_of(
        object_of(
            id=TEXT,
            type={"const": "message"},
            role={"const": "assistant"},
            model=TEXT,
            content=list_of(object_of(type={"enum": ["text", "thinking", "tool_use"]})),
            stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
            stop_sequence=OR_NULL,
            usage=object_of(
                input_tokens=COUNT,
                cache_creation_input_tokens=COUNT,
                cache_read_input_tokens=COUNT,
                output_tokens=COUNT,
            ),
        )
    ),
    "text/event-stream": {"schema": EVENT},
}
REQUEST = object_of(
    id=TEXT,
    object={"const": "request"},
    endpoint={"enum": [*(each.value for each in Endpoint), MESSAGES]},
    created=COUNT,
    resumable=FLAG,
    state=TEXT,
    choices=list_of(
        object_of(index=COUNT, output_tokens=COUNT, attempts=COUNT, finish_reason={"type": ["string", "null"]})
    ),
    error={"type": ["object", "null"]},
    response={"type": ["object", "null"]},
)
RESUMED = {**json_of(REQUEST), "text/event-stream": {"schema": EVENT}}
REQUEST_PATHS: Schema = {
    "/v1/requests/{request_id}": {
        "parameters": [path_part("request_id")],
        "get": operation("The state of a request, or the rest of its stream.", RESUMED, errors=GENERATION_ERRORS),
        "delete": operation("Cancel a request.", json_of(REQUEST), errors=GENERATION_ERRORS),
    }
}
EMBEDDINGS = object_of(
    id=TEXT,
    object={"const": "list"},
    created=COUNT,
    model=TEXT,
    data={
        **list_of(
            object_of(
                object={"const": "embedding"},
                index=COUNT,
                embedding={"anyOf": [TEXT, {**list_of({"type": "number"}), "minItems": 1}]},
            )
        ),
        "minItems": 1,
    },
    usage=object_of(prompt_tokens=COUNT, total_tokens=COUNT),
)
EMBEDDING_PATH: Schema = {
    **operation("Embeddings of texts.", json_of(EMBEDDINGS), errors=GENERATION_ERRORS),
    "requestBody": {"required": True, "content": json_of(ref(EmbeddingRequest.__name__))},
    "parameters": [TIMEOUT],
}
