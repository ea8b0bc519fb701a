"""The body of `POST /v1/completions`, and the prompts of a body: a string, strings, token ids, or lists of token ids."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema

from spotwise.gateway.schema.parameters import Endpoint
from spotwise.gateway.schema.shared import GenerationRequest
from spotwise.http.errors import ApiError, bad_request

#: One prompt, as text or as token ids.
Prompt = str | list[int]
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def prompts_schema(**limits: int) -> dict[str, Any]:
    """Return the JSON schema of a parameter with prompts; `limits` are of a list of several."""
    several = ({"type": "array", "items": each, "minItems": 1, **limits} for each in (_TEXT, _IDS))
    return {"anyOf": [_TEXT, _IDS, *several]}


def num_prompts(given: Any) -> int:
    """Return how many prompts there are, without reading each."""
    several = isinstance(given, list) and bool(given) and type(given[0]) is not int
    return len(given) if several else 1


def prompts_of(given: Any, param: str) -> list[tuple[str, Prompt]]:
    """Return the prompts of a parameter, each with its path.

    Raises:
        ApiError: 400, the parameter is missing, empty or of another shape.
    """
    if given is None:
        raise bad_request(f"You must provide a {param} parameter.", param, "missing_required_parameter")
    if isinstance(given, str) or (isinstance(given, list) and _are_ids(given)):
        if not given:
            raise _empty(param)
        return [(param, given)]
    if not isinstance(given, list):
        raise _wrong_shape(param, param)
    if not given:
        raise _empty(param)
    for index, prompt in enumerate(given):
        if prompt in ("", []):
            raise _empty(f"{param}.{index}")
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and _are_ids(prompt)):
            raise _wrong_shape(f"{param}.{index}", param)
    if len({type(prompt) for prompt in given}) > 1:
        raise _wrong_shape(param, param)
    return [(f"{param}.{index}", prompt) for index, prompt in enumerate(given)]


def _are_ids(values: list[Any]) -> bool:
    """Whether a list is one prompt of token ids; the empty list is no prompt at all."""
    return bool(values) and all(type(value) is int for value in values)


def _wrong_shape(path: str, param: str) -> ApiError:
    shapes = "a string, a list of strings, a list of token ids or a list of token id lists"
    return bad_request(f"Invalid type for '{path}': '{param}' must be {shapes}.", path, "invalid_type")


def _empty(path: str) -> ApiError:
    return bad_request(f"Invalid value for '{path}': a prompt must not be empty.", path, "invalid_value")


class CompletionRequest(GenerationRequest):
    """OpenAI's completion parameters."""

    endpoint: ClassVar = Endpoint.COMPLETIONS

    prompt: Annotated[Any, WithJsonSchema(prompts_schema())]
    best_of: int | None = Field(None, ge=1)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)
