"""The API's description in OpenAPI 3.1, at `/openapi.json`: what a client may send and gets, for people and tools to read.

Bodies are described by the models that check them, refused parameters by the table that refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import orjson
from pydantic.json_schema import models_json_schema

from spotwise.core.requests.names import ANY_NAME
from spotwise.gateway.apis.chat import ChatWriter
from spotwise.gateway.apis.completions import CompletionWriter
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.routes.openapi_answers import (
    CONTINUED,
    COUNT,
    EMBEDDING_PATH,
    ERROR,
    ERRORS,
    EVENT,
    FINISH,
    GENERATION_ERRORS,
    HEALTH,
    KEEPING,
    MESSAGE,
    MESSAGE_ANSWER,
    MESSAGES_ERROR,
    MODEL_CARD,
    MODELS,
    OR_NULL,
    READINESS,
    REQUEST_PATHS,
    RESPONSE,
    RESPONSE_PATHS,
    TEXT,
    TIMEOUT,
    TOKENS,
    Schema,
    json_of,
    list_of,
    object_of,
    operation,
    path_part,
    ref,
)
from spotwise.gateway.schema.chat import ChatRequest
from spotwise.gateway.schema.completions import CompletionRequest
from spotwise.gateway.schema.embeddings import REFUSED_FOR_EMBEDDINGS, EmbeddingRequest
from spotwise.gateway.schema.messages import MessagesPrompt, MessagesRequest
from spotwise.gateway.schema.parameters import REFUSED, Endpoint, Refused
from spotwise.gateway.schema.responses import ResponsesRequest
from spotwise.gateway.schema.shared import GenerationRequest, SharedRequest, StrictBody
from spotwise.gateway.schema.tokenize import TEMPLATE_PARAMETERS, DetokenizeRequest, TokenizeChat, TokenizePrompt
from spotwise.http.message_errors import MESSAGES_PATH

_TOKEN_BODIES: tuple[type[StrictBody], ...] = (TokenizePrompt, TokenizeChat, DetokenizeRequest)
_MESSAGE_BODIES: tuple[type[StrictBody], ...] = (MessagesRequest, MessagesPrompt)
_BODIES: tuple[type[StrictBody], ...] = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ResponsesRequest,
    *_MESSAGE_BODIES,
    *_TOKEN_BODIES,
)


def api_description(options: ApiOptions, *, keeps_requests: bool) -> Schema:
    """Return the description of an API for one model.

    Args:
        options: its name and limits.
        keeps_requests: the paths of kept requests are there.
    """
    schemas: Schema = orjson.loads(_body_schemas())
    for request in (ChatRequest, CompletionRequest, ResponsesRequest):
        _limit(schemas[request.__name__]["properties"], request, options)
    _limit_embeddings(schemas[EmbeddingRequest.__name__]["properties"], options)
    for body in _MESSAGE_BODIES:
        properties = schemas[body.__name__]["properties"]
        properties |= {"model": _model(options), **_refused_at(Endpoint.MESSAGES)}
    _limit_tokens({each.__name__: schemas[each.__name__]["properties"] for each in _TOKEN_BODIES}, options)
    headers = [TIMEOUT, *(KEEPING if keeps_requests else ())]
    schemas |= {"Error": ERROR, "MessagesError": MESSAGES_ERROR, "ModelCard": MODEL_CARD}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "spotwise",
            "version": "1",
            "description": "OpenAI's API and Anthropic's messages, for one model of a spotwise mesh.",
        },
        "components": {
            "schemas": schemas,
            "responses": {
                name: {"description": "An error.", "content": json_of(ref(name))} for name in ("Error", "MessagesError")
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "security": [{}, {"key": []}, {"header": []}],
        "paths": {
            "/v1/chat/completions": {"post": _generation(ChatRequest, ChatWriter.WHOLE_OBJECT, MESSAGE, headers)},
            "/v1/completions": {
                "post": _generation(CompletionRequest, CompletionWriter.WHOLE_OBJECT, {"text": TEXT}, headers)
            },
            "/v1/responses": {"post": _answered(ResponsesRequest, RESPONSE, headers)},
            **(RESPONSE_PATHS if options.stores_responses else {}),
            "/v1/embeddings": {"post": EMBEDDING_PATH},
            MESSAGES_PATH: {"post": _message("Continue a conversation.", MessagesRequest, MESSAGE_ANSWER, headers)},
            f"{MESSAGES_PATH}/count_tokens": {
                "post": _message("Tokens of a conversation.", MessagesPrompt, json_of(object_of(input_tokens=COUNT)))
            },
            "/tokenize": {"post": _tokens("Tokens of a text.", [TokenizePrompt, TokenizeChat], TOKENS)},
            "/detokenize": {"post": _tokens("The text of tokens.", [DetokenizeRequest], object_of(prompt=TEXT))},
            "/v1/models": {"get": operation("The model that is served, and its adapters.", json_of(MODELS))},
            "/v1/models/{model_id}": {
                "get": operation("A model.", json_of(ref("ModelCard"))) | {"parameters": [path_part("model_id")]}
            },
            "/version": {"get": operation("The version of the server.", json_of(object_of(version=TEXT)), errors=())},
            "/ping": dict.fromkeys(
                ("get", "post"), operation("Whether requests can be served.", json_of(HEALTH), errors=(503,))
            ),
            "/livez": {"get": operation("That the process answers.", json_of(object_of(status=TEXT)), errors=())},
            "/readyz": {"get": operation("Whether it takes requests.", json_of(READINESS), errors=(503,))},
            "/health": {"get": operation("Whether requests can be served.", json_of(HEALTH), errors=(503,))},
            "/metrics": {"get": operation("Metrics, for Prometheus.", {"text/plain": {"schema": TEXT}})},
            **(REQUEST_PATHS if keeps_requests else {}),
        },
    }


@cache
def _body_schemas() -> bytes:
    """Return the schemas of all bodies as JSON: they are the same for every server, and take a tenth of a second to make."""
    _, defined = models_json_schema(
        [(model, "validation") for model in _BODIES], ref_template="#/components/schemas/{model}"
    )
    return orjson.dumps(defined["$defs"])


def _limit(properties: Schema, request: type[SharedRequest], options: ApiOptions) -> None:
    """Add what only this server knows: the names of models, its limits, and the parameters that it refuses."""
    properties["model"] = _model(options)
    for name, most in (("n", options.max_n), ("best_of", options.max_n), ("top_logprobs", options.max_logprobs)):
        if name in properties:
            properties[name]["anyOf"][0]["maximum"] = most
    properties["priority"]["anyOf"][0]["minimum"] = options.least_priority
    if request is CompletionRequest:
        properties["logprobs"]["anyOf"][0]["maximum"] = options.max_logprobs
    properties |= _refused_at(request.endpoint)


def _limit_embeddings(properties: Schema, options: ApiOptions) -> None:
    properties["model"] = _model(options)
    properties["priority"]["anyOf"][0]["minimum"] = options.least_priority
    if options.embeddings.size is not None:
        properties["dimensions"]["anyOf"][0]["maximum"] = options.embeddings.size
    for refused in REFUSED_FOR_EMBEDDINGS:
        properties[refused.name] = _refused(refused)


def _limit_tokens(properties: dict[str, Schema], options: ApiOptions) -> None:
    for of_body in properties.values():
        of_body["model"] = OR_NULL if ANY_NAME in options.aliases else {"enum": [None, *options.names]}
    properties["TokenizePrompt"]["messages"] = properties["TokenizeChat"]["prompt"] = {"type": "null"}
    for refused in REFUSED:
        if refused.name in TEMPLATE_PARAMETERS:
            properties["TokenizeChat"][refused.name] = _refused(refused)


def _refused_at(endpoint: Endpoint) -> Schema:
    """Return the parameters that an endpoint refuses; members of others are their own schemas' concern."""
    return {rule.name: _refused(rule) for rule in REFUSED if endpoint in rule.at and "." not in rule.name}


