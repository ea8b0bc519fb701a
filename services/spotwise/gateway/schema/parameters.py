"""Parameters of the APIs that are refused or ignored: the one table of chats, completions, responses and messages.

A wish that cannot change what the answer means is ignored, and the answer names it in `X-Spotwise-Warning`; only what would
make the answer wrong is refused, by name, unless its value switches it off. An empty object or list counts as a request where
vLLM takes it for one (`guided_json: {}` is a schema). Honoured parameters are the fields of the request models. docs/api.md
shows this table, and a test compares the two. A dot separates a parameter and its member.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

from spotwise.http.errors import bad_request

#: Names what was ignored of a request, separated by commas; says that it, or its answer, is not kept though it was to be.
WARNING_HEADER = "X-Spotwise-Warning"


class Endpoint(Enum):
    """Where a parameter is sent."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


_ALL = tuple(Endpoint)
_CHAT = (Endpoint.CHAT,)
_COMPLETIONS = (Endpoint.COMPLETIONS,)
_BOTH = (*_CHAT, *_COMPLETIONS)
_RESPONSES = (Endpoint.RESPONSES,)
_MESSAGES = (Endpoint.MESSAGES,)
_OPENAIS = (*_BOTH, *_RESPONSES)


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is done with a parameter that is not honoured.

    Attributes:
        name: the parameter.
        off: values beside null that ask for nothing.
        at: the endpoints where it is so.
    """

    name: str
    off: tuple[Any, ...] = ()
    at: tuple[Endpoint, ...] = _ALL

    def is_requested(self, value: Any) -> bool:
        """Whether a value asks for something."""
        if isinstance(value, dict):
            value = {key: member for key, member in value.items() if member is not None}
        return value is not None and not any(_equal(value, off) for off in self.off)

    def requested_in(self, body: Mapping[str, Any]) -> bool:
        """Whether a body asks for it."""
        parameter, _, member = self.name.partition(".")
        value = body.get(parameter)
        if member:
            value = value.get(member) if isinstance(value, dict) else None
        return self.is_requested(value)


def _equal(value: Any, other: Any) -> bool:
    """Whether two values are the same in JSON, where 0 is not false, and 1 not true."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


@dataclass(frozen=True, slots=True)
class Refused(_Rule):
    """A parameter without which the answer would be wrong.

    Attributes:
        hint: what a client can do instead.
    """

    hint: str = "leave it out"


@dataclass(frozen=True, slots=True)
class Ignored(_Rule):
    """A parameter whose absence leaves the answer right."""


_ONLY_TEXT = "only text is generated"
_USE_STRUCTURED = "use 'structured_outputs'"
_USE_COMPLETIONS = "it belongs to /v1/completions"
_USE_CHAT = "it belongs to /v1/chat/completions"
_USE_OUTPUT_TOKENS = "use 'max_output_tokens' here"

