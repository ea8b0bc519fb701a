"""Pydantic AI's agents."""

from __future__ import annotations

from typing import Any, Literal

import pydantic
from pydantic_ai import Agent, NativeOutput, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.clients.checks import API_KEY, MODEL, QUESTION, URL, check, run

CHAT = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=API_KEY))
SHORT = ModelSettings(temperature=0, max_tokens=200)


class Capital(pydantic.BaseModel):
    """The capital of a country."""

    name: Literal["Paris", "Rome"]
    is_large: bool


class CallFirst(AbstractCapability[None]):  # type: ignore[misc]
    """The first answer has to be a call, the second one a text."""

    def get_model_settings(self) -> Any:
        return lambda context: {"tool_choice": "required" if context.run_step == 1 else "none"}


@check
async def text() -> None:
    result = await Agent(CHAT, model_settings=SHORT, instructions="Be brief.").run(QUESTION)
    assert result.output
    assert result.usage.output_tokens > 0 and result.response.finish_reason == "stop"


@check
async def conversation() -> None:
    """A second question with the first's messages."""
    agent = Agent(CHAT, model_settings=SHORT)
    first = await agent.run(QUESTION)
    second = await agent.run("And of Italy?", message_history=first.all_messages())
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


@check
async def stream() -> None:
    async with Agent(CHAT, model_settings=SHORT).run_stream(QUESTION) as result:
        texts = [part async for part in result.stream_text(debounce_by=None)]
    assert len(texts) > 3 and "Paris" in texts[-1]
    assert result.usage.output_tokens > 3


@check
async def native_output() -> None:
    """`response_format` with a JSON schema."""
    result = await Agent(CHAT, model_settings=SHORT, output_type=NativeOutput(Capital)).run(QUESTION)
    assert isinstance(result.output, Capital)


@check
async def native_output_in_a_stream() -> None:
    async with Agent(CHAT, model_settings=SHORT, output_type=NativeOutput(Capital)).run_stream(QUESTION) as result:
        assert isinstance(await result.get_output(), Capital)


@check
async def exceptions() -> None:
    try:
        await Agent(CHAT, model_settings={"temperature": 9}).run(QUESTION)
    except ModelHTTPError as error:
        assert error.status_code == 400 and "temperature" in str(error.body)
    else:
        raise AssertionError("no error")


@check
async def output_by_a_tool() -> None:
    """Its default for structured output: a tool that has to be called."""
    result = await Agent(CHAT, model_settings=SHORT, output_type=Capital).run(QUESTION)
    assert isinstance(result.output, Capital)


@check
async def output_by_a_tool_in_a_stream() -> None:
    async with Agent(CHAT, model_settings=SHORT, output_type=Capital).run_stream(QUESTION) as result:
        assert isinstance(await result.get_output(), Capital)


@check
async def tools() -> None:
    """A tool is called, and its result goes back with the id of the call."""
    called: dict[str, str] = {}

    def get_weather(context: RunContext[None], city: Literal["Paris", "Rome"]) -> str:
        """Look up the weather of a city."""
        called[context.tool_call_id or ""] = city
        return f"21 degrees in {city}"

    settings = ModelSettings(**SHORT, parallel_tool_calls=False)
    agent = Agent(CHAT, tools=[get_weather], model_settings=settings, capabilities=[CallFirst()])
    result = await agent.run("Is it warm in Paris?")
    assert result.output and list(called) != [""] and len(called) == 1


if __name__ == "__main__":
    run("pydantic-ai-slim")
