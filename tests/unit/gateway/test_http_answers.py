"""Answers that are not streamed: texts, ends, usage, log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from spotwise.http.errors import GenerationError
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Encode, Http, Json
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, FakeMesh


async def complete(client: Http, **change: object) -> Json:
    response = await client.post(COMPLETIONS, json=COMPLETION | change)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def test_chat_completion(client: Http, mesh: FakeMesh) -> None:
    """The whole object; the end of sequence counts as a token and gives no text."""
    answer = (await client.post(CHATS, json=CHAT)).json()
    prompt_tokens, output_tokens = len(mesh.spec.prompt_token_ids), len(mesh.reply)
    assert answer == {
        "id": answer["id"],
        "object": "chat.completion",
        "created": answer["created"],
        "model": CHAT["model"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello, world!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_cached_tokens_are_those_of_each_prompts_first_choice(client: Http, mesh: FakeMesh) -> None:
    """A prompt counts once, so what its other choices found cached, from the first one perhaps, does not count."""
    mesh.cached = {0: 16, 1: 32, 2: 48, 3: 64}
    answer = await complete(client, prompt=["Hi", "Ho"], n=2)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 16 + 48}


async def test_text_completion(client: Http) -> None:
    answer = await complete(client)
    assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
    choice = {"index": 0, "text": "Hello, world!", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert answer["choices"] == [choice]


async def test_length(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """`max_tokens` ends the text; usage is that number."""
    mesh.reply = encode("the quick brown fox jumps over the lazy dog")
    answer = await complete(client, max_tokens=2)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["text"] == "the quick"
    assert answer["usage"]["completion_tokens"] == 2


async def test_an_unfinished_character_at_the_length(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """An incomplete character at the length limit ends the text as a replacement character; held text is not lost."""
    mesh.reply = [*encode("the"), *encode("\U0001f9e0")[:2], 5]
    answer = await complete(client, max_tokens=len(mesh.reply) - 1, stop="x")
    assert answer["choices"][0]["text"] == "the\ufffd"


@pytest.mark.parametrize("batch_tokens", [1, 3, 100])
@pytest.mark.parametrize("include", [False, True])
async def test_stop_string(
    client: Http, mesh: FakeMesh, text: ChatText, encode: Encode, batch_tokens: int, include: bool
) -> None:
    """A stop string is found across token borders; tokens count up to its last one, and the sequence is stopped."""
    words = "stop strings span token borders"
    mesh.reply, mesh.batch_tokens = [*encode(words), *encode(" and more and more"), 2], batch_tokens
    stop = "ngs span to"
    answer = await complete(client, stop=["never", stop], include_stop_str_in_output=include, max_tokens=60)
    choice = answer["choices"][0]
    end = words.index(stop)
    assert choice["text"] == words[: end + len(stop) if include else end]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert mesh.text_ended == mesh.cancelled
    counted = answer["usage"]["completion_tokens"]
    assert stop not in text.decode(encode(words)[: counted - 1])
    assert stop in text.decode(encode(words)[:counted])
    assert not mesh.open
    if batch_tokens < 100:
        assert mesh.cancelled == [answer["id"]]


async def test_stop_strings_count_from_min_tokens_on(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """Before, the text may hold them."""
    mesh.reply = [*encode("a b a b a b"), 2]
    first = await complete(client, stop="b", max_tokens=50)
    assert first["choices"][0]["text"] == "a "
    mesh.specs.clear()
    later = await complete(client, stop="b", min_tokens=4, max_tokens=50)
    assert later["choices"][0]["text"].startswith("a b a ")
    assert later["usage"]["completion_tokens"] >= 4


async def test_stop_token_of_the_client(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """A stop token is counted and reported as the reason, but is no part of the text."""
    ids = encode("Hello, world!")
    answer = await complete(client, stop_token_ids=[ids[-1]])
    choice = answer["choices"][0]
    assert "Hello, world!".startswith(choice["text"]) and choice["text"] != "Hello, world!"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[-1])
    assert answer["usage"]["completion_tokens"] == len(ids)
    kept = await complete(client, stop_token_ids=[ids[-1]], include_stop_str_in_output=True)
    assert kept["choices"][0]["text"] == "Hello, world!"


async def test_special_tokens_can_be_shown(client: Http) -> None:
    """Without `skip_special_tokens` the end-of-sequence token still stops, and its text is shown on request only."""
    answer = await complete(client, skip_special_tokens=False, include_stop_str_in_output=True)
    assert answer["choices"][0]["text"] == "Hello, world!<|im_end|>"


async def test_choices(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """Every choice its own text and end; the prompt counts once, the outputs together."""
    mesh.replies = {0: [*encode("Hello"), 2], 1: [*encode("你好"), 2], 2: encode("the quick brown fox jumps over the")}
    response = await client.post(CHATS, json=CHAT | {"n": 3, "max_tokens": 6})
    answer = response.json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]][:2] == ["Hello", "你好"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop", "length"]
    assert answer["usage"]["completion_tokens"] == len(mesh.replies[0]) + len(mesh.replies[1]) + 6
    assert answer["usage"]["prompt_tokens"] == len(next(iter(mesh.specs.values())).prompt_token_ids)


async def test_one_failing_choice_fails_the_answer(client: Http, mesh: FakeMesh) -> None:
    """When one choice fails, the answer is an error and the other choices are cancelled."""
    mesh.fail_at, mesh.fail_index = 1, 1
    response = await client.post(COMPLETIONS, json=COMPLETION | {"n": 3})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "mesh_full")
    assert response.headers["retry-after"] == "2"
    assert not mesh.open
    assert len(mesh.cancelled) == 3


async def test_chat_logprobs(client: Http, mesh: FakeMesh) -> None:
    """One entry a counted token, with exact bytes and the requested number of alternatives."""
    body = CHAT | {"logprobs": True, "top_logprobs": 2}
    content = (await client.post(CHATS, json=body)).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == len(mesh.reply)
    assert "".join(entry["token"] for entry in content) == "Hello, world!<|im_end|>"
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]
    assert content[0]["logprob"] == -0.5
    assert [entry["logprob"] for entry in content[0]["top_logprobs"]] == [-1.0, -2.0]
    assert set(content[0]["top_logprobs"][0]) == {"token", "logprob", "bytes"}
    bare = (await client.post(CHATS, json=CHAT | {"logprobs": True})).json()
    assert bare["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_completion_logprobs(client: Http, mesh: FakeMesh) -> None:
    """Four parallel lists; the sampled token is always among the alternatives; offsets are the text's."""
    logprobs = (await complete(client, logprobs=1))["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "Hello, world!<|im_end|>"
    assert logprobs["token_logprobs"] == [-0.5] * len(mesh.reply)
    assert all(len(alternatives) == 2 for alternatives in logprobs["top_logprobs"])
    assert logprobs["top_logprobs"][0][logprobs["tokens"][0]] == -0.5
    offsets = logprobs["text_offset"]
    assert ["Hello, world!"[a:b] for a, b in pairwise(offsets)] == logprobs["tokens"][:-1]
    assert len((await complete(client, logprobs=0))["choices"][0]["logprobs"]["top_logprobs"][0]) == 1


@pytest.mark.parametrize("prompt", ["Hello", "by ids"])
async def test_echo(client: Http, encode: Encode, prompt: str) -> None:
    """The prompt begins the text, as it was sent or as its ids decode; usage does not change."""
    sent = prompt if prompt == "Hello" else [0, *encode("Hello")]
    answer = await complete(client, prompt=sent, echo=True)
    assert answer["choices"][0]["text"] == "HelloHello, world!"
    assert answer["usage"]["prompt_tokens"] == len(encode("Hello")) + 1


async def test_echo_with_logprobs_scores_the_prompt(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """The prompt's tokens come first; nothing predicts the very first one."""
    answer = await complete(client, prompt="Hello", echo=True, logprobs=1)
    logprobs = answer["choices"][0]["logprobs"]
    prompt_ids = mesh.spec.prompt_token_ids
    assert mesh.spec.sampling.prompt_logprobs == 1
    assert logprobs["tokens"][0] == "<s>"
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(prompt_ids) + len(mesh.reply)
    assert logprobs["text_offset"][: len(prompt_ids) + 1][-1] == len("Hello")
    assert logprobs["text_offset"][:2] == [0, 0]


async def test_scoring_generates_nothing(client: Http, mesh: FakeMesh) -> None:
    """`max_tokens` 0 with echo: the prompt's scores alone, no output token counted."""
    answer = await complete(client, prompt="Hello", echo=True, logprobs=0, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello", "length")
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == len(mesh.spec.prompt_token_ids)
    assert mesh.spec.stop.max_new_tokens == 1


async def test_token_ids_on_request(client: Http, mesh: FakeMesh) -> None:
    """vLLM's `return_token_ids` adds the ids of prompt and answer."""
    choice = (await complete(client, return_token_ids=True))["choices"][0]
    assert choice["token_ids"] == list(mesh.reply)
    assert choice["prompt_token_ids"] == list(mesh.spec.prompt_token_ids)
    mesh.specs.clear()
    chat = (await client.post(CHATS, json=CHAT | {"return_token_ids": True})).json()
    assert chat["choices"][0]["token_ids"] == list(mesh.reply)
    assert chat["prompt_token_ids"] == list(mesh.spec.prompt_token_ids)


async def test_impossible_alternatives_are_still_json(client: Http, mesh: FakeMesh) -> None:
    """A probability of zero has no logarithm; JSON has no infinity."""
    original = mesh.generate

    async def impossible(choice_id: str, spec: Any) -> Any:
        async for batch in original(choice_id, spec):
            tokens = tuple(
                token._replace(logprobs=token.logprobs and replace(token.logprobs, logprob=float("-inf")))
                for token in batch.tokens
            )
            yield replace(batch, tokens=tokens)

    mesh.generate = impossible  # type: ignore[method-assign]
    assert (await complete(client, logprobs=0))["choices"][0]["logprobs"]["token_logprobs"][0] == -9999.0
    body = CHAT | {"logprobs": True}
    chat = (await client.post(CHATS, json=body)).json()
    assert chat["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


async def test_a_sequence_that_the_mesh_gives_up_is_an_error(client: Http, mesh: FakeMesh) -> None:
    """A sequence that the mesh gives up becomes an error answer, not a truncated success."""
    mesh.fail_at, mesh.error = 3, GenerationError(500, "worker_lost", "Its worker is gone.")
    response = await client.post(COMPLETIONS, json=COMPLETION)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "worker_lost")
    assert "retry-after" not in response.headers
