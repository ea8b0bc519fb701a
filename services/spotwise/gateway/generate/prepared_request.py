"""From a checked request to the sequences that the mesh generates.

What does not fit the model's context or vocabulary, or the server's limits, is refused here, before anything is sent. Every
sequence gets a seed: the client's plus the index of the choice, or a random one.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spotwise.core.gateway.kept_request import KeptRequest
from spotwise.core.requests.prefixes import prefix_salt
from spotwise.core.requests.request import StopCriteria
from spotwise.gateway.access.auth import tenant_of
from spotwise.gateway.generate.api_options import ApiOptions, require_logprobs, require_priority
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.output_grammar import ANY_MESSAGE, MessageGrammar, is_json
from spotwise.gateway.generate.prompts import require_choices
from spotwise.gateway.generate.sampling import check_token_ids, sampling_of, seed_of
from spotwise.gateway.generate.score_limits import ScoredAnswer
from spotwise.gateway.schema.response_tools import CalledTool
from spotwise.gateway.schema.shared import GenerationRequest, StreamOptions
from spotwise.http.errors import ApiError, bad_request
from spotwise.text.chat_text import ChatText
from spotwise.text.message_reader import MessageReading
from spotwise.text.stop_strings import StopTables


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """What is known of a request beside its body: from its headers and its key, or from the form in which it is kept.

    Attributes:
        key_name: name of its key; may be empty.
        scope: its caller; see `caller_scope`.
        client_request_id: the client's own id; may be empty.
        deadline_unix_s: when its client gives up.
        kept: the form of a request that is prepared again; it has its ids, its seeds and its time already.
    """

    key_name: str = ""
    scope: str = ""
    client_request_id: str = ""
    deadline_unix_s: float | None = None
    kept: KeptRequest | None = None

    @classmethod
    def of_kept(cls, form: KeptRequest) -> RequestTerms:
        """Return the terms of a kept request."""
        return cls(form.key_name, form.scope, form.client_request_id, form.deadline_unix_s, form)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """One prompt.

    Attributes:
        token_ids: what the model reads.
        echo: its text, where the answer shall begin with it.
        param: the parameter that holds it, for error messages.
    """

    token_ids: tuple[int, ...]
    echo: str | None = None
    param: str = "messages"


@dataclass(frozen=True, slots=True)
class TextRules:
    """How tokens become the text of the answer, the same for all sequences of a request.

    Attributes:
        stop_tables: tables of the strings that end the text.
        include_stop: what stopped the sequence, string or token, stays in the text.
        min_tokens: stop strings count from this token on.
        skip_special_tokens: special tokens give no text.
        score_only: the output is dropped; only the prompt's log-probabilities are returned.
        prompt_logprobs: alternatives of each token of the prompt, beside the answer's text; `None` for none of it.
        logprobs: alternatives of each token of the text, an echo's included; `None` for no log-probabilities.
        reading: how calls and reasoning are found in the text; `None`: all of it is what the model says.
        is_json: what the model says is to be one JSON value.
    """

    stop_tables: StopTables
    include_stop: bool
    min_tokens: int
    skip_special_tokens: bool
    score_only: bool
    prompt_logprobs: int | None
    logprobs: int | None
    reading: MessageReading | None = None
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class PreparedSequence:
    """One choice of the answer: its id in the mesh, what to run, and the prompt that it answers."""

    choice_id: str
    spec: SequenceSpec
    prompt: PromptTokens


@dataclass(frozen=True, slots=True)
class RepeatedRequest:
    """A request as its answer repeats it, of endpoints whose answers do.

    Attributes:
        fields: fields of the answer's object.
        items: the conversation that the answer follows on, a list in JSON; empty where it is not stored.
        is_stored: the answer is found again by its id.
        called: what the client calls functions that are not plain ones of its own, by the model's names.
    """

    fields: Mapping[str, Any]
    items: bytes
    is_stored: bool
    called: Mapping[str, CalledTool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """All that an API request makes the mesh do.

    Attributes:
        request_id: id of the answer; the sequences' ids begin with it.
        sequences: in order of the choices.
        rules: tokens to text.
        prompt_tokens: tokens of all prompts, each counted once.
        stream: answer as server-sent events.
        include_usage: end a stream with the usage.
        return_token_ids: the answer holds token ids beside the text.
        model: as the client named it: the model, or one of its adapters.
        created_unix_s: time of the answer's objects.
        repeated: what the answer says of the request.
        scope: whose it is; see `caller_scope`.
        ignored: names of what the request wished for in vain; see `parameters.py`.
        sends_positions: events of a stream have ids, from each of which it can continue.
        counts_in_chunks: each chunk of a stream holds the usage of its choice so far.
        spells_ids: log-probabilities name tokens by their ids.
        prompt_hash: hash of what the model reads: the prompts, and the adapter that it reads them with.
        scores: log-probabilities that the answer is expected to have.
    """

    request_id: str
    sequences: tuple[PreparedSequence, ...]
    rules: TextRules
    prompt_tokens: int
    stream: bool
    include_usage: bool
    return_token_ids: bool
    model: str
    created_unix_s: int
    scope: str
    prompt_hash: str
    repeated: RepeatedRequest | None = None
    ignored: tuple[str, ...] = ()
    sends_positions: bool = False
    counts_in_chunks: bool = False
    spells_ids: bool = False
    scores: int = 0

    def ignoring(self, names: Iterable[str]) -> PreparedRequest:
        """Return the request with further wishes that are ignored."""
        return replace(self, ignored=(*self.ignored, *names))


@dataclass(frozen=True, slots=True)
class PreparedBody:
    """A prepared request, and the body that it was made of.

    Attributes:
        body_hash: hash of its content, whatever the order of its fields; empty where it cannot be kept.
    """

    prepared: PreparedRequest
    endpoint: str
    body: bytes
    body_hash: str


def prepare_generation(
    request: GenerationRequest,
    prompts: Sequence[PromptTokens],
    text: ChatText,
    options: ApiOptions,
    *,
    id_prefix: str,
    terms: RequestTerms,
    max_tokens: int | None,
    max_tokens_param: str = "max_tokens",
    default_max_tokens: int | None = None,
    logprobs: int | None = None,
    message: MessageGrammar = ANY_MESSAGE,
    reading: MessageReading | None = None,
) -> PreparedRequest:
    """Prepare the sequences of a request: all choices of the first prompt, then of the next.

    Args:
        request: the checked parameters.
        prompts: at least one.
        text: the model's facts.
        options: the server's limits.
        id_prefix: prefix of the answer's id: `chatcmpl-`, `cmpl-`, `resp_`.
        terms: what is known of the request beside its body.
        max_tokens: as the client gave it; 0 requests the prompt's scores alone.
        max_tokens_param: name under which it did.
        default_max_tokens: where it gave none; `None` fills the context.
        logprobs: alternatives a token; `None` for no log-probabilities.
        message: what calls and reasoning have to look like.
        reading: how they are found in the text.

    Raises:
        ApiError: 400, with the parameter at fault; 409, a kept request has other prompts here.
    """
    if request.prompt_logprobs is not None:
        require_logprobs("prompt_logprobs", request.prompt_logprobs, options)
    choices = require_choices(request.n, len(prompts), options.max_n, options.max_sequences)
    check_token_ids("stop_token_ids", request.stop_token_ids or (), text.vocab_size)
    stop_token_ids = _stop_token_ids(request, text)
    for prompt in prompts:
        check_token_ids(prompt.param, prompt.token_ids, text.vocab_size)
    lengths = [
        _max_new_tokens(prompt, max_tokens, max_tokens_param, default_max_tokens, text.context_length)
        for prompt in prompts
    ]
    score_only = max_tokens == 0
    scored = ScoredAnswer.of(
        request,
        [len(prompt.token_ids) for prompt in prompts],
        choices,
        logprobs,
        echoes=prompts[0].echo is not None,
        score_only=score_only,
    )
    if max_tokens is None:
        lengths = scored.fitted(lengths, options.max_answer_logprobs)
    scored.require_at_most(options.max_answer_logprobs, lengths, request, max_tokens_param)
    stops = [_stop_criteria(request, length, stop_token_ids, max_tokens_param) for length in lengths]
    priority = require_priority(request.priority or 0, options)
    # Last of what may be refused: it may take seconds.
    sampling = sampling_of(request, text, options.sampling, stop_token_ids, logprobs, message)
    unbounded = max_tokens is None and default_max_tokens is None
    several = choices * len(prompts) > 1
    tenant = tenant_of(terms.key_name, request.user)
    adapter = options.adapter(request.model)
    salt = prefix_salt("" if options.shares_prefixes else terms.key_name, request.cache_salt or "", adapter)
    prompt_hash = hash_of(
        *(array("I", prompt.token_ids).tobytes() for prompt in prompts), *([] if adapter is None else [adapter.digest])
    )
    kept = terms.kept
    if kept is not None and (kept.prompt_hash, len(kept.seeds)) != (prompt_hash, choices * len(prompts)):
        differs = "This gateway makes another prompt of the request (its model's files differ); send the request anew."
        raise ApiError(409, differs, code="cannot_resume")
    request_id = f"{id_prefix}{secrets.token_hex(16)}" if kept is None else kept.request_id
    sequences: list[PreparedSequence] = []
    for prompt, stop in zip(prompts, stops, strict=True):
        for choice in range(choices):
            choice_id = f"{request_id}#{len(sequences)}" if several else request_id
            drawn = replace(
                sampling,
                seed=seed_of(request, choice) if kept is None else kept.seeds[len(sequences)],
                prompt_logprobs=_prompt_logprobs(request, prompt, logprobs),
            )
            spec = SequenceSpec(
                prompt.token_ids,
                drawn,
                stop,
                unbounded,
                priority,
                tenant,
                client_request_id=terms.client_request_id,
                deadline_unix_s=terms.deadline_unix_s,
                prefix_salt=salt,
                adapter=adapter,
            )
            sequences.append(PreparedSequence(choice_id, spec, prompt))
    rules = TextRules(
        stop_tables=StopTables(tuple(request.stop)),
        include_stop=request.include_stop_str_in_output or False,
        min_tokens=request.min_tokens or 0,
        skip_special_tokens=request.skip_special_tokens is not False,
        score_only=score_only,
        prompt_logprobs=request.prompt_logprobs,
        logprobs=logprobs,
        reading=reading,
        is_json=is_json(request.response_format, request.structured_outputs),
    )
    options_of_stream = request.stream_options or StreamOptions()
    include_usage = options_of_stream.include_usage or False
    return PreparedRequest(
        request_id=request_id,
        sequences=tuple(sequences),
        rules=rules,
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        stream=request.stream or False,
        include_usage=include_usage,
        return_token_ids=request.return_token_ids or False,
        model=request.model,
        created_unix_s=int(time.time()) if kept is None else kept.created_unix_s,
        scope=terms.scope,
        prompt_hash=prompt_hash,
        sends_positions=options_of_stream.resumable or False,
        counts_in_chunks=include_usage and (options_of_stream.continuous_usage_stats or False),
        spells_ids=request.return_tokens_as_token_ids or False,
        scores=scored.expected(lengths, is_open=max_tokens is None),
    )


def hash_of(*parts: bytes | str) -> str:
    """Return a hash of texts; where one ends matters."""
    whole = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        whole.update(len(content).to_bytes(8, "big") + content)
    return whole.hexdigest()


def _prompt_logprobs(request: GenerationRequest, prompt: PromptTokens, logprobs: int | None) -> int | None:
    """Return how many alternatives a token of a prompt is scored with, for its echo and by itself."""
    wanted = (logprobs if prompt.echo is not None else None, request.prompt_logprobs)
    return max((each for each in wanted if each is not None), default=None)


def _stop_token_ids(request: GenerationRequest, text: ChatText) -> tuple[int, ...]:
    stop_token_ids = set(request.stop_token_ids or ())
    if not request.ignore_eos:
        stop_token_ids |= text.eos_token_ids
    return tuple(sorted(stop_token_ids))


def _stop_criteria(
    request: GenerationRequest, max_new_tokens: int, stop_token_ids: tuple[int, ...], max_tokens_param: str
) -> StopCriteria:
    min_tokens = request.min_tokens or 0
    if min_tokens > max_new_tokens:
        raise bad_request(
            f"Invalid value for 'min_tokens': {min_tokens} is more than '{max_tokens_param}' allows ({max_new_tokens}).",
            "min_tokens",
            "invalid_value",
        )
    return StopCriteria(max_new_tokens, stop_token_ids, min_tokens)


def _max_new_tokens(
    prompt: PromptTokens, max_tokens: int | None, max_tokens_param: str, default: int | None, context_length: int
) -> int:
    prompt_tokens = len(prompt.token_ids)
    free_tokens = context_length - prompt_tokens
    if free_tokens < 1 or (max_tokens is not None and max_tokens > free_tokens):
        requested = "" if max_tokens is None else f" and {max_tokens} for the completion ({max_tokens_param})"
        raise bad_request(
            f"This model's maximum context length is {context_length} tokens. However, you requested {prompt_tokens} "
            f"tokens in the {prompt.param}{requested}. Please reduce them.",
            prompt.param.split(".")[0],
            "context_length_exceeded",
        )
    if max_tokens is None:
        return min(free_tokens, default) if default is not None else free_tokens
    return max(1, max_tokens)  # a prompt is scored by the iteration that also samples one token