REFUSED = (
    # What the text has to look like.
    Refused("guided_json", hint=_USE_STRUCTURED),
    Refused("guided_regex", hint=_USE_STRUCTURED),
    Refused("guided_choice", hint=_USE_STRUCTURED),
    Refused("guided_grammar", hint=_USE_STRUCTURED),
    Refused("guided_json_object", (False,), hint=_USE_STRUCTURED),
    Refused("structural_tag"),
    # Tools, other media, other sources.
    Refused("tools", ([],), _COMPLETIONS, _USE_CHAT),
    Refused("tool_choice", ("none", "auto"), _COMPLETIONS, _USE_CHAT),
    Refused("functions", ([],), hint="use 'tools'"),
    Refused("function_call", ("none", "auto"), hint="use 'tool_choice'"),
    Refused("audio", hint=_ONLY_TEXT),
    Refused("modalities", ([], ["text"]), hint=_ONLY_TEXT),
    Refused("moderation"),
    # How the prompt is made.
    Refused("chat_template"),
    Refused("chat_template_kwargs", ({},), _COMPLETIONS, _USE_CHAT),
    Refused("documents", ([],)),
    Refused("add_special_tokens", (False,), (*_CHAT, *_RESPONSES)),
    Refused("add_special_tokens", (True,), _COMPLETIONS),
    Refused("suffix", ("",)),
    Refused("prompt_embeds"),
    # How tokens are drawn, and when that ends.
    Refused("logits_processors", ([],)),
    Refused("use_beam_search", (False,)),
    Refused("watermarking", (False,)),
    Refused("vllm_xargs", ({},)),
    # What the answer holds besides its text.
    Refused("logprob_token_ids"),
    Refused("return_tokens_as_token_ids", (False,), _RESPONSES, _USE_CHAT),
    Refused("return_prompt_text", (False,)),
    Refused("include_reasoning", (True,)),
    # What is kept of the request, and where.
    Refused("kv_transfer_params", ({},)),
    Refused("ec_transfer_params", ({},)),
    # Parameters of other endpoints.
    Refused("echo", (False,), (*_CHAT, *_RESPONSES), _USE_COMPLETIONS),
    Refused("best_of", (1,), (*_CHAT, *_RESPONSES), _USE_COMPLETIONS),
    Refused("prompt", (), (*_CHAT, *_RESPONSES), _USE_COMPLETIONS),
    Refused("messages", (), _COMPLETIONS, _USE_CHAT),
    Refused("max_completion_tokens", (), _COMPLETIONS, "use 'max_tokens' here"),
    Refused("top_logprobs", (0,), _COMPLETIONS, "use 'logprobs' here"),
    Refused("continue_final_message", (False,), (*_COMPLETIONS, *_RESPONSES), _USE_CHAT),
    Refused("messages", (), _RESPONSES, "use 'input' here"),
    Refused("max_tokens", (), _RESPONSES, _USE_OUTPUT_TOKENS),
    Refused("max_completion_tokens", (), _RESPONSES, _USE_OUTPUT_TOKENS),
    Refused("response_format", (), _RESPONSES, "use 'text.format' here"),
    Refused("n", (1,), _RESPONSES, _USE_CHAT),
    Refused("logprobs", (False,), _RESPONSES, "'include' may name 'message.output_text.logprobs'"),
    Refused("prompt_logprobs", (), _RESPONSES, _USE_CHAT),
    Refused("return_token_ids", (False,), _RESPONSES, _USE_CHAT),
    # What OpenAI keeps, looks up or does beside the answer.
    Refused(
        "background",
        (False,),
        _RESPONSES,
        "leave it out; 'X-Spotwise-Resumable: true' lets an answer go on without you",
    ),
    Refused("conversation", (), _RESPONSES, "use 'previous_response_id'"),
    Refused("access_programs", ({},), _RESPONSES),
    Refused("image", ({},), _RESPONSES, _ONLY_TEXT),
    Refused("container", at=_MESSAGES, hint="this server runs no code"),
    Refused("inference_geo", at=_MESSAGES),
    Refused("output_format", at=_MESSAGES, hint="use 'output_config'"),
    # Members of honoured parameters.
    Refused("structured_outputs.structural_tag", at=_OPENAIS),
    Refused("structured_outputs.disable_additional_properties", (False,), _OPENAIS, "say so in the schema"),
)

