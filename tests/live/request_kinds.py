"""The kinds of requests that must give the same answers whatever happens to their mesh: one table."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from tests.live.answers import Answer
from tests.live.oracle import mixed_prompts

SCHEMA = {
    "$defs": {
        "place": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 3, "maxLength": 12},
                "kind": {"enum": ["city", "lake", "ridge"]},
            },
            "required": ["name", "kind"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {
        "title": {"const": "weather report"},
        "issued": {"type": "string", "format": "date"},
        "station": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
        "days": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "place": {"$ref": "#/$defs/place"},
                    "degrees": {"type": "integer", "minimum": -40, "maximum": 60},
                    "wind": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 150}]},
                    "is_dry": {"type": "boolean"},
                },
                "required": ["place", "degrees", "wind", "is_dry"],
                "additionalProperties": False,
            },
            "minItems": 4,
            "maxItems": 4,
        },
    },
    "required": ["title", "issued", "station", "days"],
    "additionalProperties": False,
}
REGEX = "([a-z]{3,8} ){60}end\\."
_WORDS = ("over the hills", "across seven bridges", "under an old lamp", "into cold water", "past every window")
CHOICES = [", then ".join(order) + "." for order in itertools.permutations(_WORDS)]
GRAMMAR = 'start: line{20} "end"\nline: NAME " = " NUMBER "\\n"\nNAME: /[a-z]{2,9}/\nNUMBER: /[0-9]{1,4}/'
_LINES = "([a-z]{2,9} = [0-9]{1,4}\n){20}end"
PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.3}
_CHAT = {"messages": [{"role": "user", "content": "What will the weather be like this week?"}]}
_DRAWN = {"temperature": 1.0, "seed": 17}


@dataclass(frozen=True, slots=True)
class RequestKind:
    """A kind of request: the fields of its body; the prompt, if there is none, is running text. `fits` says whether a text, or
    the arguments of a call, that has ended is what was asked for.
    """

    fields: dict[str, Any]
    fits: Callable[[str], bool] = lambda text: True


def _structured(fits: Callable[[str], bool], **fields: Any) -> RequestKind:
    """One that ends where its text does."""
    return RequestKind({"ignore_eos": False, **_DRAWN, **fields}, fits)


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def _fits_schema(text: str) -> bool:
    return jsonschema_rs.is_valid(SCHEMA, json.loads(text), validate_formats=True)


KINDS: Mapping[str, RequestKind] = {
    "greedy": RequestKind({"temperature": 0}),
    "four seeded choices": RequestKind({"temperature": 0.8, "top_p": 0.9, "seed": 7, "n": 4, "logprobs": 2}),
    "penalties": RequestKind({"temperature": 0, "logprobs": 0, **PENALTIES}),
    "json schema": _structured(
        _fits_schema,
        **_CHAT,
        n=2,
        logprobs=True,
        top_logprobs=2,
        response_format={"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}},
    ),
    "regex": _structured(_matches(REGEX), logprobs=1, structured_outputs={"regex": REGEX}),
    "choice": _structured(lambda text: text in CHOICES, **_CHAT, structured_outputs={"choice": CHOICES}),
    "tool calls": _structured(
        _fits_schema,
        **_CHAT,
        n=2,
        logprobs=True,
        tools=[{"type": "function", "function": {"name": "report", "parameters": SCHEMA}}],
        tool_choice="required",
        parallel_tool_calls=False,
    ),
    "grammar": _structured(_matches(_LINES), structured_outputs={"grammar": GRAMMAR}),
}


def bodies(new_tokens: int, longest: int = 200, whole: int | None = None) -> dict[str, dict[str, Any]]:
    """Return one request of each kind.

    Args:
        new_tokens: at most, of each choice.
        longest: tokens of the longest prompt.
        whole: every other request, from this one on, is answered whole; `None`: all are streamed.
    """
    prompts = mixed_prompts(len(KINDS), longest)
    made: dict[str, dict[str, Any]] = {}
    for number, (name, kind) in enumerate(KINDS.items()):
        is_whole = whole is not None and number >= whole and (number - whole) % 2 == 0
        prompt = {} if "messages" in kind.fields else {"prompt": [*prompts[number]]}
        made[name] = {**prompt, "max_tokens": new_tokens, "stream": not is_whole, **kind.fields}
    return made


def assert_fitting(answers: Mapping[str, Answer]) -> None:
    """What has ended by itself is what was asked for; something has."""
    ended = [
        (name, text)
        for name, answer in answers.items()
        for choice in answer.choices.values()
        if choice.ends in ([("stop", None)], [("tool_calls", None)])
        for text in ([arguments for _, arguments in choice.calls] or [choice.text])
    ]
    assert ended
    for name, text in ended:
        assert KINDS[name].fits(text), (name, text)
