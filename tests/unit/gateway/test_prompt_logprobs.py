"""`prompt_logprobs`: the scores of a prompt's tokens, as vLLM gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, FakeMesh

ALTERNATIVES = {"300": (-1.0, 1), "301": (-2.0, 2)}


async def answered(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def require_scores(scores: list[dict[str, Any] | None], prompt_ids: tuple[int, ...]) -> None:
    """Of each token but the first: its own and two alternatives."""
    assert scores[0] is None
    assert len(scores) == len(prompt_ids)
    for token_id, at_token in zip(prompt_ids[1:], scores[1:], strict=True):
        assert at_token is not None
        found = {key: (score["logprob"], score["rank"]) for key, score in at_token.items()}
        assert found == {str(token_id): (-0.5, None), **ALTERNATIVES}


async def test_a_chat_has_them_once(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """However many choices it has."""
    answer = await answered(client, "chat/completions", CHAT | {"prompt_logprobs": 2, "n": 2})
    require_scores(answer["prompt_logprobs"], mesh.specs[f"{answer['id']}#0"].prompt_token_ids)
    assert all("prompt_logprobs" not in choice and choice["logprobs"] is None for choice in answer["choices"])


async def test_a_completions_choices_have_those_of_their_prompts(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """Which may differ."""
    body = COMPLETION | {"prompt": ["Hello", "the quick fox"], "prompt_logprobs": 2}
    answer = await answered(client, "completions", body)
    for choice in answer["choices"]:
        require_scores(choice["prompt_logprobs"], mesh.specs[f"{answer['id']}#{choice['index']}"].prompt_token_ids)


async def test_a_token_is_named_by_its_id_and_its_text(
    client: httpx.AsyncClient, encode: Callable[[str], list[int]]
) -> None:
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
    client: httpx.AsyncClient, mesh: FakeMesh, alternatives: int, of_prompt: int
) -> None:
    """The mesh gives the larger number once."""
    options = {"echo": True, "logprobs": alternatives, "prompt_logprobs": of_prompt}
    (choice,) = (await answered(client, "completions", COMPLETION | options))["choices"]
    assert mesh.spec.sampling.prompt_logprobs == 2
    assert len(choice["logprobs"]["top_logprobs"][1]) == 1 + alternatives
    assert len(choice["prompt_logprobs"][1]) == 1 + of_prompt


async def test_without_them_an_answer_has_none(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """Nor is the prompt scored."""
    answer = await answered(client, "chat/completions", CHAT)
    assert "prompt_logprobs" not in answer
    assert mesh.spec.sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    "options", [{"prompt_logprobs": 21}, {"prompt_logprobs": -1}, {"prompt_logprobs": 1, "stream": True}]
)
async def test_what_is_not_given_is_refused(client: httpx.AsyncClient, options: dict[str, Any]) -> None:
    for path, body in (("chat/completions", CHAT), ("completions", COMPLETION)):
        answer = await client.post(f"/v1/{path}", json=body | options)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")
