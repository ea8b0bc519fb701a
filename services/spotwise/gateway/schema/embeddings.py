"""The body of `POST /v1/embeddings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from spotwise.gateway.schema.completions import prompts_schema
from spotwise.gateway.schema.parameters import Refused, refuse
from spotwise.gateway.schema.shared import PromptOptions, parse_body

#: Of one request; OpenAI's bound.
MAX_INPUTS = 2048

#: Parameters of vLLM's endpoint that would change the answer.
REFUSED_FOR_EMBEDDINGS = (
    Refused("messages", hint="give the text that '/tokenize' and '/detokenize' make of them as 'input'"),
    Refused("embed_dtype", ("float32",), hint="embeddings are float32"),
    Refused("endianness", ("native", "little"), hint="embeddings are little-endian"),
    Refused("use_activation", hint="use 'normalize'"),
)


class EmbeddingRequest(PromptOptions):
    """OpenAI's parameters of embeddings, then vLLM's.

    Attributes:
        input: the prompts.
        encoding_format: numbers as JSON, or their bytes, little-endian float32, in base64.
        dimensions: numbers of an embedding; the others are left out.
        add_special_tokens: the tokenizer's own, to texts; by default true.
        normalize: to the length 1; by default as the model does.
    """

    model: str
    input: Annotated[Any, WithJsonSchema(prompts_schema(maxItems=MAX_INPUTS))]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    add_special_tokens: bool | None = None
    normalize: bool | None = None


def parse_embeddings(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Check a body against its schema.

    Raises:
        ApiError: 400, naming the first parameter that is wrong or not supported.
    """
    refuse(REFUSED_FOR_EMBEDDINGS, body)
    return parse_body(EmbeddingRequest, body)
