"""LangChain's `ChatOpenAI`."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pydantic
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.checks import API_KEY, MODEL, QUESTION, URL, check, run

SERVED: dict[str, Any] = {"base_url": f"{URL}/v1", "api_key": API_KEY, "model": MODEL, "max_retries": 0, "timeout": 60}
CHAT = ChatOpenAI(**SERVED, temperature=0, max_tokens=200, stream_usage=True)


class Capital(pydantic.BaseModel):
    """The capital of a country."""

    name: Literal["Paris", "Rome"] = pydantic.Field(description="The city's name.")
    is_large: bool


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
    as_schema = CHAT.with_structured_output(Capital.model_json_schema(), method="json_schema").invoke(QUESTION)
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


if __name__ == "__main__":
    run("langchain-openai", "langchain-core")
