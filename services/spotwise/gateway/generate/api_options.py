"""Limits, names and default sampling parameters of the API, as the gateway's settings and the model's folder give them.

OpenAI's, or those that a model was published with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotwise.core.requests.names import ANY_NAME, AdapterRef
from spotwise.gateway.generate.embedding_model import NO_EMBEDDINGS, EmbeddingModel
from spotwise.gateway.schema.shared import LEAST_PRIORITY, MIN_REPETITION_PENALTY
from spotwise.http.errors import ApiError, bad_request

_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Defaults of the parameters of these names; by themselves OpenAI's, and vLLM's for what OpenAI does not have."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


#: Of a model that has none of its own.
OPENAIS = SamplingDefaults()


class _GenerationConfig(BaseModel):
    model_config = ConfigDict(extra="ignore")

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=10)] | None = None


def published_defaults(model_dir: Path) -> SamplingDefaults:
    """Return the defaults in a model's `generation_config.json`; OpenAI's for what it leaves out, and where there is none.

    Raises:
        ValueError: a value that no request could give.
    """
    path = model_dir / _FILE
    try:
        published = _GenerationConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return OPENAIS
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]
        name = ".".join(map(str, finding["loc"]))
        raise ValueError(f"{path}: {name + ': ' if name else ''}{finding['msg']}") from None
    return SamplingDefaults(**published.model_dump(exclude_none=True))


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """Limits and names of the API.

    Attributes:
        model_name: the model's name; requests for another, or none of the adapters, are refused.
        max_body_bytes: largest request body.
        max_held_bytes: most bytes of request bodies that are read or wait at the same time.
        cors_origins: origins whose pages may use the API from a browser; `*` is every one.
        default_max_tokens: bound of output tokens of a chat without one; `None` fills the context.
        shares_prefixes: prompts of different keys share the KV of equal beginnings.
        sampling: sampling parameters of requests that set none.
        least_priority: below which no client may ask for.
        max_n: most choices a prompt.
        max_sequences: most sequences a request, prompts times choices.
        max_logprobs: most alternatives a token.
        max_answer_logprobs: most log-probabilities of one answer, alternatives included.
        stream_keep_alive_s: silence after which a stream gets a comment; 0: never.
        embeddings: what those of the model are.
        adapters: adapters of the model, which requests may name instead.
        aliases: further names of the model and of adapters, with what each stands for; see `model_aliases`.
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
    max_answer_logprobs: int = 1_000_000
    stream_keep_alive_s: float = 15.0
    embeddings: EmbeddingModel = NO_EMBEDDINGS
    stores_responses: bool = False
    adapters: tuple[AdapterRef, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def served(self) -> tuple[str, ...]:
        """The name of the model, then those of its adapters."""
        return self.model_name, *(adapter.name for adapter in self.adapters)

    @property
    def names(self) -> tuple[str, ...]:
        """What requests may give as their model, as far as it can be listed: what is served, then its aliases."""
        return *self.served, *(name for name in self.aliases if name != ANY_NAME)

    def resolved(self, name: str) -> str | None:
        """Return what a name stands for, the model or one of its adapters; `None`: it is unknown."""
        return name if name in self.served else self.aliases.get(name, self.aliases.get(ANY_NAME))

    def adapter(self, name: str) -> AdapterRef | None:
        """Return the adapter that a name stands for; `None`: it is the model's own, or unknown."""
        model = self.resolved(name)
        return next((adapter for adapter in self.adapters if adapter.name == model), None)


def require_model(name: str, options: ApiOptions) -> None:
    """Refuse a model that is not served here.

    Raises:
        ApiError: 404.
    """
    if options.resolved(name) is None:
        served = ", ".join(f"'{each}'" for each in options.names)
        message = f"The model '{name}' does not exist here; this server has {served}."
        raise ApiError(404, message, param="model", code="model_not_found")


def require_logprobs(param: str, logprobs: int, options: ApiOptions) -> int:
    """Return a number of alternatives a token that the server gives.

    Raises:
        ApiError: 400, naming `param`.
    """
    if logprobs > options.max_logprobs:
        raise bad_request(
            f"Invalid value for '{param}': must be at most {options.max_logprobs}.", param, "invalid_value"
        )
    return logprobs


def require_priority(priority: int, options: ApiOptions) -> int:
    """Return a priority that clients may give.

    Raises:
        ApiError: 400.
    """
    if priority < options.least_priority:
        message = f"Invalid value for 'priority': must be at least {options.least_priority}."
        raise bad_request(message, "priority", "invalid_value")
    return priority
