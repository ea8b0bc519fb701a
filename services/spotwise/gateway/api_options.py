"""Limits and names of the API, as the gateway's settings give them."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.gateway.embedding_model import NO_EMBEDDINGS, EmbeddingModel
from spotwise.gateway.sampling_defaults import OPENAIS, SamplingDefaults
from spotwise.gateway.schema import LEAST_PRIORITY


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """Limits and names of the API.

    Attributes:
        model_name: the model's name; requests for another are refused.
        max_body_bytes: largest request body.
        max_held_bytes: most bytes of request bodies that are read or wait at the same time.
        cors_origins: origins whose pages may use the API from a browser; `*` is every one.
        default_max_tokens: bound of output tokens of a chat without one; `None` fills the context.
        shares_prefixes: prompts of different keys share the KV of equal beginnings.
        sampling: of requests that do not say.
        least_priority: below which no client may ask for.
        max_n: most choices a prompt.
        max_sequences: most sequences a request, prompts times choices.
        max_logprobs: most alternatives a token.
        embeddings: what those of the model are.
        stores_responses: responses are found again by their ids, unless they say otherwise.
    """

    model_name: str
    max_body_bytes: int = 8 << 20
    max_held_bytes: int = 128 << 20
    cors_origins: tuple[str, ...] = ()
    default_max_tokens: int | None = None
    shares_prefixes: bool = False
    sampling: SamplingDefaults = OPENAIS
    least_priority: int = LEAST_PRIORITY
    max_n: int = 16
    max_sequences: int = 256
    max_logprobs: int = 20
    embeddings: EmbeddingModel = NO_EMBEDDINGS
    stores_responses: bool = False
