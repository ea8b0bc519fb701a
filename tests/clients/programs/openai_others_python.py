"""OpenAI's Python client: responses, whole, streamed, parsed and stored, and embeddings."""

from __future__ import annotations

import math
from typing import Any, Literal

import openai
import pydantic
from openai import OpenAI

from tests.clients.checks import API_KEY, MODEL, QUESTION, TIMEOUT_S, URL, check, run

CLIENT = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0, timeout=TIMEOUT_S)
ASKED: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 32}


class GetWeather(pydantic.BaseModel):
    """Look up the weather of a city."""

    city: Literal["Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


CALLING: dict[str, Any] = {
    **ASKED,
    "input": "Is it warm in Paris?",
    "max_output_tokens": 200,
    "tools": [openai.pydantic_function_tool(GetWeather)["function"] | {"type": "function"}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@check
def response() -> None:
    answer = CLIENT.responses.create(**ASKED)
    assert answer.status in ("completed", "incomplete") and answer.output_text
    assert answer.usage is not None and answer.usage.total_tokens > answer.usage.output_tokens > 0


@check
def stream() -> None:
    """The events are numbered, and end with the whole response."""
    whole = CLIENT.responses.create(**ASKED)
    with CLIENT.responses.stream(**ASKED) as events:
        seen = list(events)
        final = events.get_final_response()
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[0].type == "response.created" and final.output_text == whole.output_text
    said = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert said == whole.output_text


@check
def parse() -> None:
    answer = CLIENT.responses.parse(**{**ASKED, "max_output_tokens": 200}, text_format=GetWeather)
    assert isinstance(answer.output_parsed, GetWeather)


@check
def call_and_its_output() -> None:
    """The conversation goes on by the response's id alone."""
    called = CLIENT.responses.create(**CALLING)
    (call,) = called.output
    assert call.type == "function_call" and GetWeather.model_validate_json(call.arguments)
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}]
    asked = {**CALLING, "input": output, "tool_choice": "none", "max_output_tokens": 16}
    final = CLIENT.responses.create(**asked, previous_response_id=called.id)
    assert final.output_text and final.previous_response_id == called.id
    assert CLIENT.responses.retrieve(final.id).output_text == final.output_text
    CLIENT.responses.delete(final.id)
    try:
        CLIENT.responses.retrieve(final.id)
    except openai.NotFoundError:
        return
    raise AssertionError("it is still there")


@check
def embeddings() -> None:
    """In base64, which the client asks for and decodes."""
    answer = CLIENT.embeddings.create(model=MODEL, input=[QUESTION, "Bread and butter."])
    assert [each.index for each in answer.data] == [0, 1] and answer.usage.prompt_tokens > 2
    for each in answer.data:
        assert abs(math.hypot(*each.embedding) - 1) < 1e-3


if __name__ == "__main__":
    run("openai")
