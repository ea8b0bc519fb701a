"""LangChain's `ChatOpenAI`."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pydantic
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.checks import API_KEY, MODEL, QUESTION, TIMEOUT_S, URL, check, run

SERVED: dict[str, Any] = {
    "base_url": f"{URL}/v1",
    "api_key": API_KEY,
    "model": MODEL,
    "max_retries": 0,
    "timeout": TIMEOUT_S,
}
CHAT = ChatOpenAI(**SERVED, temperature=0, max_tokens=200, stream_usage=True)
WARM = "Is it warm in Paris?"


class Capital(pydantic.BaseModel):
    """The capital of a country."""

    name: Literal["Paris", "Rome"] = pydantic.Field(description="The city's name.")
    is_large: bool


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Look up the weather of a city."""
    return f"21 degrees in {city}"


def calling(choice: str) -> Any:
    """The chat with a tool; without `strict` its schema would allow further arguments, in which a small model loses itself."""
    return CHAT.bind_tools([get_weather], tool_choice=choice, strict=True, parallel_tool_calls=False)


@check
def invoke() -> None:
    answer = CHAT.invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    assert isinstance(answer.content, str) and answer.content
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0


@check
def stream() -> None:
    """The chunks add up to one message with the usage."""
    chunks = [chunk for chunk in CHAT.stream(QUESTION) if isinstance(chunk, AIMessageChunk)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert len(chunks) > 3 and "Paris" in str(whole.content)
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 3


@check
async def batch() -> None:
    """A prompt template in front, several requests at once."""
    chain = ChatPromptTemplate.from_template("What is the capital of {country}?") | CHAT
    answers = await chain.abatch([{"country": "France"}, {"country": "Italy"}, {"country": "Spain"}])
    assert "Paris" in answers[0].content and len(answers) == 3


@check
def structured_output() -> None:
    """`with_structured_output` with a pydantic model and with a JSON schema."""
    assert isinstance(CHAT.with_structured_output(Capital, method="json_schema").invoke(QUESTION), Capital)
    both = CHAT.with_structured_output(Capital, method="json_schema", include_raw=True).invoke(QUESTION)
    assert isinstance(both, dict) and both["parsing_error"] is None and isinstance(both["parsed"], Capital)
    schema = Capital.model_json_schema()
    as_schema = CHAT.with_structured_output(schema, method="json_schema", strict=True).invoke(QUESTION)
    assert isinstance(as_schema, dict) and Capital.model_validate(as_schema)


@check
def structured_output_in_a_stream() -> None:
    *_, last = CHAT.with_structured_output(Capital, method="json_schema").stream(QUESTION)
    assert isinstance(last, Capital)


@check
def logprobs() -> None:
    answer = CHAT.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    scored = answer.response_metadata["logprobs"]["content"]
    assert answer.usage_metadata is not None and len(scored) == answer.usage_metadata["output_tokens"]


@check
def completions() -> None:
    text = OpenAI(**SERVED, temperature=0, max_tokens=8).invoke("One, two, three,")
    assert "four" in text


@check
def exceptions() -> None:
    try:
        CHAT.bind(temperature=9).invoke(QUESTION)
    except openai.BadRequestError as error:
        assert error.param == "temperature"
    else:
        raise AssertionError("no error")


@check
def bound_tools() -> None:
    """`bind_tools` with a named tool and with any; the call's arguments are an object, its id goes with the result."""
    named = calling("get_weather").invoke(WARM)
    required = calling("any").invoke(WARM)
    for answer in (named, required):
        (call,) = answer.tool_calls
        assert call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "Rome") and call["id"]
    result = get_weather.invoke(named.tool_calls[0])
    assert result.tool_call_id == named.tool_calls[0]["id"]
    last = CHAT.bind_tools([get_weather], tool_choice="none").invoke([HumanMessage(WARM), named, result])
    assert last.content and not last.tool_calls


@check
def bound_tools_in_a_stream() -> None:
    chunks = [chunk for chunk in calling("get_weather").stream(WARM) if isinstance(chunk, AIMessageChunk)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert len(chunks) > 3 and whole.tool_calls[0]["args"]["city"] in ("Paris", "Rome")


@check
def structured_output_by_a_tool() -> None:
    """`with_structured_output` by way of a function, which many servers need."""
    model = CHAT.with_structured_output(Capital, method="function_calling", strict=True)
    assert isinstance(model.invoke(QUESTION), Capital)


if __name__ == "__main__":
    run("langchain-openai", "langchain-core")
