"""`POST /v1/embeddings`, over a mesh in memory."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import Pooling, SamplingParams
from spotwise.gateway.apis.embedding_answer import AT_ONCE, finished
from spotwise.gateway.generate.embedding_model import EmbeddingModel
from spotwise.gateway.schema.embeddings import MAX_INPUTS
from spotwise.http.errors import GenerationError
from tests.unit.gateway.apps import Http, Json, MakeApp, connect, metric, openai_of
from tests.unit.gateway.fake_mesh import CONTEXT_LENGTH, EMBEDDING, EMBEDDINGS, MODEL, FakeMesh, embedding_of
from tests.unit.gateway.keeping_mesh import Client

PATH = "/v1/embeddings"


@pytest.fixture
async def client(make_app: MakeApp) -> AsyncIterator[Http]:
    async with connect(make_app(embeddings=EMBEDDINGS)) as opened:
        yield opened


async def embedded(client: Http, **body: Any) -> Json:
    answer = await client.post(PATH, json=EMBEDDING | body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def refused(client: Http, **body: Any) -> tuple[int, str | None, str]:
    answer = await client.post(PATH, json=EMBEDDING | body)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


def unit(embedding: tuple[float, ...]) -> Any:
    return pytest.approx(np.array(embedding) / np.linalg.norm(embedding), rel=1e-6)


async def test_each_input_has_its_embedding(client: Http, mesh: FakeMesh) -> None:
    """In order, whatever kind of input; the mesh computes a prompt and one token, which costs the client nothing."""
    for inputs in ("Hello", ["Hello", "the quick fox"], [1, 2, 3], [[1, 2], [3], [4, 5, 6]]):
        mesh.specs.clear()
        answer = await client.post(PATH, json=EMBEDDING | {"input": inputs})
        body = answer.json()
        prompts = [spec.prompt_token_ids for spec in mesh.specs.values()]
        assert [each["embedding"] for each in body["data"]] == [unit(embedding_of(prompt)) for prompt in prompts]
        assert [each["index"] for each in body["data"]] == list(range(len(prompts)))
        tokens = sum(map(len, prompts))
        assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert (body["object"], body["model"], body["id"]) == ("list", MODEL, answer.headers["x-request-id"])
        for spec in mesh.specs.values():
            assert (spec.sampling, spec.stop) == (SamplingParams(0.0, pooling=Pooling.LAST), StopCriteria(1))
    assert [list(prompt) for prompt in prompts] == [[1, 2], [3], [4, 5, 6]]
    assert not mesh.open and not mesh.cancelled


async def test_special_tokens_are_the_tokenizers(client: Http, mesh: FakeMesh, model_dir_tokenizer: Tokenizer) -> None:
    """Unless the request leaves them out; lists of token ids are taken as they are."""
    for special in (True, False):
        mesh.specs.clear()
        await embedded(client, input="Hello, world!", add_special_tokens=special)
        expected = model_dir_tokenizer.encode("Hello, world!", add_special_tokens=special).ids
        assert list(mesh.spec.prompt_token_ids) == expected


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, [10, 11, 12]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [10, 11, 12]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, [17, 18, 19]),
        ({"truncate_prompt_tokens": -1}, list(range(10, 20))),
    ],
)
async def test_inputs_are_cut(client: Http, mesh: FakeMesh, options: Json, kept: list[int]) -> None:
    await embedded(client, input=list(range(10, 20)), **options)
    assert list(mesh.spec.prompt_token_ids) == kept


@pytest.mark.parametrize(("longest", "max_tokens"), [(CONTEXT_LENGTH, None), (7, 7), (CONTEXT_LENGTH, 10_000)])
async def test_an_input_may_fill_the_context(
    make_app: MakeApp, mesh: FakeMesh, longest: int, max_tokens: int | None
) -> None:
    """Or what the model was trained for, where that is less; a longer one is refused, or cut to that."""
    async with connect(make_app(embeddings=EmbeddingModel(Pooling.MEAN, max_tokens=max_tokens))) as client:
        assert (await embedded(client, input=[5] * longest))["usage"]["prompt_tokens"] == longest
        too_long = (400, "input", "context_length_exceeded")
        assert await refused(client, input=[5] * (longest + 1)) == too_long
        assert await refused(client, input="Hello " * (longest + 1)) == too_long
        mesh.specs.clear()
        await embedded(client, input="Hello " * (longest + 1), truncate_prompt_tokens=-1)
        assert len(mesh.spec.prompt_token_ids) == longest
        assert await refused(client, truncate_prompt_tokens=longest + 1) == (
            400,
            "truncate_prompt_tokens",
            "invalid_value",
        )


async def test_numbers_come_as_json_or_in_base64(client: Http) -> None:
    """Little-endian float32."""
    (as_numbers,) = (await embedded(client))["data"]
    (as_bytes,) = (await embedded(client, encoding_format="base64"))["data"]
    decoded = np.frombuffer(base64.b64decode(as_bytes["embedding"]), "<f4")
    assert [float(np.float32(number)) for number in as_numbers["embedding"]] == decoded.tolist()


async def test_dimensions_are_the_first_ones(client: Http) -> None:
    """Of the length 1 again, where embeddings have that."""
    whole = embedding_of([3, 4])
    for dimensions in (1, 3, 4):
        (found,) = (await embedded(client, input=[3, 4], dimensions=dimensions))["data"]
        assert found["embedding"] == unit(whole[:dimensions])
    (found,) = (await embedded(client, input=[3, 4], dimensions=2, normalize=False))["data"]
    assert found["embedding"] == pytest.approx(whole[:2], rel=1e-6)
    assert await refused(client, dimensions=5) == (400, "dimensions", "invalid_value")


@pytest.mark.parametrize(
    ("model", "given", "withheld", "code"),
    [
        (EmbeddingModel(Pooling.LAST, size=4), 4, 2, "unsupported_parameter"),
        (EmbeddingModel(Pooling.LAST, size=4, is_matryoshka=True, sizes=(2, 4)), 2, 3, "invalid_value"),
        (EmbeddingModel(Pooling.LAST, is_matryoshka=True), None, 2, "invalid_value"),
    ],
)
async def test_dimensions_are_those_that_the_model_has(
    make_app: MakeApp, model: EmbeddingModel, given: int | None, withheld: int, code: str
) -> None:
    """All of them always; fewer where the first ones were trained to be embeddings, too."""
    async with connect(make_app(embeddings=model)) as client:
        assert await refused(client, dimensions=withheld) == (400, "dimensions", code)
        (found,) = (await embedded(client, dimensions=given))["data"]
        assert len(found["embedding"]) == (given or 4)


async def test_lengths_are_the_models_unless_the_request_says(make_app: MakeApp) -> None:
    async with connect(make_app(embeddings=EmbeddingModel(Pooling.LAST, normalizes=False))) as client:
        (found,) = (await embedded(client, input=[3, 4]))["data"]
        assert found["embedding"] == pytest.approx(embedding_of([3, 4]), rel=1e-6)
        (found,) = (await embedded(client, input=[3, 4], normalize=True))["data"]
        assert found["embedding"] == unit(embedding_of([3, 4]))


def test_an_embedding_of_no_length_stays() -> None:
    """And one that is no number is an error, not a null in the answer."""
    assert finished(np.zeros(3, np.float32), None, normalizes=True).tolist() == [0, 0, 0]
    with pytest.raises(GenerationError, match="not finite"):
        finished(np.array([1, np.inf], np.float32), None, normalizes=True)


async def test_a_model_without_embeddings_says_how_it_gets_some(make_app: MakeApp) -> None:
    """And why it has none."""
    async with connect(make_app()) as client:
        answer = await client.post(PATH, json=EMBEDDING)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "model", "no_embeddings")
        assert "does not say how" in error["message"] and "SPOTWISE_EMBEDDING_POOLING=last" in error["message"]
        assert await refused(client, model="another") == (404, "model", "model_not_found")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input.1", "invalid_value"),
        ({"input": ["a", [1]]}, "input", "invalid_type"),
        ({"input": {"a": 1}}, "input", "invalid_type"),
        ({"input": [1, -1]}, "input", "invalid_value"),
        ({"input": [[1], [512]]}, "input.1", "invalid_value"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", "invalid_value"),
        ({"encoding_format": "bytes"}, "encoding_format", "invalid_value"),
        ({"dimensions": 0}, "dimensions", "invalid_value"),
        ({"dimensions": "2"}, "dimensions", "invalid_type"),
        ({"normalize": 1}, "normalize", "invalid_type"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages", "unsupported_parameter"),
        ({"embed_dtype": "float16"}, "embed_dtype", "unsupported_parameter"),
        ({"endianness": "big"}, "endianness", "unsupported_parameter"),
        ({"use_activation": False}, "use_activation", "unsupported_parameter"),
        ({"priority": 2**31}, "priority", "invalid_value"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
    ],
)
async def test_a_wrong_body_is_refused(client: Http, mesh: FakeMesh, body: Json, param: str, code: str) -> None:
    assert await refused(client, **body) == (400, param, code)
    assert not mesh.specs


async def test_many_inputs_leave_room_for_others(client: Http, mesh: FakeMesh) -> None:
    """A few are in the mesh at a time; all are answered, in order."""

    class Peak(set[str]):
        most = 0

        def add(self, choice_id: str) -> None:
            super().add(choice_id)
            self.most = max(self.most, len(self))

    mesh.open = opened = Peak()
    answer = await embedded(client, input=[[index % 500, 1] for index in range(MAX_INPUTS)], normalize=False)
    assert [each["embedding"][1] for each in answer["data"]] == [index % 500 for index in range(MAX_INPUTS)]
    assert 1 < opened.most <= AT_ONCE


async def test_an_error_of_one_input_ends_the_others(client: Http, mesh: FakeMesh) -> None:
    mesh.fail_at, mesh.fail_index = 0, 1
    answer = await client.post(PATH, json=EMBEDDING | {"input": ["a"] * 100})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "mesh_full")
    assert answer.headers["retry-after"] == "2"
    assert not mesh.open and len(mesh.specs) < 100


async def test_a_client_that_leaves_ends_its_work(make_app: MakeApp, mesh: FakeMesh) -> None:
    """In the mesh, too."""
    mesh.hang_at = 0
    client = Client(make_app(embeddings=EMBEDDINGS), "POST", PATH, EMBEDDING | {"input": ["a", "b"]})
    for _ in range(2):
        await asyncio.wait_for(mesh.hung.get(), 10)
    await client.leave()
    assert not client.chunks
    assert not mesh.open and len(mesh.cancelled) == 2


async def test_names_and_deadline_go_with_each_input(client: Http, mesh: FakeMesh) -> None:
    headers = {"x-request-id": "mine", "x-request-timeout": "30"}
    body = {"input": ["a", "b"], "user": "bob", "priority": 3, "cache_salt": "s"}
    answer = await client.post(PATH, json=EMBEDDING | body, headers=headers)
    assert answer.headers["x-request-id"] == "mine"
    for spec in mesh.specs.values():
        assert (spec.client_request_id, spec.tenant, spec.priority) == ("mine", "user:bob", 3)
        assert spec.deadline_unix_s is not None and spec.prefix_salt
    assert (await client.post(PATH, json=EMBEDDING, headers={"x-request-timeout": "0"})).status_code == 400


async def test_they_are_counted(client: Http, registry: CollectorRegistry) -> None:
    """Prompts and their times, but no output."""
    tokens = (await embedded(client, input=["Hello", "the fox"]))["usage"]["prompt_tokens"]
    value = partial(metric, registry)
    assert value("vllm:prompt_tokens_total") == tokens
    assert value("vllm:generation_tokens_total") == 0
    assert value("vllm:request_success_total", finished_reason="length") == 2
    assert value("vllm:time_to_first_token_seconds_count") == 2
    assert value("vllm:num_requests_running") == value("vllm:num_requests_waiting") == 0


async def test_openais_client_reads_them(make_app: MakeApp) -> None:
    """OpenAI's client asks for base64 by itself, and gives numbers; of either format it gives the same."""
    async with openai_of(make_app(embeddings=EMBEDDINGS)) as api:
        answer = await api.embeddings.create(**EMBEDDING | {"input": [[1, 2], [7]]}, extra_body={"normalize": False})
        assert [(each.index, each.embedding) for each in answer.data] == [
            (index, pytest.approx(embedding_of(ids), rel=1e-6)) for index, ids in enumerate(([1, 2], [7]))
        ]
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)
        assert (answer.model, answer.object) == (MODEL, "list")
        as_base64 = await api.embeddings.create(**EMBEDDING, dimensions=3)
        as_numbers = await api.embeddings.create(**EMBEDDING, dimensions=3, encoding_format="float")
        assert as_base64.data[0].embedding == pytest.approx(as_numbers.data[0].embedding, rel=1e-6)
        assert math.hypot(*as_numbers.data[0].embedding) == pytest.approx(1, rel=1e-6)
