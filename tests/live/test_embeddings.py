"""Embeddings by the real `openai` client, of a mesh that also generates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from spotwise.core.requests.sampling import Pooling
from tests.adapters import merged
from tests.live.embeddings import expected, require_embeddings, require_near
from tests.live.mesh import MODEL, LiveMesh
from tests.live.oracle import greedy, hidden_states, mixed_prompts, model, tokenizer

TEXTS = ["What is the capital of France?", "Paris is the capital of France.", "The books and the bread arrive."]


def test_texts_have_the_oracles_embeddings(mesh: LiveMesh) -> None:
    """In base64, which the client asks for, and as numbers; of as many tokens as the tokenizer makes of them."""
    tokens: list[tuple[int, ...]] = [tuple(ids) for ids in tokenizer()(TEXTS)["input_ids"]]
    for options in ({}, {"encoding_format": "float"}):
        create: Any = mesh.client().embeddings.create
        answer = create(model=MODEL, input=TEXTS, **options)
        require_embeddings(answer, tokens, Pooling.MEAN)
    question, answered, other = (expected(ids, Pooling.MEAN) for ids in tokens)
    assert float(question @ answered) > float(question @ other)  # else any vectors would do


def test_prompts_of_all_lengths_beside_running_answers(mesh: LiveMesh) -> None:
    """Computed before or not, together with decodes, which have the oracle's tokens all the same."""
    prompts = mixed_prompts(8, 700)

    async def all_of_them() -> list[Any]:
        async with mesh.async_client() as client:
            options: Any = {"temperature": 0, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
            answers = [
                client.completions.create(model=MODEL, prompt=[*prompt], max_tokens=24, **options)
                for prompt in prompts[:2]
            ]
            ids = [[*prompt] for prompt in prompts]
            embeddings = [client.embeddings.create(model=MODEL, input=part) for part in (ids[:4], ids[4:], ids)]
            return await asyncio.gather(*answers, *embeddings)

    *answers, begun, others, again = asyncio.run(all_of_them())
    for prompt, answer in zip(prompts, answers, strict=False):
        assert tuple(answer.choices[0].token_ids) == greedy(prompt, 24)
    for answer, of in ((begun, prompts[:4]), (others, prompts[4:]), (again, prompts)):
        require_embeddings(answer, of, Pooling.MEAN)
    mesh.wait_until_idle()


def test_an_adapters_embeddings_are_its_own(mesh: LiveMesh, adapters: dict[str, Path]) -> None:
    """Those of the model with the adapter merged; the answer names the adapter."""
    name, folder = next(iter(adapters.items()))
    tokens: list[tuple[int, ...]] = [tuple(ids) for ids in tokenizer()(TEXTS)["input_ids"]]
    of_model = mesh.client().embeddings.create(model=MODEL, input=TEXTS[0]).data[0].embedding
    answer = mesh.client().embeddings.create(model=name, input=TEXTS)
    assert answer.model == name
    assert float((torch.tensor(answer.data[0].embedding) - torch.tensor(of_model)).norm()) > 0.01
    with merged(model(), folder):
        for each, ids in zip(answer.data, tokens, strict=True):
            mean = hidden_states.__wrapped__(ids).mean(0)  # the kept ones are the model's own
            require_near(each.embedding, torch.nn.functional.normalize(mean, dim=0))


def test_a_wrong_request_is_the_clients_own_exception(mesh: LiveMesh) -> None:
    """With the parameter at fault; the default model is no matryoshka model."""
    with pytest.raises(openai.BadRequestError) as wrong:
        mesh.client().embeddings.create(model=MODEL, input="Hello", dimensions=64)
    assert (wrong.value.code, wrong.value.param) == ("unsupported_parameter", "dimensions")
    with pytest.raises(openai.BadRequestError) as long:
        mesh.client().embeddings.create(model=MODEL, input="word " * 9000)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
    cut = mesh.client().embeddings.create(
        model=MODEL, input="word " * 9000, extra_body={"truncate_prompt_tokens": 700, "truncation_side": "left"}
    )
    tokens = tuple(tokenizer()("word " * 9000)["input_ids"][-700:])
    require_near(cut.data[0].embedding, expected(tokens, Pooling.MEAN))
    mesh.wait_until_idle()
