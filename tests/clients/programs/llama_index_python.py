"""LlamaIndex's `OpenAILike`; it reads the types of tools as they are written, so that no annotation is put off here."""

from typing import Any, Literal

import openai
import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.checks import API_KEY, MODEL, QUESTION, TIMEOUT_S, URL, check, run

SERVED: dict[str, Any] = {
    "api_base": f"{URL}/v1",
    "api_key": API_KEY,
    "model": MODEL,
    "max_retries": 0,
    "timeout": TIMEOUT_S,
    "temperature": 0,
    "max_tokens": 200,
    "context_window": 8192,
}
CHAT = OpenAILike(**SERVED, is_chat_model=True)
MESSAGES = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=QUESTION)]
TOOLS = OpenAILike(**SERVED, is_chat_model=True, is_function_calling_model=True)
WARM = "Is it warm in Paris?"


class Capital(pydantic.BaseModel):
    """The capital of a country."""

    name: Literal["Paris", "Rome"]
    is_large: bool


def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Look up the weather of a city."""
    return f"21 degrees in {city}"


GET_WEATHER = FunctionTool.from_defaults(get_weather)


@check
def chat() -> None:
    answer = CHAT.chat(MESSAGES)
    assert answer.message.content
    assert answer.raw is not None and answer.raw.choices[0].finish_reason == "stop"
    assert answer.additional_kwargs["completion_tokens"] > 0


@check
def stream_chat() -> None:
    parts = list(CHAT.stream_chat(MESSAGES))
    assert len(parts) > 3
    assert (
        "".join(part.delta or "" for part in parts) == parts[-1].message.content == CHAT.chat(MESSAGES).message.content
    )


@check
async def achat() -> None:
    assert (await CHAT.achat(MESSAGES)).message.content


@check
def complete() -> None:
    """With a chat model `complete` is a chat of one message, else `/v1/completions`."""
    assert "Paris" in CHAT.complete(QUESTION).text
    text = OpenAILike(**{**SERVED, "max_tokens": 8}, is_chat_model=False)
    assert "four" in text.complete("One, two, three,").text
    assert "four" in [*text.stream_complete("One, two, three,")][-1].text


@check
def structured_output() -> None:
    model = OpenAILike(**SERVED, is_chat_model=True, should_use_structured_outputs=True)
    assert isinstance(model.structured_predict(Capital, PromptTemplate(QUESTION)), Capital)


@check
def exceptions() -> None:
    try:
        CHAT.chat(MESSAGES, temperature=9)
    except openai.BadRequestError as error:
        assert error.param == "temperature"
    else:
        raise AssertionError("no error")


@check
def chat_with_tools() -> None:
    answer = TOOLS.chat_with_tools([GET_WEATHER], WARM, tool_required=True, allow_parallel_tool_calls=False)
    (call,) = TOOLS.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather" and call.tool_kwargs["city"] in ("Paris", "Rome") and call.tool_id
    result = ChatMessage(role="tool", content="21 degrees", additional_kwargs={"tool_call_id": call.tool_id})
    last = TOOLS.chat([ChatMessage(role="user", content=WARM), answer.message, result])
    assert last.message.content


@check
def stream_chat_with_tools() -> None:
    parts = TOOLS.stream_chat_with_tools([GET_WEATHER], WARM, tool_required=True, allow_parallel_tool_calls=False)
    (call,) = TOOLS.get_tool_calls_from_response([*parts][-1])
    assert call.tool_kwargs["city"] in ("Paris", "Rome")


@check
def predict_and_call() -> None:
    answer = TOOLS.predict_and_call([GET_WEATHER], WARM, tool_required=True, allow_parallel_tool_calls=False)
    assert "21 degrees" in answer.response


@check
def structured_output_by_a_tool() -> None:
    assert isinstance(TOOLS.structured_predict(Capital, PromptTemplate(QUESTION)), Capital)


if __name__ == "__main__":
    run("llama-index-llms-openai-like", "llama-index-core")