IGNORED = (
    # Labels, bookkeeping and hints about caches and speed.
    *(Ignored(name, at=_BOTH) for name in ("metadata", "store")),
    *(Ignored(name, at=_OPENAIS) for name in ("safety_identifier", "request_id", "session_id", "prediction")),
    *(Ignored(name, at=_OPENAIS) for name in ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")),
    Ignored("stream_interval", (1,), _OPENAIS),
    Ignored("service_tier", ("auto", "default", "standard_only")),
    Ignored("client_metadata", at=_RESPONSES),
    *(Ignored(name, at=_MESSAGES) for name in ("cache_control", "speed", "diagnostics")),
    *(Ignored(name, at=_MESSAGES) for name in ("user_profile_id", "workspace_id")),
    # Of how the model thinks, searches and ends, beyond what it does anyway.
    *(Ignored(name, at=(*_COMPLETIONS, *_RESPONSES)) for name in ("reasoning_effort", "verbosity")),
    *(Ignored(name, at=_RESPONSES) for name in ("reasoning.summary", "reasoning.generate_summary")),
    Ignored("thinking_token_budget", (-1,), _OPENAIS),
    Ignored("repetition_detection", at=_OPENAIS),
    Ignored("context_management", ([],), (*_RESPONSES, *_MESSAGES)),
    Ignored("max_tool_calls", at=_RESPONSES),
    # Tools of servers, which this one does not call.
    Ignored("web_search_options", at=_OPENAIS),
    Ignored("mcp_servers", ([],), _MESSAGES),
    # Details of what is refused, or of what no model here has.
    *(Ignored(name, at=_OPENAIS) for name in ("guided_decoding_backend", "guided_whitespace_pattern")),
    *(Ignored(name, at=_OPENAIS) for name in ("length_penalty", "early_stopping", "routed_experts_prompt_start")),
    *(Ignored(name, at=_OPENAIS) for name in ("mm_processor_kwargs", "media_io_kwargs", "return_mm_kwargs")),
    Ignored("return_token_offsets", (False,), _OPENAIS),
    Ignored("spaces_between_special_tokens", (True,), _OPENAIS),
    Ignored("add_generation_prompt", (True,), (*_COMPLETIONS, *_RESPONSES)),
    Ignored("parallel_tool_calls", (True,), _COMPLETIONS),
)

#: Honoured by some models, or in some forms, and ignored with others.
HONOURED_WHERE_POSSIBLE = (
    *("reasoning_effort", "verbosity", "reasoning.effort", "text.verbosity"),
    *("thinking", "output_config.effort", "tools", "input", "messages"),
)

#: Counts what no row names.
OTHER = "other"
#: Of parameters' names that a header may hold; a client can write anything.
_SHOWN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Names in a header.
_MAX_SHOWN = 24
#: Names of a request that are counted, and may be in its header.
_MAX_NOTED = 256

_REFUSED_AT = {endpoint: tuple(rule for rule in REFUSED if endpoint in rule.at) for endpoint in Endpoint}
_IGNORED_AT = {endpoint: tuple(rule for rule in IGNORED if endpoint in rule.at) for endpoint in Endpoint}
_COUNTED = frozenset({*(rule.name for rule in IGNORED), *HONOURED_WHERE_POSSIBLE})


def refuse_unsupported(endpoint: Endpoint, body: Mapping[str, Any]) -> None:
    """Refuse a body without whose parameters the answer would be wrong.

    Raises:
        ApiError: 400, naming the parameter.
    """
    refuse(_REFUSED_AT[endpoint], body)


def refuse(rules: Iterable[Refused], body: Mapping[str, Any]) -> None:
    """Refuse a body that asks for what one of the rules refuses.

    Raises:
        ApiError: 400, naming the parameter.
    """
    for rule in rules:
        if rule.requested_in(body):
            message = f"The parameter '{rule.name}' is not supported by this server; {rule.hint}."
            raise bad_request(message, rule.name, "unsupported_parameter")


def ignored_in(endpoint: Endpoint, body: Mapping[str, Any], honoured: Collection[str]) -> Iterator[str]:
    """Give the names of what a body asks for in vain, those included that no row knows; `honoured`: its parameters."""
    known = set(honoured)
    for rule in (*_REFUSED_AT[endpoint], *_IGNORED_AT[endpoint]):
        known.add(rule.name.partition(".")[0])
    yield from (rule.name for rule in _IGNORED_AT[endpoint] if rule.requested_in(body))
    yield from (name for name, value in body.items() if name not in known and value is not None)


def noted(ignored: Iterable[str]) -> tuple[str, ...]:
    """Return the first names of what is ignored, each once: a body may have hundreds of thousands."""
    return tuple(islice(dict.fromkeys(ignored), _MAX_NOTED))


def counted_name(ignored: str) -> str:
    """Return the name under which something ignored is counted: a row's, its parameter's, or `OTHER`."""
    parameter = ignored.partition(".")[0]
    return next((name for name in (ignored, parameter) if name in _COUNTED), OTHER)


def warning_of(ignored: Collection[str]) -> str:
    """Return the header's value for what was ignored; empty where nothing was."""
    shown = sorted({name for name in ignored if _SHOWN.fullmatch(name)})[:_MAX_SHOWN]
    if (others := len(set(ignored)) - len(shown)) > 0:
        shown.append(f"{others} more")
    return f"ignored: {', '.join(shown)}" if shown else ""
