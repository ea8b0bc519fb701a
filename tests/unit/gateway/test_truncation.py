"""`truncate_prompt_tokens`: a longer prompt loses its beginning, or its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from spotwise.text import prompt_encoder
from spotwise.text.prompt_encoder import Truncation
from tests.unit.gateway.conftest import SENTENCES
from tests.unit.gateway.fake_mesh import CONTEXT_LENGTH, MODEL, FakeMesh

WORDS = " ".join(SENTENCES)
CHAT = [{"role": "user", "content": WORDS}]


async def read(client: httpx.AsyncClient, mesh: FakeMesh, path: str = "completions", **body: Any) -> tuple[int, ...]:
    """The tokens of the prompt that the model reads."""
    answer = await client.post(f"/v1/{path}", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return [*mesh.specs.values()][-1].prompt_token_ids


async def test_a_text_keeps_its_last_tokens_behind_the_special_ones(
    client: httpx.AsyncClient, mesh: FakeMesh, encode: Callable[[str], list[int]]
) -> None:
    """Or its first; all of them where they are no more."""
    tokens = encode(WORDS)
    assert await read(client, mesh, prompt=WORDS, truncate_prompt_tokens=8) == (0, *tokens[-7:])
    options: dict[str, Any] = {"truncate_prompt_tokens": 8, "truncation_side": "right"}
    assert await read(client, mesh, prompt=WORDS, **options) == (0, *tokens[:7])
    assert await read(client, mesh, prompt=WORDS, truncate_prompt_tokens=CONTEXT_LENGTH, max_tokens=1) == (0, *tokens)
    assert await read(client, mesh, prompt=WORDS, truncate_prompt_tokens=1) == (0,)


async def test_tokens_are_cut_as_they_are(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    prompt = [*range(10, 30)]
    assert await read(client, mesh, prompt=prompt, truncate_prompt_tokens=3) == (27, 28, 29)
    assert await read(client, mesh, prompt=prompt, truncate_prompt_tokens=3, truncation_side="right") == (10, 11, 12)


async def test_a_chat_is_cut_as_it_is_rendered(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    whole = await read(client, mesh, "chat/completions", messages=CHAT, max_tokens=1)
    cut = await read(client, mesh, "chat/completions", messages=CHAT, truncate_prompt_tokens=9)
    assert cut == whole[-9:]


@pytest.mark.parametrize("max_tokens", [1, 30])
async def test_as_many_as_fit_leave_room_for_the_answer(
    client: httpx.AsyncClient, mesh: FakeMesh, max_tokens: int
) -> None:
    """Of a prompt that would be refused otherwise."""
    options: dict[str, Any] = {"truncate_prompt_tokens": -1, "max_tokens": max_tokens}
    for prompt in (WORDS * 50, [7] * 5000):
        assert len(await read(client, mesh, prompt=prompt, **options)) == CONTEXT_LENGTH - max_tokens
    chat = [{"role": "user", "content": WORDS * 50}]
    assert len(await read(client, mesh, "chat/completions", messages=chat, **options)) == CONTEXT_LENGTH - max_tokens


async def test_an_echo_is_of_what_was_read(client: httpx.AsyncClient, encode: Callable[[str], list[int]]) -> None:
    """Not of what was sent."""
    body = {"model": MODEL, "prompt": "the quick brown fox", "truncate_prompt_tokens": 3, "echo": True, "max_tokens": 0}
    answer = await client.post("/v1/completions", json=body)
    assert "the quick brown fox".endswith(answer.json()["choices"][0]["text"])
    assert answer.json()["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("given_values", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": CONTEXT_LENGTH + 1}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "middle"}, "truncation_side"),
        ({"truncate_prompt_tokens": CONTEXT_LENGTH, "prompt": WORDS * 50}, "prompt"),
    ],
)
async def test_what_makes_no_prompt_is_refused(
    client: httpx.AsyncClient, given_values: dict[str, Any], param: str
) -> None:
    """With the parameter at fault; a prompt that fills the context leaves no room for an answer."""
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": "hi", **given_values})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


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
