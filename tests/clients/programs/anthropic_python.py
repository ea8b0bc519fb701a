"""Anthropic's Python client: messages, streams, tools and counted tokens."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import Anthropic

from tests.clients.checks import API_KEY, MODEL, QUESTION, TIMEOUT_S, URL, check, run

CLIENT = Anthropic(base_url=URL, api_key=API_KEY, max_retries=0, timeout=TIMEOUT_S)
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 32,
    "extra_body": {"temperature": 0},
}
TOOL: Any = {
    "name": "get_weather",
    "description": "Look up the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
CALLING: dict[str, Any] = {
    **ASKED,
    "messages": [{"role": "user", "content": "Is it warm in Paris?"}],
    "max_tokens": 200,
    "tools": [TOOL],
    "tool_choice": {"type": "tool", "name": "get_weather"},
}


@check
def message() -> None:
    answer = CLIENT.messages.create(**ASKED, system="Answer briefly.")
    assert answer.role == "assistant" and answer.type == "message" and answer.model == MODEL
    assert [block.type for block in answer.content] == ["text"]
    assert answer.stop_reason in ("end_turn", "max_tokens") and answer.usage.output_tokens > 0


@check
def stream() -> None:
    """The text in pieces is the whole answer's."""
    whole = CLIENT.messages.create(**ASKED)
    with CLIENT.messages.stream(**ASKED) as events:
        pieces = list(events.text_stream)
        final = events.get_final_message()
    (block,) = whole.content
    assert block.type == "text" and "".join(pieces) == block.text and len(pieces) > 1
    (same,) = final.content
    assert same.type == "text" and same.text == block.text and final.stop_reason == whole.stop_reason


@check
def stop_sequence() -> None:
    answer = CLIENT.messages.create(**ASKED, stop_sequences=["Paris", "capital"])
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence in ("Paris", "capital")


@check
def tool() -> None:
    """The input is an object that follows the schema; the result goes back as a block."""
    answer = CLIENT.messages.create(**CALLING)
    (use,) = answer.content
    assert use.type == "tool_use" and use.name == "get_weather" and use.id and answer.stop_reason == "tool_use"
    assert set(use.input) == {"city", "unit"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "21 degrees"}
    messages = [
        *CALLING["messages"],
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    final = CLIENT.messages.create(
        **{**CALLING, "messages": messages, "tool_choice": {"type": "none"}, "max_tokens": 16}
    )
    assert [block.type for block in final.content] == ["text"]


@check
def tool_stream() -> None:
    """The client puts the input together from its pieces."""
    whole = CLIENT.messages.create(**CALLING)
    with CLIENT.messages.stream(**CALLING) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert kinds.count("input_json") > 1
    (use,), (same,) = whole.content, final.content
    assert use.type == same.type == "tool_use" and same.input == use.input


@check
def count_tokens() -> None:
    answer = CLIENT.messages.create(**ASKED)
    counted = CLIENT.messages.count_tokens(model=MODEL, messages=ASKED["messages"])
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


@check
def exceptions() -> None:
    for change, kind in (
        ({"model": "another"}, anthropic.NotFoundError),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, anthropic.BadRequestError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
    ):
        try:
            CLIENT.messages.create(**{**ASKED, **change})
        except kind as error:
            assert error.body["error"]["message"], error  # type: ignore[index, call-overload]
        else:
            raise AssertionError(f"{change} raised nothing")


if __name__ == "__main__":
    run("anthropic")
