"""LiteLLM, whose provider `hosted_vllm` is for servers like this one, as `openai` is."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import litellm
import pydantic

from tests.clients.checks import API_KEY, MODEL, QUESTION, TIMEOUT_S, URL, check, run

MESSAGES = [{"role": "user", "content": QUESTION}]
SERVED: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": API_KEY, "num_retries": 0, "timeout": TIMEOUT_S}
SHORT: dict[str, Any] = {**SERVED, "messages": MESSAGES, "temperature": 0, "max_tokens": 200}
PROVIDERS = (f"openai/{MODEL}", f"hosted_vllm/{MODEL}")
GET_WEATHER = {
    "name": "get_weather",
    "description": "Look up the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
WITH_TOOLS: dict[str, Any] = {
    **SHORT,
    "messages": [{"role": "user", "content": "Is it warm in Paris?"}],
    "tools": [{"type": "function", "function": GET_WEATHER}],
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    "parallel_tool_calls": False,
}


class Capital(pydantic.BaseModel):
    """The capital of a country."""

    name: Literal["Paris", "Rome"]
    is_large: bool


@check
def completion() -> None:
    for model in PROVIDERS:
        answer: Any = litellm.completion(model=model, **SHORT)
        assert "Paris" in answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@check
def stream() -> None:
    for model in PROVIDERS:
        chunks: Any = list(
            litellm.completion(model=model, **SHORT, stream=True, stream_options={"include_usage": True})
        )
        whole: Any = litellm.stream_chunk_builder(chunks)
        assert "Paris" in whole.choices[0].message.content
        assert whole.choices[0].finish_reason == "stop"
        usage = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        assert [each.completion_tokens for each in usage] == [whole.usage.completion_tokens]


@check
async def acompletion() -> None:
    answers: list[Any] = await asyncio.gather(*(litellm.acompletion(model=PROVIDERS[0], **SHORT) for _ in range(4)))
    assert len({answer.id for answer in answers}) == 4


@check
def structured_output() -> None:
    for model in PROVIDERS:
        answer: Any = litellm.completion(model=model, **SHORT, response_format=Capital)
        assert Capital.model_validate_json(answer.choices[0].message.content)


@check
def text_completion() -> None:
    answer: Any = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt="One, two, three,", max_tokens=8, temperature=0, **SERVED
    )
    assert "four" in answer.choices[0].text


@check
def exceptions() -> None:
    asked: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"model": "openai/nothing"}, litellm.NotFoundError),
        ({"temperature": 9}, litellm.BadRequestError),
        ({"max_tokens": 10**6}, litellm.ContextWindowExceededError),
    ]
    for change, kind in asked:
        try:
            litellm.completion(**{"model": PROVIDERS[0], **SHORT, **change})
        except kind:
            continue
        raise AssertionError(f"{change} raised nothing")


@check
def tools() -> None:
    for model in PROVIDERS:
        answer: Any = litellm.completion(model=model, **WITH_TOOLS)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "get_weather" and call.id
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
        result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
        messages = [*WITH_TOOLS["messages"], answer.choices[0].message, result]
        last: Any = litellm.completion(model=model, **{**WITH_TOOLS, "messages": messages, "tool_choice": "none"})
        assert last.choices[0].message.content


@check
def tools_in_a_stream() -> None:
    for model in PROVIDERS:
        whole: Any = litellm.stream_chunk_builder(list(litellm.completion(model=model, **WITH_TOOLS, stream=True)))
        (call,) = whole.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


if __name__ == "__main__":
    run("litellm")
