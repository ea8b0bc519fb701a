"""What vLLM's clients may ask beside OpenAI's: scores and cuts of prompts, usage in every chunk, and tokens by their ids."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from spotwise.text import prompt_encoder
from spotwise.text.prompt_encoder import Truncation
from tests.unit.gateway.apps import Encode, Http, Json
from tests.unit.gateway.conftest import SENTENCES
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, CONTEXT_LENGTH, MODEL, FakeMesh
from tests.unit.gateway.test_http_streams import stream

ALTERNATIVES = {"300": (-1.0, 1), "301": (-2.0, 2)}


async def answered(client: Http, path: str, body: Json) -> Json:
    answer = await client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def require_scores(scores: list[Json | None], prompt_ids: tuple[int, ...]) -> None:
    """Of each token but the first: its own and two alternatives."""
    assert scores[0] is None
    assert len(scores) == len(prompt_ids)
    for token_id, at_token in zip(prompt_ids[1:], scores[1:], strict=True):
        assert at_token is not None
        found = {key: (score["logprob"], score["rank"]) for key, score in at_token.items()}
        assert found == {str(token_id): (-0.5, None), **ALTERNATIVES}


async def test_a_chat_has_them_once(client: Http, mesh: FakeMesh) -> None:
    """However many choices it has."""
    answer = await answered(client, "chat/completions", CHAT | {"prompt_logprobs": 2, "n": 2})
    require_scores(answer["prompt_logprobs"], mesh.specs[f"{answer['id']}#0"].prompt_token_ids)
    assert all("prompt_logprobs" not in choice and choice["logprobs"] is None for choice in answer["choices"])


async def test_a_completions_choices_have_those_of_their_prompts(client: Http, mesh: FakeMesh) -> None:
    body = COMPLETION | {"prompt": ["Hello", "the quick fox"], "prompt_logprobs": 2}
    answer = await answered(client, "completions", body)
    for choice in answer["choices"]:
        require_scores(choice["prompt_logprobs"], mesh.specs[f"{answer['id']}#{choice['index']}"].prompt_token_ids)


async def test_a_token_is_named_by_its_id_and_its_text(client: Http, encode: Encode) -> None:
    """The token itself comes first, with a rank where it is among the likeliest."""
    answer = await answered(client, "completions", COMPLETION | {"prompt": [0, 300], "prompt_logprobs": 1})
    (at_token,) = answer["choices"][0]["prompt_logprobs"][1:]
    assert at_token["300"]["rank"] == 1
    hello = encode("Hello")
    answer = await answered(client, "completions", COMPLETION | {"prompt": hello, "prompt_logprobs": 0})
    texts = [next(iter(at_token.values()))["decoded_token"] for at_token in answer["choices"][0]["prompt_logprobs"][1:]]
    assert "Hello".endswith("".join(texts))


@pytest.mark.parametrize(("alternatives", "of_prompt"), [(0, 2), (2, 0)])
async def test_an_echo_has_its_own_number_of_alternatives(
    client: Http, mesh: FakeMesh, alternatives: int, of_prompt: int
) -> None:
    """The mesh gives the larger number once."""
    options = {"echo": True, "logprobs": alternatives, "prompt_logprobs": of_prompt}
    (choice,) = (await answered(client, "completions", COMPLETION | options))["choices"]
    assert mesh.spec.sampling.prompt_logprobs == 2
    assert len(choice["logprobs"]["top_logprobs"][1]) == 1 + alternatives
    assert len(choice["prompt_logprobs"][1]) == 1 + of_prompt


async def test_without_them_an_answer_has_none(client: Http, mesh: FakeMesh) -> None:
    """Nor is the prompt scored."""
    answer = await answered(client, "chat/completions", CHAT)
    assert "prompt_logprobs" not in answer
    assert mesh.spec.sampling.prompt_logprobs is None


WORDS = " ".join(SENTENCES)
MESSAGES = [{"role": "user", "content": WORDS}]


async def read(client: Http, mesh: FakeMesh, path: str = "completions", **body: Any) -> tuple[int, ...]:
    """The tokens of the prompt that the model reads."""
    answer = await client.post(f"/v1/{path}", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return [*mesh.specs.values()][-1].prompt_token_ids


async def test_a_text_keeps_its_last_tokens_behind_the_special_ones(
    client: Http, mesh: FakeMesh, encode: Encode
) -> None:
    """Or its first; all of them where they are no more."""
    tokens = encode(WORDS)
    assert await read(client, mesh, prompt=WORDS, truncate_prompt_tokens=8) == (0, *tokens[-7:])
    options: Json = {"truncate_prompt_tokens": 8, "truncation_side": "right"}
    assert await read(client, mesh, prompt=WORDS, **options) == (0, *tokens[:7])
    assert await read(client, mesh, prompt=WORDS, truncate_prompt_tokens=CONTEXT_LENGTH, max_tokens=1) == (0, *tokens)
    assert await read(client, mesh, prompt=WORDS, truncate_prompt_tokens=1) == (0,)


async def test_tokens_are_cut_as_they_are(client: Http, mesh: FakeMesh) -> None:
    prompt = [*range(10, 30)]
    assert await read(client, mesh, prompt=prompt, truncate_prompt_tokens=3) == (27, 28, 29)
    assert await read(client, mesh, prompt=prompt, truncate_prompt_tokens=3, truncation_side="right") == (10, 11, 12)


async def test_a_chat_is_cut_as_it_is_rendered(client: Http, mesh: FakeMesh) -> None:
    whole = await read(client, mesh, "chat/completions", messages=MESSAGES, max_tokens=1)
    cut = await read(client, mesh, "chat/completions", messages=MESSAGES, truncate_prompt_tokens=9)
    assert cut == whole[-9:]


@pytest.mark.parametrize("max_tokens", [1, 30])
async def test_as_many_as_fit_leave_room_for_the_answer(client: Http, mesh: FakeMesh, max_tokens: int) -> None:
    """Of a prompt that would be refused otherwise."""
    options: Json = {"truncate_prompt_tokens": -1, "max_tokens": max_tokens}
    for prompt in (WORDS * 50, [7] * 5000):
        assert len(await read(client, mesh, prompt=prompt, **options)) == CONTEXT_LENGTH - max_tokens
    chat = [{"role": "user", "content": WORDS * 50}]
    assert len(await read(client, mesh, "chat/completions", messages=chat, **options)) == CONTEXT_LENGTH - max_tokens


async def test_an_echo_is_of_what_was_read(client: Http, encode: Encode) -> None:
    body = {"model": MODEL, "prompt": "the quick brown fox", "truncate_prompt_tokens": 3, "echo": True, "max_tokens": 0}
    answer = await client.post(COMPLETIONS, json=body)
    assert "the quick brown fox".endswith(answer.json()["choices"][0]["text"])
    assert answer.json()["usage"]["prompt_tokens"] == 3


@given(
    words=st.lists(st.sampled_from([*SENTENCES, "a", " ", "\n", "😀"]), max_size=60).map(" ".join),
    most_tokens=st.integers(1, 90),
    keeps_end=st.booleans(),
)
def test_of_a_long_text_only_a_part_is_tokenized(
    model_dir_tokenizer: Tokenizer, words: str, most_tokens: int, keeps_end: bool
) -> None:
    """And gives the tokens that all of it would."""
    cut = Truncation(most_tokens, keeps_end)
    whole = cut.of_ids(model_dir_tokenizer.encode(words, add_special_tokens=False).ids)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prompt_encoder, "_LEAST_CHARACTERS", 1)
        patched.setattr(prompt_encoder, "_CHARACTERS_A_TOKEN", 1)
        patched.setattr(prompt_encoder, "_BESIDE_THE_CUT", 16)
        assert cut.of_text(words, model_dir_tokenizer, add_special_tokens=False) == whole


USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BOTH = [(CHATS, CHAT), (COMPLETIONS, COMPLETION)]


@pytest.mark.parametrize(("path", "body"), BOTH)
@pytest.mark.parametrize("more", [{}, {"n": 2}, {"stop": ["wor"]}, {"logprobs": 1}, {"return_token_ids": True}])
async def test_each_chunk_has_the_usage_so_far(client: Http, path: str, body: Json, more: Json) -> None:
    """Of its own choice, growing; the last one, without a choice, counts all."""
    if path.endswith("chat/completions") and "logprobs" in more:
        more = {"logprobs": True}
    *chunks, last = await stream(client, path, body | USAGE | more)
    counted: dict[int, list[int]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        counted.setdefault(choice["index"], []).append(usage["completion_tokens"])
    assert all(counts == sorted(counts) for counts in counted.values())
    assert sum(counts[-1] for counts in counted.values()) == last["usage"]["completion_tokens"]
    assert last["choices"] == []


@pytest.mark.parametrize(("path", "body"), BOTH)
async def test_without_the_final_usage_there_is_none(client: Http, path: str, body: Json) -> None:
    """As vLLM has it."""
    chunks = await stream(client, path, body | {"stream_options": {"continuous_usage_stats": True}})
    assert not any("usage" in chunk for chunk in chunks)


async def test_log_probabilities_name_tokens_by_their_ids(client: Http, mesh: FakeMesh) -> None:
    """In completions and chats, whole and streamed, the alternatives included; the text stays text."""
    ids = [f"token_id:{token_id}" for token_id in mesh.reply]
    asked = {"return_tokens_as_token_ids": True}
    answer = (await client.post(COMPLETIONS, json=COMPLETION | asked | {"logprobs": 2})).json()
    (choice,) = answer["choices"]
    assert choice["logprobs"]["tokens"] == ids
    assert all(re.fullmatch(r"token_id:\d+", name) for top in choice["logprobs"]["top_logprobs"] for name in top)
    assert "Hello" in choice["text"]
    body = CHAT | asked | {"logprobs": True, "top_logprobs": 2}
    content = (await client.post(CHATS, json=body)).json()["choices"][0]["logprobs"]["content"]
    chunks = await stream(client, CHATS, body)
    streamed = [
        token
        for chunk in chunks
        for choice in chunk["choices"]
        for token in (choice["logprobs"] or {}).get("content", ())
    ]
    for tokens in (content, streamed):
        assert [token["token"] for token in tokens] == ids
        assert all(each["token"].startswith("token_id:3") for token in tokens for each in token["top_logprobs"])
    spelled = (await client.post(COMPLETIONS, json=COMPLETION | {"logprobs": 0})).json()["choices"][0]
    assert "token_id" not in str(spelled["logprobs"]["tokens"])
