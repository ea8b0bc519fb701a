"""The gateway's requests to the mesh, parameter by parameter, and what a request has that a client leaves out."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.api_options import SamplingDefaults, published_defaults
from spotwise.gateway.generate.sampling import CARRIED
from tests.unit.gateway.apps import Encode, Http, Json, MakeApp, connect
from tests.unit.gateway.fake_mesh import BOTH, CHAT, CHATS, COMPLETION, COMPLETIONS, CONTEXT_LENGTH, FakeMesh

EVERYTHING = {
    "max_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "seed": 7,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "stop_token_ids": [9, 5],
    "min_tokens": 3,
    "logit_bias": {"12": -100, "3": 5.5},
    "allowed_token_ids": [5, 4, 5],
}


def test_every_parameter_of_the_sampler_is_tried() -> None:
    """What reaches the sampler under the client's name is in the test below."""
    not_tried = set(CARRIED) - set(EVERYTHING)
    assert not not_tried, f"add {', '.join(sorted(not_tried))} to EVERYTHING, and to the test that reads it"


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHATS, CHAT | {"logprobs": True, "top_logprobs": 2}), (COMPLETIONS, COMPLETION | {"logprobs": 2})],
)
async def test_every_parameter_reaches_the_mesh(
    client: Http, mesh: FakeMesh, path: str, body: dict[str, object]
) -> None:
    assert (await client.post(path, json=body | EVERYTHING)).status_code == 200
    assert mesh.spec.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias=((3, 5.5), (12, -100.0)),
        allowed_token_ids=(4, 5),
        logprobs=2,
        prompt_logprobs=None,
    )
    assert mesh.spec.stop == StopCriteria(max_new_tokens=9, stop_token_ids=(2, 5, 9), min_new_tokens=3)


async def test_defaults(client: Http, mesh: FakeMesh) -> None:
    """OpenAI's defaults, and a chat may use all that the context leaves."""
    await client.post(CHATS, json=CHAT)
    seed = mesh.spec.sampling.seed
    assert mesh.spec.sampling == SamplingParams(seed=seed)
    left = CONTEXT_LENGTH - len(mesh.spec.prompt_token_ids)
    assert mesh.spec.stop == StopCriteria(max_new_tokens=left, stop_token_ids=(2,))
    mesh.specs.clear()
    await client.post(COMPLETIONS, json=COMPLETION)
    assert mesh.spec.stop.max_new_tokens == 16
    assert mesh.spec.sampling.seed != seed


@pytest.mark.parametrize("default", [20, 10_000])
async def test_default_max_tokens_of_the_server(make_app: MakeApp, mesh: FakeMesh, default: int) -> None:
    """The server may bound chats that name no bound; the context bounds them anyway."""
    async with connect(make_app(default_max_tokens=default)) as client:
        await client.post(CHATS, json=CHAT)
    assert mesh.spec.stop.max_new_tokens == min(default, CONTEXT_LENGTH - len(mesh.spec.prompt_token_ids))


@pytest.mark.parametrize(
    ("path", "given", "name", "value"),
    [
        (CHATS, {"max_tokens": 50, "max_completion_tokens": 5}, "stop.max_new_tokens", 5),
        (COMPLETIONS, {"ignore_eos": True, "stop_token_ids": [9]}, "stop.stop_token_ids", (9,)),
        *((COMPLETIONS, {"top_k": off}, "sampling.top_k", None) for off in (0, -1, None, 512, 2**33, 2**63)),
        *((COMPLETIONS, {"top_k": top_k}, "sampling.top_k", top_k) for top_k in (1, 511)),
        *((COMPLETIONS, {"temperature": t}, "sampling.is_greedy", True) for t in (-0.0, 5e-324, 1e-39, 9e-6)),
        *((COMPLETIONS, {"repetition_penalty": p}, "sampling.repetition_penalty", p) for p in (0.01, 10)),
    ],
)
async def test_what_a_value_means(client: Http, mesh: FakeMesh, path: str, given: Json, name: str, value: Any) -> None:
    """The newer name goes first, and the client's stop tokens stop where the model's end does not. vLLM's values for no limit,
    and limits beyond the vocabulary, are none; almost no temperature is greedy, and penalties stay where logits are finite.
    """
    assert (await client.post(path, json=BOTH[path] | given)).status_code == 200
    assert attrgetter(name)(mesh.spec) == value


async def test_choices_have_ids_and_seeds_of_their_own(client: Http, mesh: FakeMesh) -> None:
    """API_ID#i, and the client's seed plus the index; across prompts the index restarts."""
    body = COMPLETION | {"prompt": ["Hi", "you"], "n": 2, "best_of": 2, "seed": 2**63 - 1}
    response = await client.post(COMPLETIONS, json=body)
    request_id = response.json()["id"]
    assert response.headers["x-request-id"] == request_id
    assert list(mesh.specs) == [f"{request_id}#{index}" for index in range(4)]
    assert [spec.sampling.seed for spec in mesh.specs.values()] == [2**63 - 1, 0, 2**63 - 1, 0]


