"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema

from spotwise.gateway.schema.parameters import Endpoint
from spotwise.gateway.schema.prompts import prompts_schema
from spotwise.gateway.schema.shared import GenerationRequest


class CompletionRequest(GenerationRequest):
    """OpenAI's completion parameters."""

    endpoint: ClassVar = Endpoint.COMPLETIONS

    prompt: Annotated[Any, WithJsonSchema(prompts_schema())]
    best_of: int | None = Field(None, ge=1)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)
