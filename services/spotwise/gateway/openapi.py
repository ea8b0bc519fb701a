"""The API's description in OpenAPI 3.1, at `/openapi.json`: what a client may send and gets, for people and tools to read.

Bodies are described by the models that check them, refused parameters by the table that refuses them.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from spotwise.gateway.api_options import ApiOptions
from spotwise.gateway.chat import ChatFormat
from spotwise.gateway.completions import CompletionFormat
from spotwise.gateway.parameters import REFUSED, Endpoint, Refused
from spotwise.gateway.response_routes import MOST_ITEMS
from spotwise.gateway.schema import GenerationRequest, SharedRequest
from spotwise.gateway.schema_chat import ChatRequest
from spotwise.gateway.schema_completions import CompletionRequest
from spotwise.gateway.schema_embeddings import REFUSED_FOR_EMBEDDINGS, EmbeddingRequest
from spotwise.gateway.schema_responses import ResponsesRequest
from spotwise.gateway.schema_tokenize import TEMPLATE_PARAMETERS, DetokenizeRequest, TokenizeChat, TokenizePrompt
from spotwise.gateway.strict_body import StrictBody

Schema = dict[str, Any]

_TOKEN_BODIES: tuple[type[StrictBody], ...] = (TokenizePrompt, TokenizeChat, DetokenizeRequest)
_BODIES: tuple[type[StrictBody], ...] = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ResponsesRequest,
    *_TOKEN_BODIES,
)
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_FINISH: Schema = {"enum": ["stop", "length", "tool_calls"]}
#: Statuses of every path that needs a key, and more of those that generate.
_ERRORS = (400, 401, 403, 404, 408, 429, 431, 500, 503)
_GENERATION_ERRORS = (*_ERRORS, 409, 413, 415, 422, 504)


def api_description(options: ApiOptions, *, keeps_requests: bool) -> Schema:
    """Return the description of an API for one model.

    Args:
        options: its name and limits.
        keeps_requests: the paths of kept requests are there.
    """
    _, defined = models_json_schema(
        [(model, "validation") for model in _BODIES], ref_template="#/components/schemas/{model}"
    )
    schemas: Schema = defined["$defs"]
    for request in (ChatRequest, CompletionRequest, ResponsesRequest):
        _limit(schemas[request.__name__]["properties"], request, options)
    _limit_embeddings(schemas[EmbeddingRequest.__name__]["properties"], options)
    _limit_tokens({each.__name__: schemas[each.__name__]["properties"] for each in _TOKEN_BODIES}, options)
    headers = [_TIMEOUT, *(_KEEPING if keeps_requests else ())]
    schemas |= {"Error": _ERROR, "ModelCard": _MODEL_CARD}
    return {
        "openapi": "3.1.0",
        "info": {"title": "spotwise", "version": "1", "description": "OpenAI's API, for one model of a spotwise mesh."},
        "components": {
            "schemas": schemas,
            "responses": {"Error": {"description": "An error.", "content": _json_of(_ref("Error"))}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/chat/completions": {"post": _generation(ChatRequest, ChatFormat.WHOLE_OBJECT, _MESSAGE, headers)},
            "/v1/completions": {
                "post": _generation(CompletionRequest, CompletionFormat.WHOLE_OBJECT, {"text": _TEXT}, headers)
            },
            "/v1/responses": {"post": _answered(ResponsesRequest, _RESPONSE, headers)},
            **(_RESPONSE_PATHS if options.stores_responses else {}),
            "/v1/embeddings": {"post": _EMBEDDING_PATH},
            "/tokenize": {"post": _tokens("Tokens of a text.", [TokenizePrompt, TokenizeChat], _TOKENS)},
            "/detokenize": {"post": _tokens("The text of tokens.", [DetokenizeRequest], _object(prompt=_TEXT))},
            "/v1/models": {"get": _operation("The model that is served, and its adapters.", _json_of(_MODELS))},
            "/v1/models/{model_id}": {
                "get": _operation("A model.", _json_of(_ref("ModelCard"))) | {"parameters": [_path_part("model_id")]}
            },
            "/health": {"get": _operation("Whether requests can be served.", _json_of(_HEALTH), errors=(503,))},
            "/metrics": {"get": _operation("Metrics, for Prometheus.", {"text/plain": {"schema": _TEXT}})},
            **(_REQUEST_PATHS if keeps_requests else {}),
        },
    }


def _limit(properties: Schema, request: type[SharedRequest], options: ApiOptions) -> None:
    """Add what only this server knows: the names of models, its limits, and the parameters that it refuses."""
    properties["model"] = {"enum": list(options.names)}
    for name, most in (("n", options.max_n), ("best_of", options.max_n), ("top_logprobs", options.max_logprobs)):
        if name in properties:
            properties[name]["anyOf"][0]["maximum"] = most
    properties["priority"]["anyOf"][0]["minimum"] = options.least_priority
    if request is CompletionRequest:
        properties["logprobs"]["anyOf"][0]["maximum"] = options.max_logprobs
    for refused in REFUSED:
        if request.endpoint in refused.at:
            properties[refused.name] = _refused(refused)


def _limit_embeddings(properties: Schema, options: ApiOptions) -> None:
    properties["model"] = {"enum": list(options.names)}
    properties["priority"]["anyOf"][0]["minimum"] = options.least_priority
    if options.embeddings.size is not None:
        properties["dimensions"]["anyOf"][0]["maximum"] = options.embeddings.size
    for refused in REFUSED_FOR_EMBEDDINGS:
        properties[refused.name] = _refused(refused)


def _limit_tokens(properties: dict[str, Schema], options: ApiOptions) -> None:
    for of_body in properties.values():
        of_body["model"] = {"enum": [None, *options.names]}
    properties["TokenizePrompt"]["messages"] = properties["TokenizeChat"]["prompt"] = {"type": "null"}
    for refused in REFUSED:
        if refused.name in TEMPLATE_PARAMETERS:
            properties["TokenizeChat"][refused.name] = _refused(refused)


def _refused(refused: Refused) -> Schema:
    return {"enum": [None, *refused.off], "description": f"Not supported: {refused.hint}."}


def _tokens(summary: str, bodies: list[type[StrictBody]], answer: Schema) -> Schema:
    content = {"anyOf": [_ref(each.__name__) for each in bodies]}
    return _operation(summary, _json_of(answer), errors=(*_ERRORS, 413, 415)) | {
        "requestBody": {"required": True, "content": _json_of(content)}
    }


def _generation(request: type[GenerationRequest], object_name: str, text: Schema, headers: list[Schema]) -> Schema:
    choice = _object(index=_COUNT, finish_reason=_FINISH, **text)
    answer = _object(
        id=_TEXT,
        object={"const": object_name},
        created=_COUNT,
        model=_TEXT,
        choices={**_list(choice), "minItems": 1},
        usage=_object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT),
    )
    return _answered(request, answer, headers)


def _answered(request: type[SharedRequest], answer: Schema, headers: list[Schema]) -> Schema:
    content = {**_json_of(answer), "text/event-stream": {"schema": _EVENT}}
    return _operation(f"Continue {_CONTINUED[request.endpoint]}.", content, errors=_GENERATION_ERRORS) | {
        "requestBody": {"required": True, "content": _json_of(_ref(request.__name__))},
        "parameters": headers,
    }


def _operation(summary: str, content: Schema, errors: tuple[int, ...] = _ERRORS) -> Schema:
    refusals = {str(status): {"$ref": "#/components/responses/Error"} for status in errors}
    return {"summary": summary, "responses": {"200": {"description": "The answer.", "content": content}, **refusals}}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_of(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _header(name: str, description: str, **schema: Any) -> Schema:
    return {"name": name, "in": "header", "description": description, "schema": {**_TEXT, **schema}}


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "schema": schema}


def _path_part(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}


#: A server-sent event: the chunk as JSON, or `[DONE]`; its id is where a stream can go on.
_EVENT: Schema = {**_object(data=_TEXT), "description": "A chunk, or `[DONE]`."}
_OR_NULL: Schema = {"type": ["string", "null"]}
_ERROR = _object(error=_object(message=_TEXT, type=_TEXT, param=_OR_NULL, code=_OR_NULL))
_MODEL_CARD = _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT, max_model_len=_COUNT)
_MODELS = _object(object={"const": "list"}, data=_list(_ref("ModelCard")))
_HEALTH = _object(status=_TEXT, detail=_TEXT, workers={"type": "object"})
_TOKENS = _object(
    count=_COUNT,
    max_model_len=_COUNT,
    tokens=_list(_COUNT),
    token_strs={"type": ["array", "null"], "items": _TEXT},
)
_CALL = _object(id=_TEXT, type={"const": "function"}, function=_object(name=_TEXT, arguments=_TEXT))
_MESSAGE: Schema = {"message": _object(role={"const": "assistant"}, content=_OR_NULL)}
_MESSAGE["message"]["properties"] |= {"reasoning_content": _TEXT, "tool_calls": _list(_CALL)}
_CONTINUED = {
    Endpoint.CHAT: "a chat",
    Endpoint.COMPLETIONS: "a text",
    Endpoint.RESPONSES: "a conversation",
}
_ITEM = _object(id=_TEXT, type=_TEXT)
_RESPONSE = _object(
    id=_TEXT,
    object={"const": "response"},
    created_at=_COUNT,
    model=_TEXT,
    status={"enum": ["completed", "incomplete"]},
    output={**_list(_ITEM), "minItems": 1},
    usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
)
_ITEMS = _object(object={"const": "list"}, data=_list(_ITEM), first_id=_OR_NULL, last_id=_OR_NULL, has_more=_FLAG)
_RESPONSE_PATHS: Schema = {
    "/v1/responses/{response_id}": {
        "parameters": [_path_part("response_id")],
        "get": _operation("A stored response.", _json_of(_RESPONSE))
        | {"parameters": [_query("stream", {"enum": ["false", "0", ""]})]},
        "delete": _operation(
            "Forget a response.", _json_of(_object(id=_TEXT, object={"const": "response"}, deleted=_FLAG))
        ),
    },
    "/v1/responses/{response_id}/input_items": {
        "parameters": [_path_part("response_id")],
        "get": _operation("The items that a response answers.", _json_of(_ITEMS))
        | {
            "parameters": [
                _query("limit", {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}),
                _query("order", {"enum": ["asc", "desc"]}),
                _query("after", _TEXT),
            ]
        },
    },
}
_REQUEST = _object(
    id=_TEXT,
    object={"const": "request"},
    endpoint={"enum": [each.value for each in Endpoint]},
    created=_COUNT,
    resumable=_FLAG,
    state=_TEXT,
    choices=_list(
        _object(index=_COUNT, output_tokens=_COUNT, attempts=_COUNT, finish_reason={"type": ["string", "null"]})
    ),
    error={"type": ["object", "null"]},
    response={"type": ["object", "null"]},
)
_TIMEOUT = _header(
    "X-Request-Timeout", "Seconds after which the client gives up.", pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?$"
)
_KEEPING = (
    _header("Idempotency-Key", "The same key and body give the same answer.", pattern=r"^[!-~]{0,255}$"),
    _header("X-Spotwise-Resumable", "With `true` the answer goes on without its client."),
    _header("Last-Event-ID", "Of the last event that the client got: its stream goes on from there."),
)
_RESUMED = {**_json_of(_REQUEST), "text/event-stream": {"schema": _EVENT}}
_REQUEST_PATHS: Schema = {
    "/v1/requests/{request_id}": {
        "parameters": [_path_part("request_id")],
        "get": _operation("The state of a request, or the rest of its stream.", _RESUMED, errors=_GENERATION_ERRORS),
        "delete": _operation("Cancel a request.", _json_of(_REQUEST), errors=_GENERATION_ERRORS),
    }
}
_EMBEDDINGS = _object(
    id=_TEXT,
    object={"const": "list"},
    created=_COUNT,
    model=_TEXT,
    data={
        **_list(
            _object(
                object={"const": "embedding"},
                index=_COUNT,
                embedding={"anyOf": [_TEXT, {**_list({"type": "number"}), "minItems": 1}]},
            )
        ),
        "minItems": 1,
    },
    usage=_object(prompt_tokens=_COUNT, total_tokens=_COUNT),
)
_EMBEDDING_PATH: Schema = {
    **_operation("Embeddings of texts.", _json_of(_EMBEDDINGS), errors=_GENERATION_ERRORS),
    "requestBody": {"required": True, "content": _json_of(_ref(EmbeddingRequest.__name__))},
    "parameters": [_TIMEOUT],
}
