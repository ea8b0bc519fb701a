"""OpenAI's Python client: tools, forced by `tool_choice` so that the smallest model calls them."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pydantic
from openai import OpenAI

from tests.clients.checks import API_KEY, MODEL, TIMEOUT_S, URL, check, only, run

CLIENT = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0, timeout=TIMEOUT_S)
MESSAGES: Any = [{"role": "user", "content": "Is it warm in Paris?"}]


class GetWeather(pydantic.BaseModel):
    """Look up the weather of a city."""

    city: Literal["Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


class GetTime(pydantic.BaseModel):
    """Look up the time of a city."""

    city: Literal["Paris", "Rome"]


TOOLS: Any = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(GetTime)]
THIS_ONE: Any = {"type": "function", "function": {"name": "GetWeather"}}
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": MESSAGES,
    "tools": TOOLS,
    "parallel_tool_calls": False,
    "temperature": 0,
    "max_completion_tokens": 200,
}


@check
def named_tool() -> None:
    """`finish_reason` is `stop`, as OpenAI has it where the function is named."""
    answer = CLIENT.chat.completions.create(**ASKED, tool_choice=THIS_ONE)
    call = only(answer.choices[0].message.tool_calls)
    assert call.type == "function" and call.function.name == "GetWeather" and call.id
    assert GetWeather.model_validate_json(call.function.arguments)
    assert answer.choices[0].message.content is None and answer.choices[0].finish_reason == "stop"


@check
def required_tool() -> None:
    answer = CLIENT.chat.completions.create(**ASKED, tool_choice="required")
    call = only(answer.choices[0].message.tool_calls)
    assert call.type == "function" and call.function.name in ("GetWeather", "GetTime")
    assert answer.choices[0].finish_reason == "tool_calls"


@check
def no_tool() -> None:
    answer = CLIENT.chat.completions.create(**ASKED, tool_choice="none")
    assert not answer.choices[0].message.tool_calls and answer.choices[0].message.content


@check
def any_or_no_tool() -> None:
    """What a small model does with `auto` is its own affair; the answer has one form or the other."""
    answer = CLIENT.chat.completions.create(**{**ASKED, "max_completion_tokens": 60}, tool_choice="auto")
    message = answer.choices[0].message
    assert message.content or message.tool_calls
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


@check
def stream() -> None:
    """The first delta of a call has its id and name; the arguments follow in pieces and are those of the whole answer."""
    whole = CLIENT.chat.completions.create(**ASKED, tool_choice=THIS_ONE)
    deltas: list[Any] = []
    reasons = []
    for chunk in CLIENT.chat.completions.create(**ASKED, tool_choice=THIS_ONE, stream=True):
        deltas += chunk.choices[0].delta.tool_calls or []
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert len(deltas) > 2 and all(delta.index == 0 for delta in deltas) and reasons == ["stop"]
    assert (
        deltas[0].id and deltas[0].type == "function" and deltas[0].function and deltas[0].function.name == "GetWeather"
    )
    assert not any(delta.id or (delta.function and delta.function.name) for delta in deltas[1:])
    arguments = "".join(delta.function.arguments or "" for delta in deltas if delta.function)
    call = only(whole.choices[0].message.tool_calls)
    assert call.type == "function" and arguments == call.function.arguments


@check
def stream_helper() -> None:
    """The helper accumulates the arguments and parses them."""
    with CLIENT.chat.completions.stream(**ASKED, tool_choice=THIS_ONE) as events:
        kinds = [event.type for event in events]
        completion = events.get_final_completion()
    call = only(completion.choices[0].message.tool_calls)
    assert isinstance(call.function.parsed_arguments, GetWeather)
    assert kinds.count("tool_calls.function.arguments.delta") > 1
    assert kinds.count("tool_calls.function.arguments.done") == 1


@check
def parse() -> None:
    answer = CLIENT.chat.completions.parse(**ASKED, tool_choice="required")
    call = only(answer.choices[0].message.tool_calls)
    assert isinstance(call.function.parsed_arguments, GetWeather | GetTime)


@check
def conversation() -> None:
    """A call and its result go back as the client holds them; the next answer is a text."""
    first = CLIENT.chat.completions.create(**ASKED, tool_choice=THIS_ONE)
    message = first.choices[0].message
    call = only(message.tool_calls)
    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 21})}
    second = CLIENT.chat.completions.create(**{**ASKED, "messages": [*MESSAGES, message, result]}, tool_choice="none")
    assert second.choices[0].message.content
    assert first.usage is not None and second.usage is not None
    assert second.usage.prompt_tokens > first.usage.completion_tokens


@check
def choices() -> None:
    """Each choice has calls of its own ids."""
    answer = CLIENT.chat.completions.create(**{**ASKED, "temperature": 1}, n=2, seed=7, tool_choice=THIS_ONE)
    calls = [call for choice in answer.choices for call in choice.message.tool_calls or ()]
    assert len({call.id for call in calls}) == 2


@check
def exceptions() -> None:
    unknown = {"type": "function", "function": {"name": "GetNothing"}}
    for change in ({"tool_choice": unknown}, {"tools": [{"type": "function", "function": {}}]}):
        try:
            CLIENT.chat.completions.create(**{**ASKED, **change})
        except openai.BadRequestError as error:
            assert error.param and error.param.startswith("tool"), error
        else:
            raise AssertionError(f"{change} raised nothing")


if __name__ == "__main__":
    run("openai")
