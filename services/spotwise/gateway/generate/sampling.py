"""From a checked request to the sampling parameters of its sequences."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.api_options import SamplingDefaults
from spotwise.gateway.generate.output_grammar import MessageGrammar, grammar_of
from spotwise.gateway.schema.shared import MAX_LISTED_TOKENS, GenerationRequest
from spotwise.http.errors import bad_request
from spotwise.text.chat_text import ChatText

_DEFAULTS = SamplingParams()
#: Parameters of a request whose value depends on the model, on other parameters, or on the choice.
_PREPARED = {"top_k", "seed", "logit_bias", "allowed_token_ids", "bad_words", "logprobs", "prompt_logprobs"}
#: Parameters that the sampler gets as the request has them: all others that both have.
CARRIED = tuple(
    each.name
    for each in fields(SamplingParams)
    if each.name in GenerationRequest.model_fields and each.name not in _PREPARED
)

#: Seeds stay non-negative in 64 bits signed, whatever the client's and however many choices are added.
_SEED_MASK = (1 << 63) - 1
_MAX_ID_DIGITS = 10


def sampling_of(
    request: GenerationRequest,
    text: ChatText,
    defaults: SamplingDefaults,
    stop_token_ids: Sequence[int],
    logprobs: int | None,
    message: MessageGrammar,
) -> SamplingParams:
    """Return what all choices of a request have in common.

    Args:
        request: the checked parameters.
        text: the model's facts.
        defaults: values of parameters that the request does not have.
        stop_token_ids: tokens that end the text.
        logprobs: alternatives a token; `None` for no log-probabilities.
        message: what calls and reasoning beside the output have to look like.

    Raises:
        ApiError: 400, with the parameter at fault.
    """
    allowed_token_ids = tuple(sorted(set(request.allowed_token_ids or ())))
    check_token_ids("allowed_token_ids", allowed_token_ids, text.vocab_size)
    bad_words = _bad_words(request.bad_words or (), text)
    _require_a_token(allowed_token_ids, bad_words, stop_token_ids if request.min_tokens else ())
    grammar = grammar_of(request.response_format, request.structured_outputs, text.grammar_check, message)
    if grammar and allowed_token_ids:
        raise bad_request(
            "'allowed_token_ids' and a structured output exclude each other.", "allowed_token_ids", "invalid_value"
        )
    top_k = defaults.top_k if request.top_k is None else request.top_k
    return SamplingParams(
        **{name: _value(request, defaults, name) for name in CARRIED},
        top_k=top_k if 0 < top_k < text.vocab_size else None,  # more than there are keeps them all
        logit_bias=_logit_bias(request, text.vocab_size),
        allowed_token_ids=allowed_token_ids,
        bad_words=bad_words,
        grammar=grammar,
        logprobs=logprobs,
    )


def _value(request: GenerationRequest, defaults: SamplingDefaults, name: str) -> Any:
    """Return the request's value, else the server's default, else that of `SamplingParams`."""
    given = getattr(request, name)
    return getattr(defaults, name, getattr(_DEFAULTS, name)) if given is None else given


def seed_of(request: GenerationRequest, choice: int) -> int:
    """Return the seed of a choice: the client's plus its index, or a random one."""
    return secrets.randbits(63) if request.seed is None else (request.seed + choice) & _SEED_MASK


def check_token_ids(param: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that the model does not have.

    Raises:
        ApiError: 400, naming `param`.
    """
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise bad_request(
            f"Invalid value for '{param}': token ids must be from 0 to {vocab_size - 1}.", param, "invalid_value"
        )


def _logit_bias(request: GenerationRequest, vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for key, bias in (request.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS):
            raise bad_request(f"Invalid key in 'logit_bias': '{key}' is no token id.", "logit_bias", "invalid_value")
        biases[int(key)] = float(bias)
    check_token_ids("logit_bias", tuple(biases), vocab_size)
    return tuple(sorted(biases.items()))


def _bad_words(words: Sequence[str], text: ChatText) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word at the beginning of a text, and after a blank."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        found |= dict.fromkeys(text.encode(prefix + bare, add_special_tokens=False) for prefix in ("", " "))
    bad_words = tuple(tokens for tokens in found if tokens)
    token_ids = [token_id for tokens in bad_words for token_id in tokens]
    if len(token_ids) > MAX_LISTED_TOKENS:
        raise bad_request(
            f"Invalid value for 'bad_words': at most {MAX_LISTED_TOKENS} tokens are supported.",
            "bad_words",
            "invalid_value",
        )
    check_token_ids("bad_words", token_ids, text.vocab_size)
    return bad_words


def _require_a_token(
    allowed_token_ids: Sequence[int], bad_words: Sequence[Sequence[int]], masked_token_ids: Sequence[int]
) -> None:
    never = {word[0] for word in bad_words if len(word) == 1}.union(masked_token_ids)
    if allowed_token_ids and never.issuperset(allowed_token_ids):
        raise bad_request(
            "Invalid value for 'allowed_token_ids': 'bad_words' and 'min_tokens' leave none of them.",
            "allowed_token_ids",
            "invalid_value",
        )
