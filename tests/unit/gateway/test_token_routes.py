"""`/tokenize` and `/detokenize`: the tokens that the model would read."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from spotwise.gateway.access.auth import ApiKey
from tests.unit.gateway.apps import Http, Json, MakeApp, connect
from tests.unit.gateway.fake_mesh import CHATS, CONTEXT_LENGTH, MODEL, FakeMesh

CHAT = [{"role": "user", "content": "Hello, world!"}]


async def posted(client: Http, path: str, **body: Any) -> Json:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("words", ["Hello, world!", "你好 😀", "", " "])
async def test_a_prompts_tokens_are_the_tokenizers(client: Http, model_dir_tokenizer: Tokenizer, words: str) -> None:
    """With its special tokens or without, spelled as in the vocabulary where that is wanted; their text is the prompt again."""
    for special in (True, False):
        expected = model_dir_tokenizer.encode(words, add_special_tokens=special)
        answer = await posted(client, "/tokenize", model=MODEL, prompt=words, add_special_tokens=special)
        assert answer == {
            "count": len(expected.ids),
            "max_model_len": CONTEXT_LENGTH,
            "tokens": expected.ids,
            "token_strs": None,
        }
    spelled = await posted(client, "/tokenize", prompt=words, return_token_strs=True)
    assert spelled["token_strs"] == model_dir_tokenizer.encode(words).tokens
    assert await posted(client, "/detokenize", tokens=answer["tokens"]) == {"prompt": words}
    assert (await posted(client, "/detokenize", tokens=spelled["tokens"]))["prompt"] == f"<s>{words}"


async def test_a_chats_tokens_are_those_that_it_is_answered_with(client: Http, mesh: FakeMesh) -> None:
    """However its template ends; the template writes its own special tokens, unless the tokenizer's are asked for."""
    for options in ({}, {"add_generation_prompt": False}, {"continue_final_message": True}):
        answer = await posted(client, "/tokenize", messages=CHAT, **options)
        await posted(client, CHATS, model=MODEL, messages=CHAT, **options)
        assert tuple(answer["tokens"]) == [*mesh.specs.values()][-1].prompt_token_ids
    special = await posted(client, "/tokenize", messages=CHAT, add_special_tokens=True, continue_final_message=True)
    assert special["tokens"] == [0, *answer["tokens"]]


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/tokenize", {}, "prompt", "missing_required_parameter"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, "messages", "invalid_value"),
        ("/tokenize", {"prompt": ["a"]}, "prompt", "invalid_type"),
        ("/tokenize", {"prompt": "a" * 100_000}, "prompt", "context_length_exceeded"),
        ("/tokenize", {"messages": []}, "messages", "invalid_value"),
        ("/tokenize", {"messages": CHAT, "tools": [{}]}, "tools.0.type", "missing_required_parameter"),
        ("/tokenize", {"messages": CHAT, "chat_template": "{{ 1 }}"}, "chat_template", "unsupported_parameter"),
        ("/detokenize", {}, "tokens", "missing_required_parameter"),
        ("/detokenize", {"tokens": [512]}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0", "invalid_value"),
    ],
)
async def test_a_wrong_body_is_refused(client: Http, path: str, body: Json, param: str, code: str) -> None:
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_they_are_the_served_models_and_its_clients(make_app: MakeApp, path: str) -> None:
    """Another model is a 404, and with keys they need one."""
    app = make_app([ApiKey("secret")])
    async with connect(app) as client:
        body = {"model": "another", "prompt": "a", "tokens": [1]}
        assert (await client.post(path, json=body)).status_code == 401
        answer = await client.post(path, json=body, headers={"Authorization": "Bearer secret"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
