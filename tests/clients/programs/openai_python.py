"""OpenAI's Python client: the calls and the helpers of its documentation."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import openai
import pydantic
from openai import AsyncOpenAI, OpenAI

from tests.clients.checks import API_KEY, MODEL, QUESTION, TIMEOUT_S, URL, check, run

CLIENT = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0, timeout=TIMEOUT_S)
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
SHORT: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 16}


class Day(pydantic.BaseModel):
    """A day's weather."""

    name: Literal["Monday", "Tuesday"]
    degrees: int = pydantic.Field(ge=-40, le=60)
    wind: Literal["weak", "strong"] | None


class Weather(pydantic.BaseModel):
    """Weather: nested models, which reach the server as `$defs`, `$ref` and `anyOf`."""

    city: Literal["Paris", "Rome"]
    is_cold: bool
    days: list[Day] = pydantic.Field(min_length=1, max_length=2)


@check
def models() -> None:
    assert MODEL in [model.id for model in CLIENT.models.list()]
    assert CLIENT.models.retrieve(MODEL).id == MODEL


@check
def chat() -> None:
    answer = CLIENT.chat.completions.create(**SHORT)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    raw = CLIENT.chat.completions.with_raw_response.create(**SHORT)
    assert raw.request_id == raw.parse().id


@check
def stream() -> None:
    whole = CLIENT.chat.completions.create(**SHORT)
    *chunks, last = CLIENT.chat.completions.create(**SHORT, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert last.choices == [] and last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


@check
def stream_helper() -> None:
    with CLIENT.chat.completions.stream(**SHORT) as events:
        kinds = [event.type for event in events]
        completion = events.get_final_completion()
    assert kinds.count("content.delta") >= 2 and kinds.count("content.done") == 1
    assert "Paris" in (completion.choices[0].message.content or "")


@check
def choices_and_logprobs() -> None:
    answer = CLIENT.chat.completions.create(**{**SHORT, "temperature": 1}, n=3, seed=7, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    scored = [choice.logprobs.content or [] for choice in answer.choices if choice.logprobs]
    assert answer.usage.completion_tokens == sum(map(len, scored))
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for tokens in scored for token in tokens)


@check
def completions() -> None:
    answer = CLIENT.completions.create(
        model=MODEL, prompt=["One, two,", "Red, green,"], max_tokens=4, temperature=0, logprobs=1, echo=True
    )
    assert [choice.text[:9] for choice in answer.choices] == ["One, two,", "Red, gree"]
    assert all(choice.finish_reason == "length" and choice.logprobs for choice in answer.choices)
    chunks = list(CLIENT.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"


@check
def parse() -> None:
    answer = CLIENT.chat.completions.parse(**{**SHORT, "max_tokens": 200}, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    assert answer.choices[0].finish_reason == "stop"


@check
def parse_in_a_stream() -> None:
    with CLIENT.chat.completions.stream(**{**SHORT, "max_tokens": 200}, response_format=Weather) as events:
        deltas = [event for event in events if event.type == "content.delta"]
        completion = events.get_final_completion()
    assert isinstance(completion.choices[0].message.parsed, Weather)
    assert any(isinstance(event.parsed, dict) for event in deltas)


@check
def too_short_to_parse() -> None:
    try:
        CLIENT.chat.completions.parse(**{**SHORT, "max_tokens": 3}, response_format=Weather)
    except openai.LengthFinishReasonError as error:
        assert error.completion.choices[0].finish_reason == "length"
    else:
        raise AssertionError("the client parsed a beginning")


@check
def json_object() -> None:
    answer = CLIENT.chat.completions.create(**{**SHORT, "max_tokens": 8}, response_format={"type": "json_object"})
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")


@check
def exceptions() -> None:
    """Each error is the client's own exception, with OpenAI's code and parameter."""
    too_long = {**SHORT, "max_tokens": 10**6}
    asked: list[tuple[dict[str, Any], type[openai.APIStatusError], str, str]] = [
        ({**SHORT, "model": "nothing"}, openai.NotFoundError, "model_not_found", "model"),
        ({**SHORT, "temperature": 9}, openai.BadRequestError, "invalid_value", "temperature"),
        (too_long, openai.BadRequestError, "context_length_exceeded", "messages"),
    ]
    for body, kind, code, param in asked:
        try:
            CLIENT.chat.completions.create(**body)
        except openai.APIStatusError as error:
            assert type(error) is kind and (error.code, error.param) == (code, param), repr(error)
            assert error.type == "invalid_request_error" and error.request_id
        else:
            raise AssertionError(f"{code} was not raised")
    try:
        CLIENT.post("/nowhere", cast_to=object, body={})
    except openai.NotFoundError as error:
        assert error.code == "unknown_url"


@check
def timeout() -> None:
    began_s = time.monotonic()
    try:
        CLIENT.with_options(timeout=0.3).chat.completions.create(
            **{**SHORT, "max_tokens": 1000}, extra_body={"ignore_eos": True}
        )
    except openai.APITimeoutError:
        assert time.monotonic() - began_s < 5
    else:
        raise AssertionError("1,000 tokens came within 0.3 s")


@check
def closed_stream() -> None:
    """A stream that its client closes is cancelled in the mesh."""
    chunks = CLIENT.chat.completions.create(
        **{**SHORT, "max_tokens": 1000}, stream=True, extra_body={"ignore_eos": True}
    )
    request_id = next(chunks).id
    chunks.close()
    deadline_s = time.monotonic() + 10
    while (state := CLIENT.get(f"/requests/{request_id}", cast_to=dict[str, Any])["state"]) != "cancelled":
        assert time.monotonic() < deadline_s, state
        time.sleep(0.1)


@check
async def many_at_once() -> None:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=API_KEY, max_retries=0, timeout=120) as client:
        answers = await asyncio.gather(*(client.chat.completions.create(**SHORT) for _ in range(8)))
    assert len({answer.id for answer in answers}) == 8
    assert len({answer.choices[0].message.content for answer in answers}) == 1


if __name__ == "__main__":
    run("openai")
