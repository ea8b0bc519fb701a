"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from spotwise.gateway.errors import ApiError, bad_request
from spotwise.gateway.parameters import Endpoint
from spotwise.gateway.schema import GenerationRequest

#: One prompt, as text or as token ids.
Prompt = str | list[int]


class CompletionRequest(GenerationRequest):
    """OpenAI's completion parameters."""

    endpoint: ClassVar = Endpoint.COMPLETIONS

    prompt: Any = None
    best_of: int | None = Field(None, ge=1)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)

    def prompts(self) -> list[Prompt]:
        """Return the prompts: a string, a list of strings, token ids, or a list of token id lists.

        Raises:
            ApiError: 400, the parameter is missing, empty or of another shape.
        """
        if self.prompt is None:
            raise bad_request("You must provide a prompt parameter.", "prompt", "missing_required_parameter")
        if isinstance(self.prompt, str) or (isinstance(self.prompt, list) and _are_ids(self.prompt)):
            prompts, paths = [self.prompt], ["prompt"]
        elif isinstance(self.prompt, list):
            prompts, paths = self.prompt, [f"prompt.{index}" for index in range(len(self.prompt))]
        else:
            raise _wrong_shape("prompt")
        if not prompts:
            raise _empty("prompt")
        for prompt, path in zip(prompts, paths, strict=True):
            if prompt in ("", []):
                raise _empty(path)
            if not isinstance(prompt, str) and not (isinstance(prompt, list) and _are_ids(prompt)):
                raise _wrong_shape(path)
        if len({type(prompt) for prompt in prompts}) > 1:
            raise _wrong_shape("prompt")
        return prompts


def _are_ids(values: list[Any]) -> bool:
    """Whether a list is one prompt of token ids; the empty list is no prompt at all."""
    return bool(values) and all(type(value) is int for value in values)


def _wrong_shape(path: str) -> ApiError:
    shapes = "a string, a list of strings, a list of token ids or a list of token id lists"
    return bad_request(f"Invalid type for '{path}': 'prompt' must be {shapes}.", path, "invalid_type")


def _empty(path: str) -> ApiError:
    return bad_request(f"Invalid value for '{path}': a prompt must not be empty.", path, "invalid_value")