def _model(options: ApiOptions) -> Schema:
    return TEXT if ANY_NAME in options.aliases else {"enum": list(options.names)}


def _refused(refused: Refused) -> Schema:
    return {"enum": [None, *refused.off], "description": f"Not supported: {refused.hint}."}


def _tokens(summary: str, bodies: list[type[StrictBody]], answer: Schema) -> Schema:
    content = {"anyOf": [ref(each.__name__) for each in bodies]}
    return operation(summary, json_of(answer), errors=(*ERRORS, 413, 415)) | {
        "requestBody": {"required": True, "content": json_of(content)}
    }


def _generation(request: type[GenerationRequest], object_name: str, text: Schema, headers: list[Schema]) -> Schema:
    choice = object_of(index=COUNT, finish_reason=FINISH, **text)
    answer = object_of(
        id=TEXT,
        object={"const": object_name},
        created=COUNT,
        model=TEXT,
        choices={**list_of(choice), "minItems": 1},
        usage=object_of(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT),
    )
    return _answered(request, answer, headers)


def _answered(request: type[SharedRequest], answer: Schema, headers: list[Schema]) -> Schema:
    content = {**json_of(answer), "text/event-stream": {"schema": EVENT}}
    return operation(f"Continue {CONTINUED[request.endpoint]}.", content, errors=GENERATION_ERRORS) | {
        "requestBody": {"required": True, "content": json_of(ref(request.__name__))},
        "parameters": headers,
    }


def _message(summary: str, body: type[StrictBody], content: Schema, headers: Sequence[Schema] = ()) -> Schema:
    described = {"required": True, "content": json_of(ref(body.__name__))}
    answered = operation(summary, content, errors=GENERATION_ERRORS, error="MessagesError")
    return answered | {"requestBody": described, "parameters": list(headers)}
