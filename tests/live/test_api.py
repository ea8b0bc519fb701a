"""The real `openai` client against the real mesh: every documented parameter has its documented effect."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

from tests.live.mesh import MODEL, LiveMesh
from tests.live.oracle import greedy, greedy_with_penalties, prompt_logprobs, tokenizer

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
COUNTING = "One, two, three, four, five, six,"


def counting_tokens(count: int) -> tuple[int, ...]:
    return greedy(tuple(tokenizer()(COUNTING)["input_ids"]), count)


def complete(mesh: LiveMesh, prompt: Any = COUNTING, extra: Any = None, **options: Any) -> Any:
    settings = {"temperature": 0, "max_tokens": 12, **options}
    extra_body = {"return_token_ids": True, **(extra or {})}
    return mesh.client().completions.create(model=MODEL, prompt=prompt, extra_body=extra_body, **settings)


def test_a_chat_is_answered(mesh: LiveMesh) -> None:
    """The default model knows its capitals; usage counts the prompt as the chat template writes it."""
    answer = mesh.client().chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)
    rendered = tokenizer().apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(rendered["input_ids"])
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.id.startswith("chatcmpl-")


def test_a_prompt_that_was_computed_before_is_not_computed_again(mesh: LiveMesh) -> None:
    """All full blocks of a repeated prompt but the last token's are cached; the usage of answer and stream reports them."""
    first = complete(mesh)
    again = complete(mesh)
    assert again.usage.prompt_tokens_details.cached_tokens == (again.usage.prompt_tokens - 1) // 16 * 16
    assert again.choices[0].text == first.choices[0].text
    *_, last = complete(mesh, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens_details == again.usage.prompt_tokens_details


def test_a_cache_salt_hides_what_was_computed_before(mesh: LiveMesh) -> None:
    """A prompt that was computed without the salt is computed anew, with the same answer; then the salt finds it."""
    prompt = " ".join([COUNTING] * 6)
    plain = complete(mesh, prompt)
    salted, again = (complete(mesh, prompt, {"cache_salt": "mine"}) for _ in range(2))
    assert salted.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    assert plain.choices[0].text == salted.choices[0].text == again.choices[0].text


def test_priority_and_user_change_no_answer(mesh: LiveMesh) -> None:
    """Priority and user only matter for order and fairness; without a queue the answers are the same."""
    plain = complete(mesh)
    assert complete(mesh, extra={"priority": -5}, user="bob").choices[0].text == plain.choices[0].text


def test_a_stream_brings_the_same_text_and_the_same_usage(mesh: LiveMesh) -> None:
    """Chunks joined are the whole answer; the usage comes in a last chunk of its own."""
    client = mesh.client()
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            temperature=0,
            max_completion_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(chunks) > whole.usage.completion_tokens / 2  # it came in pieces
    assert chunks[-1].choices == []
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [getattr(chunks[-1].usage, name) for name in counts] == [getattr(whole.usage, name) for name in counts]
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]


def test_models_are_listed(mesh: LiveMesh) -> None:
    """The model, by list, before its adapters, and by name."""
    client = mesh.client()
    assert next(iter(client.models.list())).id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL


def test_stop_strings_across_token_borders(mesh: LiveMesh) -> None:
    """A stop string that begins inside one token and ends inside another ends the text before it, streamed or not."""
    text = tokenizer().decode(counting_tokens(24))
    pieces = [tokenizer().decode([token]) for token in counting_tokens(24)]
    border = len("".join(pieces[:5]))
    stop = text[border - 2 : border + 2]
    expected = text[: text.index(stop)]
    answer = complete(mesh, max_tokens=24, stop=[stop, "never said"])
    assert answer.choices[0].text == expected
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens < 24
    stream = complete(mesh, max_tokens=24, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == expected
    mesh.wait_until_idle()


def test_stop_token_ids_and_ignore_eos(mesh: LiveMesh) -> None:
    """A stop token ends the sequence and is counted; `ignore_eos` lets it run to `max_tokens`."""
    tokens = counting_tokens(12)
    answer = complete(mesh, extra={"stop_token_ids": [tokens[4]]})
    assert tuple(answer.choices[0].token_ids) == tokens[: tokens.index(tokens[4]) + 1]
    assert answer.choices[0].finish_reason == "stop"
    chat = mesh.client().chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=40, extra_body={"ignore_eos": True}
    )
    assert (chat.usage.completion_tokens, chat.choices[0].finish_reason) == (40, "length")


