"""Parameters of vLLM's and OpenAI's APIs that are refused or ignored: the one table.

A parameter that would change the answer, or what is promised about it, is refused by name unless its value switches it off; one
that changes neither is ignored. An empty object or list counts as a request where vLLM takes it for one (`guided_json: {}` is a
schema). Honoured parameters are the fields of the request models. docs/api.md shows this table, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spotwise.gateway.errors import bad_request


class Endpoint(Enum):
    """Where a parameter is sent."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"


_ALL = tuple(Endpoint)
_CHAT = (Endpoint.CHAT,)
_COMPLETIONS = (Endpoint.COMPLETIONS,)
_BOTH = (*_CHAT, *_COMPLETIONS)
_RESPONSES = (Endpoint.RESPONSES,)


@dataclass(frozen=True, slots=True)
class Refused:
    """A parameter that would change the answer.

    Attributes:
        name: the parameter.
        off: values beside null that switch it off.
        at: the endpoints that refuse it.
        hint: what a client can do instead.
    """

    name: str
    off: tuple[Any, ...] = ()
    at: tuple[Endpoint, ...] = _ALL
    hint: str = "leave it out"

    def refuses(self, value: Any) -> bool:
        """Whether a value requests what is not supported."""
        if isinstance(value, dict):
            value = {key: member for key, member in value.items() if member is not None}
        return value is not None and value not in self.off


@dataclass(frozen=True, slots=True)
class Ignored:
    """A parameter that changes nothing here.

    Attributes:
        name: the parameter.
        at: the endpoints that ignore it.
    """

    name: str
    at: tuple[Endpoint, ...] = _ALL


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
    Refused("web_search_options"),
    Refused("moderation"),
    # How the prompt is made.
    Refused("chat_template"),
    Refused("chat_template_kwargs", ({},), _COMPLETIONS, _USE_CHAT),
    Refused("documents", ([],)),
    Refused("reasoning_effort"),
    Refused("verbosity", ("medium",)),
    Refused("add_special_tokens", (False,), (*_CHAT, *_RESPONSES)),
    Refused("add_special_tokens", (True,), _COMPLETIONS),
    Refused("suffix", ("",)),
    Refused("prompt_embeds"),
    # How tokens are drawn, and when that ends.
    Refused("logits_processors", ([],)),
    Refused("use_beam_search", (False,)),
    Refused("repetition_detection"),
    Refused("thinking_token_budget", (-1,)),
    Refused("watermarking", (False,)),
    Refused("vllm_xargs", ({},)),
    # What the answer holds besides its text.
    Refused("logprob_token_ids"),
    Refused("return_tokens_as_token_ids", (False,), hint="'return_token_ids' gives the ids beside the text"),
    Refused("return_prompt_text", (False,)),
    Refused("include_reasoning", (True,)),
    Refused("spaces_between_special_tokens", (True,)),
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
    Refused("context_management", ([],), _RESPONSES),
    Refused("access_programs", ({},), _RESPONSES),
    Refused("image", ({},), _RESPONSES, _ONLY_TEXT),
)

IGNORED = (
    # Labels, bookkeeping and hints about caches and speed.
    *(Ignored(name, _BOTH) for name in ("metadata", "store")),
    *map(Ignored, ("service_tier", "safety_identifier", "request_id", "session_id", "prediction")),
    *map(Ignored, ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "stream_interval")),
    # Details of what is refused, or of what no model here has.
    *map(Ignored, ("guided_decoding_backend", "guided_whitespace_pattern")),
    *map(Ignored, ("length_penalty", "early_stopping", "routed_experts_prompt_start")),
    *map(Ignored, ("mm_processor_kwargs", "media_io_kwargs", "return_mm_kwargs", "return_token_offsets")),
    Ignored("add_generation_prompt", (*_COMPLETIONS, *_RESPONSES)),
    Ignored("parallel_tool_calls", _COMPLETIONS),
    *(Ignored(name, _RESPONSES) for name in ("max_tool_calls", "stream_options")),
)

#: Members of honoured parameters that would change the answer; others that are not honoured are ignored.
REFUSED_MEMBERS = {
    "stream_options": (
        Refused("continuous_usage_stats", (False,), _BOTH, hint="'include_usage' ends the stream with the usage"),
    ),
    "text": (Refused("verbosity", ("medium",), _RESPONSES),),
    "reasoning": tuple(Refused(name, (), _RESPONSES) for name in ("effort", "summary", "generate_summary")),
    "structured_outputs": (
        Refused("structural_tag"),
        Refused("disable_additional_properties", (False,), hint="say so in the schema"),
    ),
}

_REFUSED_AT = {endpoint: tuple(rule for rule in REFUSED if endpoint in rule.at) for endpoint in Endpoint}


def refuse_unsupported(endpoint: Endpoint, body: Mapping[str, Any]) -> None:
    """Refuse a body that requests what is not supported.

    Raises:
        ApiError: 400, naming the parameter.
    """
    refuse(_REFUSED_AT[endpoint], body)
    for name, rules in REFUSED_MEMBERS.items():
        if isinstance(given := body.get(name), dict):
            refuse((rule for rule in rules if endpoint in rule.at), given, f"{name}.")


def refuse(rules: Iterable[Refused], given: Mapping[str, Any], of: str = "") -> None:
    """Refuse an object that requests what one of the rules does not support; `of` begins its members' paths.

    Raises:
        ApiError: 400, naming the parameter.
    """
    for rule in rules:
        if rule.refuses(given.get(rule.name)):
            path = f"{of}{rule.name}"
            raise bad_request(
                f"The parameter '{path}' is not supported by this server; {rule.hint}.", path, "unsupported_parameter"
            )
