"""`POST /v1/completions`: from prompts to a prepared request, and the writer of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotwise.gateway.apis.openai_writer import OpenAiWriter, WholeChoice
from spotwise.gateway.generate.api_options import ApiOptions, require_logprobs, require_model
from spotwise.gateway.generate.choice import ChoiceText, ScoredToken
from spotwise.gateway.generate.prepared_request import PreparedRequest, PromptTokens, RequestTerms, prepare_generation
from spotwise.gateway.generate.prompts import prompt_tokens, prompt_too_long, require_choices, truncation_of
from spotwise.gateway.schema.completions import CompletionRequest, Prompt, num_prompts, prompts_of
from spotwise.gateway.schema.parameters import Endpoint, ignored_in
from spotwise.gateway.schema.shared import parse_request
from spotwise.http.errors import bad_request
from spotwise.text.chat_text import ChatText
from spotwise.text.detokenize import LEAST_LOGPROB
from spotwise.text.prompt_encoder import Truncation

#: OpenAI's documented default of this endpoint, and vLLM's.
DEFAULT_MAX_TOKENS = 16


def prepare_completion(
    body: Mapping[str, Any], text: ChatText, options: ApiOptions, terms: RequestTerms
) -> PreparedRequest:
    """Check a body and prepare its request.

    Raises:
        ApiError: 400 or 404, with the parameter at fault.
    """
    request = parse_request(CompletionRequest, body)
    require_model(request.model, options)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise bad_request("'best_of' is supported only where it equals 'n'.", "best_of", "unsupported_parameter")
    logprobs = None if request.logprobs is None else require_logprobs("logprobs", request.logprobs, options)
    echo = request.echo or False
    if request.max_tokens == 0 and not echo:
        raise bad_request(
            "Invalid value for 'max_tokens': 0 is allowed only with 'echo'.", "max_tokens", "invalid_value"
        )
    require_choices(request.n, num_prompts(request.prompt), options.max_n, options.max_sequences)
    given = prompts_of(request.prompt, "prompt")
    most_new_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    truncation = truncation_of(request, most_new_tokens, text.context_length)
    prompts = [_prompt(prompt, param, text, echo, truncation) for param, prompt in given]
    prepared = prepare_generation(
        request,
        prompts,
        text,
        options,
        id_prefix="cmpl-",
        terms=terms,
        max_tokens=request.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=logprobs,
    )
    return prepared.ignoring(ignored_in(Endpoint.COMPLETIONS, body, CompletionRequest.model_fields))


def _prompt(prompt: Prompt, param: str, text: ChatText, echo: bool, truncation: Truncation | None) -> PromptTokens:
    token_ids = prompt_tokens(prompt, param, text, truncation)
    if not isinstance(prompt, str) and len(token_ids) >= text.context_length:
        raise prompt_too_long(param, text.context_length, len(token_ids))
    if not echo:
        return PromptTokens(token_ids, None, param)
    words = prompt if isinstance(prompt, str) and truncation is None else text.decode(token_ids)
    return PromptTokens(token_ids, words, param)


class CompletionWriter(OpenAiWriter):
    """Answers as `text_completion` objects."""

    WHOLE_OBJECT = CHUNK_OBJECT = "text_completion"
    TEXT_FRONT = b'"text":'
    TEXT_TAIL = b',"logprobs":null,"finish_reason":null}'
    PROMPT_IN_CHOICES = True

    def openings(self) -> list[bytes]:
        """Return nothing: a completion's stream begins with text."""
        return []

    def _delta(self, piece: ChoiceText) -> dict[str, Any]:
        return {"text": piece.text}

    def _message(self, choice: WholeChoice) -> dict[str, Any]:
        return {"text": choice.text}

    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, list[Any] | None]:
        return {
            "tokens": [self._spelled(token.token_id) for token in scored],
            "token_logprobs": [token.logprobs and max(token.logprobs.logprob, LEAST_LOGPROB) for token in scored],
            "top_logprobs": [self._alternatives(token) for token in scored],
            "text_offset": [token.text_offset for token in scored],
        }

    def _alternatives(self, token: ScoredToken) -> dict[str, float] | None:
        """Return the likeliest tokens and the sampled one by their text; of equal texts the likelier."""
        at_token = token.logprobs
        if at_token is None:
            return None
        alternatives = dict[str, float]()
        for token_id, logprob in (
            *zip(at_token.top_token_ids, at_token.top_logprobs, strict=True),
            (token.token_id, at_token.logprob),
        ):
            spelled, finite = self._spelled(token_id), max(logprob, LEAST_LOGPROB)
            alternatives[spelled] = max(finite, alternatives.get(spelled, finite))
        return alternatives