def test_max_tokens_of_one_ends_on_the_prompt_worker(mesh: LiveMesh) -> None:
    """One token needs no token phase, and the reservation for it is given back."""
    answer = complete(mesh, max_tokens=1)
    assert tuple(answer.choices[0].token_ids) == counting_tokens(1)
    assert answer.choices[0].finish_reason == "length"
    mesh.wait_until_idle()


def test_a_chat_without_a_bound_gets_what_a_worker_holds(mesh: LiveMesh) -> None:
    """256 MiB of KV hold 5,824 tokens, fewer than the context; a chat that names no bound is served all the same."""
    answer = mesh.client().chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")


def test_logit_bias(mesh: LiveMesh) -> None:
    """A bias of +100 forces a token, one of -100 forbids it."""
    first = counting_tokens(1)[0]
    forced = complete(mesh, max_tokens=3, logit_bias={"123": 100})
    assert forced.choices[0].token_ids == [123, 123, 123]
    assert complete(mesh, max_tokens=1, logit_bias={str(first): -100}).choices[0].token_ids != [first]


@pytest.mark.parametrize("penalties", [(2.0, 0.0, 1.0), (0.0, 1.5, 1.0), (0.0, 0.0, 1.4), (0.7, 0.3, 1.2)])
def test_penalties(mesh: LiveMesh, penalties: tuple[float, float, float]) -> None:
    """Presence, frequency and repetition penalties change the tokens exactly by their definitions."""
    presence, frequency, repetition = penalties
    prompt = "red blue red blue red blue red"
    answer = complete(
        mesh,
        prompt=prompt,
        presence_penalty=presence,
        frequency_penalty=frequency,
        extra={"repetition_penalty": repetition},
    )
    ids = tuple(tokenizer()(prompt)["input_ids"])
    expected = greedy_with_penalties(ids, 12, presence, frequency, repetition)
    assert tuple(answer.choices[0].token_ids) == expected
    assert expected != greedy(ids, 12)


def test_sampling_parameters_that_leave_one_token_are_greedy(mesh: LiveMesh) -> None:
    """top_k=1, a tiny top_p and min_p=1 each leave the likeliest token, whatever the temperature."""
    expected = list(counting_tokens(8))
    hot: dict[str, Any] = {"temperature": 1.5, "max_tokens": 8, "seed": 3}
    assert complete(mesh, extra={"top_k": 1}, **hot).choices[0].token_ids == expected
    assert complete(mesh, top_p=1e-6, **hot).choices[0].token_ids == expected
    assert complete(mesh, extra={"min_p": 1.0}, **hot).choices[0].token_ids == expected


def test_choices(mesh: LiveMesh) -> None:
    """`n` choices differ, repeat with the seed, and the prompt is counted once."""
    options: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 9, "max_tokens": 16}
    first, second = complete(mesh, **options), complete(mesh, **options)
    texts = [choice.text for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice.text for choice in second.choices] == texts
    assert first.usage.prompt_tokens == len(tokenizer()(COUNTING)["input_ids"])
    assert first.usage.completion_tokens == sum(len(choice.token_ids) for choice in first.choices)


def test_several_prompts(mesh: LiveMesh) -> None:
    """A list of prompts gives a choice each, in order; text and token ids mean the same."""
    ids = tokenizer()(COUNTING)["input_ids"]
    answer = complete(mesh, prompt=[ids, tokenizer()("Paris is")["input_ids"]], max_tokens=6)
    assert tuple(answer.choices[0].token_ids) == counting_tokens(6)
    assert complete(mesh, max_tokens=6).choices[0].token_ids == answer.choices[0].token_ids
    assert len(answer.choices) == 2


def test_logprobs_and_echo(mesh: LiveMesh) -> None:
    """Log-probabilities are those of the model; echo puts the prompt and its scores before the answer."""
    answer = complete(mesh, max_tokens=3, logprobs=2, echo=True)
    choice = answer.choices[0]
    prompt_tokens = len(tokenizer()(COUNTING)["input_ids"])
    assert choice.text == COUNTING + tokenizer().decode(counting_tokens(3))
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == prompt_tokens + 3
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    for value, top in zip(choice.logprobs.token_logprobs[-3:], choice.logprobs.top_logprobs[-3:], strict=True):
        assert value == pytest.approx(max(top.values()))  # greedy takes the likeliest
    chat = mesh.client().chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    scored: Any = chat.choices[0].logprobs and chat.choices[0].logprobs.content
    assert len(scored) == 4
    assert all(len(token.top_logprobs) == 3 and token.logprob == token.top_logprobs[0].logprob for token in scored)
    assert "".join(token.token for token in scored) == chat.choices[0].message.content