async def test_choices_without_a_seed_differ(client: Http, mesh: FakeMesh) -> None:
    await client.post(COMPLETIONS, json=COMPLETION | {"n": 4})
    assert len({spec.sampling.seed for spec in mesh.specs.values()}) == 4


async def test_a_single_sequence_has_the_answers_id(client: Http, mesh: FakeMesh) -> None:
    """The ledger of a request with one sequence is found by the id that the client saw."""
    response = await client.post(CHATS, json=CHAT)
    assert list(mesh.specs) == [response.json()["id"]] == [response.headers["x-request-id"]]
    assert response.json()["id"].startswith("chatcmpl-")


async def test_chat_prompt_is_the_rendered_template(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """All roles; text parts are joined by lines."""
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "", "tool_calls": [], "function_call": None},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    assert (await client.post(CHATS, json=CHAT | {"messages": messages})).status_code == 200
    assert mesh.spec.prompt_token_ids == tuple(
        encode(
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
        )
    )


@pytest.mark.parametrize(
    ("prompt", "want"),
    [("Hi", [[0, "Hi"]]), (["Hi", "you"], [[0, "Hi"], [0, "you"]]), ([5, 6], [[5, 6]]), ([[5, 6], [7]], [[5, 6], [7]])],
)
async def test_every_form_of_prompt(
    client: Http, mesh: FakeMesh, encode: Encode, prompt: object, want: list[list[int | str]]
) -> None:
    """Strings get the tokenizer's special tokens; token ids are taken as they are; each prompt counts once."""
    response = await client.post(COMPLETIONS, json=COMPLETION | {"prompt": prompt, "n": 2})
    expected = [
        tuple(token_id for part in parts for token_id in ([part] if isinstance(part, int) else encode(part)))
        for parts in want
    ]
    assert [spec.prompt_token_ids for spec in mesh.specs.values()] == [ids for ids in expected for _ in range(2)]
    assert response.json()["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert len(response.json()["choices"]) == 2 * len(expected)


async def test_bad_words_are_tokenized_with_and_without_a_blank(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """Each once; blanks before a word make no difference."""
    body = COMPLETION | {"bad_words": ["Hello", "  Hello", "you two"]}
    assert (await client.post(COMPLETIONS, json=body)).status_code == 200
    words = ["Hello", " Hello", "you two", " you two"]
    assert mesh.spec.sampling.bad_words == tuple(tuple(encode(word)) for word in words)


PUBLISHED: Json = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
DEFAULTS = SamplingDefaults(**PUBLISHED)
OPENAIS = {"temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": 0.0, "repetition_penalty": 1.0}


def written(folder: Path, published: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(published))
    return folder


async def sampled(make_app: MakeApp, mesh: FakeMesh, given: Json, **options: Any) -> Json:
    """What a request with these parameters is sampled with."""
    async with connect(make_app(**options)) as client:
        for path, body in BOTH.items():
            answer = await client.post(path, json=body | given)
            assert answer.status_code == 200, answer.text
    chat, completion = ({name: getattr(spec.sampling, name) for name in PUBLISHED} for spec in mesh.specs.values())
    assert chat == completion
    return chat


async def test_a_request_has_what_it_gives_and_else_the_models(make_app: MakeApp, mesh: FakeMesh) -> None:
    given = {"temperature": None, "top_k": 5}
    assert await sampled(make_app, mesh, given, sampling=DEFAULTS) == {**PUBLISHED, "top_k": 5}


async def test_a_request_can_switch_every_one_off(make_app: MakeApp, mesh: FakeMesh) -> None:
    given = OPENAIS | {"top_k": 0}
    assert await sampled(make_app, mesh, given, sampling=DEFAULTS) == OPENAIS


async def test_by_itself_the_model_has_none(make_app: MakeApp, mesh: FakeMesh) -> None:
    """A client of OpenAI's knows its defaults."""
    assert await sampled(make_app, mesh, {}) == OPENAIS


def test_what_a_model_publishes_is_read(tmp_path: Path) -> None:
    """Of the file, only these; what is missing or null is OpenAI's."""
    published = {"do_sample": True, "eos_token_id": [2], "max_new_tokens": 9, **PUBLISHED, "min_p": None}
    assert published_defaults(written(tmp_path, published)) == SamplingDefaults(**PUBLISHED | {"min_p": 0.0})
    assert published_defaults(tmp_path / "elsewhere") == SamplingDefaults()


@pytest.mark.parametrize(
    ("published", "named"), [({"temperature": 3.0}, "temperature"), ({"top_k": "many"}, "top_k"), ([], "object")]
)
def test_what_no_request_could_give_is_an_error(tmp_path: Path, published: object, named: str) -> None:
    """Which names the file and the value, before a gateway starts with it."""
    with pytest.raises(ValueError, match=named) as raised:
        published_defaults(written(tmp_path, published))
    assert "generation_config.json" in str(raised.value)
