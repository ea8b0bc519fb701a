"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema

from spotwise.gateway.errors import ApiError, bad_request
from spotwise.gateway.parameters import Endpoint
from spotwise.gateway.schema import GenerationRequest

#: One prompt, as text or as token ids.
Prompt = str | list[int]
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPTS: dict[str, Any] = {
    "anyOf": [_TEXT, _IDS, *({"type": "array", "items": each, "minItems": 1} for each in (_TEXT, _IDS))]
}


class CompletionRequest(GenerationRequest):
    """OpenAI's completion parameters."""

    endpoint: ClassVar = Endpoint.COMPLETIONS

    prompt: Annotated[Any, WithJsonSchema(_PROMPTS)]
    best_of: int | None = Field(None, ge=1)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)

    @property
    def num_prompts(self) -> int:
        """How many prompts there are, without reading each."""
        several = isinstance(self.prompt, list) and bool(self.prompt) and type(self.prompt[0]) is not int
        return len(self.prompt) if several else 1

    def prompts(self) -> list[Prompt]:
        """Return the prompts: a string, a list of strings, token ids, or a list of token id lists.

        Raises:
            ApiError: 400, the parameter is missing, empty or of another shape.
        """
        if self.prompt is None:
            raise bad_request("You must provide a prompt parameter.", "prompt", "missing_required_parameter")
        if isinstance(self.prompt, str) or (isinstance(self.prompt, list) and _are_ids(self.prompt)):
            if not self.prompt:
                raise _empty("prompt")
            return [self.prompt]
        if not isinstance(self.prompt, list):
            raise _wrong_shape("prompt")
        if not self.prompt:
            raise _empty("prompt")
        for index, prompt in enumerate(self.prompt):
            if prompt in ("", []):
                raise _empty(f"prompt.{index}")
            if not isinstance(prompt, str) and not (isinstance(prompt, list) and _are_ids(prompt)):
                raise _wrong_shape(f"prompt.{index}")
        if len({type(prompt) for prompt in self.prompt}) > 1:
            raise _wrong_shape("prompt")
        return self.prompt


def _are_ids(values: list[Any]) -> bool:
    """Whether a list is one prompt of token ids; the empty list is no prompt at all."""
    return bool(values) and all(type(value) is int for value in values)


def _wrong_shape(path: str) -> ApiError:
    shapes = "a string, a list of strings, a list of token ids or a list of token id lists"
    return bad_request(f"Invalid type for '{path}': 'prompt' must be {shapes}.", path, "invalid_type")


def _empty(path: str) -> ApiError:
    return bad_request(f"Invalid value for '{path}': a prompt must not be empty.", path, "invalid_value")
