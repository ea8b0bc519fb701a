"""From a body of `POST /v1/embeddings` to the sequences that the mesh computes: a prompt and one token each."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotwise.core.requests.prefixes import prefix_salt
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import Pooling, SamplingParams
from spotwise.gateway.access.auth import tenant_of
from spotwise.gateway.generate.api_options import ApiOptions, require_model, require_priority
from spotwise.gateway.generate.embedding_model import MATRYOSHKA_SETTING, POOLING_SETTING, EmbeddingModel
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.prepared_request import PreparedSequence, PromptTokens
from spotwise.gateway.generate.prompts import prompt_tokens, prompt_too_long, truncation_of
from spotwise.gateway.schema.completions import num_prompts, prompts_of
from spotwise.gateway.schema.embeddings import MAX_INPUTS, EmbeddingRequest, parse_embeddings
from spotwise.http.errors import bad_request
from spotwise.text.chat_text import ChatText
from spotwise.text.prompt_encoder import Truncation


@dataclass(frozen=True, slots=True)
class PreparedEmbeddings:
    """All that a request for embeddings makes the mesh do, and how its answer is written.

    Attributes:
        request_id: id of the answer; the sequences' ids begin with it.
        model: as the client named it: the model, or one of its adapters.
        sequences: in order of the inputs.
        dimensions: numbers of an embedding; `None`: all.
        normalizes: to the length 1.
        is_base64: written as bytes, not as numbers.
    """

    request_id: str
    model: str
    sequences: tuple[PreparedSequence, ...]
    dimensions: int | None
    normalizes: bool
    is_base64: bool

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(len(sequence.prompt.token_ids) for sequence in self.sequences)


def prepare_embeddings(
    body: Mapping[str, Any],
    text: ChatText,
    options: ApiOptions,
    key_name: str,
    client_request_id: str,
    deadline_unix_s: float | None,
) -> PreparedEmbeddings:
    """Check a body and prepare its request.

    Args:
        body: as it was parsed.
        text: tokenizer of the model.
        options: the server's limits, and what the model's embeddings are.
        key_name: name of the key that the request came with; may be empty.
        client_request_id: the client's own; empty without one.
        deadline_unix_s: at which the client gives up; `None` without one.

    Raises:
        ApiError: 400 or 404, with the parameter at fault.
    """
    request = parse_embeddings(body)
    require_model(request.model, options)
    model, pooling = options.embeddings, _require_pooling(options)
    if (inputs := num_prompts(request.input)) > MAX_INPUTS:
        message = f"Invalid value for 'input': {inputs} inputs are more than {MAX_INPUTS}."
        raise bad_request(message, "input", "invalid_value")
    dimensions = None if request.dimensions is None else _require_dimensions(request.dimensions, model)
    longest = min(text.context_length, model.max_tokens or text.context_length)
    truncation = _truncation(request, longest)
    add_special_tokens = request.add_special_tokens is not False
    priority = require_priority(request.priority or 0, options)
    adapter = options.adapter(request.model)
    tenant = tenant_of(key_name, request.user)
    salt = prefix_salt("" if options.shares_prefixes else key_name, request.cache_salt or "", adapter)
    sampling = SamplingParams(temperature=0.0, pooling=pooling)
    request_id = f"embd-{secrets.token_hex(16)}"
    sequences: list[PreparedSequence] = []
    for param, given in prompts_of(request.input, "input"):
        token_ids = prompt_tokens(given, param, text, truncation, add_special_tokens=add_special_tokens)
        if len(token_ids) > longest:
            raise prompt_too_long(param, longest, len(token_ids))
        if not token_ids:
            raise bad_request(f"Invalid value for '{param}': it has no tokens.", param, "invalid_value")
        spec = SequenceSpec(
            token_ids,
            sampling,
            StopCriteria(max_new_tokens=1),  # the prompt is pooled by the iteration that also samples one token
            priority=priority,
            tenant=tenant,
            client_request_id=client_request_id,
            prefix_salt=salt,
            deadline_unix_s=deadline_unix_s,
            adapter=adapter,
        )
        choice_id = f"{request_id}#{len(sequences)}" if inputs > 1 else request_id
        sequences.append(PreparedSequence(choice_id, spec, PromptTokens(token_ids, None, param)))
    return PreparedEmbeddings(
        request_id=request_id,
        model=request.model,
        sequences=tuple(sequences),
        dimensions=dimensions,
        normalizes=model.normalizes if request.normalize is None else request.normalize,
        is_base64=request.encoding_format == "base64",
    )


def _require_pooling(options: ApiOptions) -> Pooling:
    model = options.embeddings
    if model.pooling is None:
        message = (
            f"The model '{options.model_name}' has no embeddings: {model.reason}. The server's operator can turn them on "
            f"with {POOLING_SETTING}=last or =mean."
        )
        raise bad_request(message, "model", "no_embeddings")
    return model.pooling


def _require_dimensions(dimensions: int, model: EmbeddingModel) -> int:
    if dimensions == model.size:
        return dimensions
    if model.size is None or dimensions > model.size:
        size = "an unknown number of them" if model.size is None else model.size
        message = f"Invalid value for 'dimensions': this model's embeddings have {size}."
        raise bad_request(message, "dimensions", "invalid_value")
    if not model.is_matryoshka:
        message = (
            "The parameter 'dimensions' is not supported by this model, whose config.json does not say that it is a matryoshka "
            f"model; leave it out. The server's operator can allow it with {MATRYOSHKA_SETTING}=true."
        )
        raise bad_request(message, "dimensions", "unsupported_parameter")
    if model.sizes and dimensions not in model.sizes:
        sizes = ", ".join(map(str, model.sizes))
        raise bad_request(f"Invalid value for 'dimensions': must be one of {sizes}.", "dimensions", "invalid_value")
    return dimensions


def _truncation(request: EmbeddingRequest, longest: int) -> Truncation | None:
    """Return how inputs are cut: they keep their beginning, unless the request says otherwise."""
    keeps_end = request.truncation_side == "left"
    if request.truncate_prompt_tokens == -1:
        return Truncation(longest, keeps_end)
    truncation = truncation_of(request, None, longest)
    return None if truncation is None else Truncation(truncation.most_tokens, keeps_end)