def test_a_prompts_tokens_and_their_scores_are_the_models(mesh: LiveMesh) -> None:
    """Of a chat, by `/tokenize` and with `prompt_logprobs`; of a prompt that is cut, those of what is left of it."""
    rendered = tokenizer().apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert httpx.post(f"{mesh.url}/tokenize", json={"messages": QUESTION}).json()["tokens"] == rendered
    chat: Any = mesh.client().chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    cut = complete(mesh, prompt=rendered, extra={"prompt_logprobs": 1, "truncate_prompt_tokens": 9}, max_tokens=1)
    for ids, scores in ((rendered, chat.prompt_logprobs), (rendered[-9:], cut.choices[0].prompt_logprobs)):
        found = [at_token[str(token_id)]["logprob"] for token_id, at_token in zip(ids[1:], scores[1:], strict=True)]
        assert found == pytest.approx(prompt_logprobs(tuple(ids)), abs=1e-3)


def test_a_long_prompt_is_scored(mesh: LiveMesh) -> None:
    """Scores of a prompt longer than one prompt batch arrive whole."""
    ids = (tokenizer()(COUNTING)["input_ids"] * 300)[:2500]
    answer = complete(mesh, prompt=ids, max_tokens=1, logprobs=5, echo=True)
    assert len(answer.choices[0].logprobs.token_logprobs) == 2501


def test_many_streams_at_once(mesh: LiveMesh) -> None:
    """24 streams at once, each gets its own text."""
    prompts = [f"Count from {number}: {number}," for number in range(24)]

    async def one(client: Any, prompt: str) -> str:
        stream = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=8, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def every() -> list[str]:
        async with mesh.async_client() as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    texts = asyncio.run(every())
    for prompt, text in zip(prompts, texts, strict=True):
        assert text == tokenizer().decode(greedy(tuple(tokenizer()(prompt)["input_ids"]), 8))
    mesh.wait_until_idle()


def test_a_connection_that_was_idle_for_longer_than_clients_keep_theirs_still_serves(mesh: LiveMesh) -> None:
    """A client should close an idle connection, since it knows of no response on its way; most do after 5 s."""
    address = urlsplit(mesh.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=10)
    try:
        ports = []
        for idle_s in (0.0, 6.0):
            time.sleep(idle_s)
            connection.request(
                "GET", "/health"
            )  # which opens a new one where this end knows that the old one was closed
            assert connection.getresponse().read()
            assert connection.sock is not None
            ports.append(connection.sock.getsockname()[1])
        assert ports[0] == ports[1]
    finally:
        connection.close()


def test_metrics_count_what_was_served(mesh: LiveMesh) -> None:
    """The names that dashboards expect, and counts that grow by exactly what a request used."""

    def metric(text: str, name: str) -> float:
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))

    before = mesh.get("/metrics").text
    answer = complete(mesh, max_tokens=5)
    after = mesh.get("/metrics").text
    for name, grown in (
        ("vllm:prompt_tokens_total", answer.usage.prompt_tokens),
        ("vllm:generation_tokens_total", 5),
        ("vllm:request_success_total", 1),
        ("vllm:time_to_first_token_seconds_count", 1),
        ("vllm:inter_token_latency_seconds_count", 4),
        ("vllm:e2e_request_latency_seconds_count", 1),
        ("vllm:request_queue_time_seconds_count", 1),
    ):
        assert metric(after, name) - metric(before, name) == grown, name
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_preemptions_total"):
        assert name in after
    assert metric(after, "vllm:kv_cache_usage_perc") < 1


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 24}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class Place(BaseModel):
    """What a schema is made of."""

    city: Literal["Paris", "London"]


NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_of_a_tool(mesh: LiveMesh, choice: Any) -> None:
    """Its arguments follow the schema; streamed it is the same; and the conversation goes on with what the tool returned."""
    client = mesh.client()
    asked: Any = {"model": MODEL, "max_tokens": 120, "temperature": 0, "parallel_tool_calls": False}
    asked |= {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [WEATHER]}
    whole = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
    (call,) = whole.message.tool_calls
    assert whole.finish_reason == ("stop" if choice is NAMED else "tool_calls")
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F")

    with client.chat.completions.stream(**asked, tool_choice=choice) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    assert len([piece for piece in pieces if piece]) > 3

    answered = [*asked["messages"], whole.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    prompt = mesh.post("/tokenize", {"messages": [_plain(each) for each in answered], "tools": [WEATHER]}).json()
    rendered = tokenizer().decode(prompt["tokens"])
    assert (
        "18 degrees" in rendered
        and json.dumps(arguments, ensure_ascii=False) in rendered
        and '"get_weather"' in rendered
    )
    final = client.chat.completions.create(**asked | {"messages": answered}).choices[0]
    assert final.finish_reason in ("stop", "length", "tool_calls")


def _plain(message: Any) -> Any:
    return message if isinstance(message, dict) else message.model_dump(exclude_none=True)


def test_a_response_and_what_goes_on_from_it(mesh: LiveMesh) -> None:
    """The chat's answer; streamed it is the same; a schema is parsed; a call's output goes on by the response's id alone."""
    client = mesh.client()
    asked: Any = {"model": MODEL, "input": QUESTION[0]["content"], "temperature": 0, "max_output_tokens": 32}
    whole = client.responses.create(**asked)
    chat = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)
    assert whole.output_text == chat.choices[0].message.content
    assert (whole.usage.input_tokens, whole.status) == (chat.usage.prompt_tokens, "completed")
    with client.responses.stream(**asked) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == said == whole.output_text
    assert client.responses.retrieve(whole.id) == whole

    parsed = client.responses.parse(**asked | {"input": "Where is the Louvre? Answer in JSON."}, text_format=Place)
    assert isinstance(parsed.output_parsed, Place)

    tool: Any = {"type": "function", "strict": True, **WEATHER["function"]}
    asked |= {"input": "What is the weather in Paris?", "max_output_tokens": 120, "tools": [tool]}
    called = client.responses.create(**asked, tool_choice="required", parallel_tool_calls=False)
    (call,) = called.output
    assert set(json.loads(call.arguments)) == {"city", "unit"}
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}]
    final = client.responses.create(**asked | {"input": output}, previous_response_id=called.id)
    assert final.usage.input_tokens > called.usage.input_tokens
    listed = list(client.responses.input_items.list(final.id, order="asc"))
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output"]
    client.responses.delete(final.id)
    assert mesh.get(f"/v1/responses/{final.id}").status_code == 404


def test_anthropics_messages(mesh: LiveMesh) -> None:
    """Their text is the chat's, whole and streamed; a tool is called and its result is read; counted tokens are those used."""
    asked: Any = {"model": MODEL, "max_tokens": 32, "messages": QUESTION, "extra_body": {"temperature": 0}}
    counted: Any = {"model": MODEL, "messages": QUESTION}
    chat = mesh.client().chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)
    with Anthropic(base_url=mesh.url, api_key="none", max_retries=0, timeout=60.0) as client:
        whole = client.messages.create(**asked)
        assert [block.text for block in whole.content if block.type == "text"] == [chat.choices[0].message.content]
        assert (whole.stop_reason, whole.usage.output_tokens) == ("end_turn", chat.usage.completion_tokens)
        with client.messages.stream(**asked) as stream:
            pieces = list(stream.text_stream)
            streamed = stream.get_final_message()
        assert len(pieces) > 3 and "".join(pieces) == chat.choices[0].message.content
        for usage in (whole.usage, streamed.usage):
            used = usage.input_tokens + (usage.cache_read_input_tokens or 0)
            assert used == client.messages.count_tokens(**counted).input_tokens == chat.usage.prompt_tokens

        function = WEATHER["function"]
        tool = {"name": function["name"], "input_schema": function["parameters"]}
        counted |= {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [tool]}
        asked |= counted | {"max_tokens": 120}
        called = client.messages.create(**asked, tool_choice={"type": "any", "disable_parallel_tool_use": True})
        (use,) = called.content
        assert use.type == "tool_use" and called.stop_reason == "tool_use"
        assert use.name == "get_weather" and set(use.input) == {"city", "unit"}
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees"}
        counted["messages"] += [
            {"role": "assistant", "content": called.content},
            {"role": "user", "content": [result]},
        ]
        answered = client.messages.create(**asked | counted)
        used = answered.usage.input_tokens + (answered.usage.cache_read_input_tokens or 0)
        assert used == client.messages.count_tokens(**counted).input_tokens
        assert answered.stop_reason in ("end_turn", "max_tokens", "tool_use")
