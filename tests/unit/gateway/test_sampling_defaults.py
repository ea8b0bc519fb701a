"""Sampling parameters that a request does not have: OpenAI's, or those of the model's `generation_config.json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from spotwise.gateway.generate.api_options import SamplingDefaults, published_defaults
from tests.unit.gateway.fake_mesh import MODEL, FakeMesh

PUBLISHED: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
DEFAULTS = SamplingDefaults(**PUBLISHED)
OPENAIS = {"temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": 0.0, "repetition_penalty": 1.0}


def written(folder: Path, published: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(published))
    return folder


async def sampled(
    make_app: Callable[..., Starlette], mesh: FakeMesh, given: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """What a request with these parameters is sampled with."""
    transport = httpx.ASGITransport(make_app(**options))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for path, prompt in (
            ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
            ("completions", {"prompt": "hi"}),
        ):
            answer = await client.post(f"/v1/{path}", json={"model": MODEL, **prompt, **given})
            assert answer.status_code == 200, answer.text
    chat, completion = (each.sampling for each in mesh.specs.values())
    found = [{name: getattr(sampling, name) for name in PUBLISHED} for sampling in (chat, completion)]
    assert found[0] == found[1]
    return found[0]


async def test_a_request_has_what_it_gives_and_else_the_models(
    make_app: Callable[..., Starlette], mesh: FakeMesh
) -> None:
    given = {"temperature": None, "top_k": 5}
    assert await sampled(make_app, mesh, given, sampling=DEFAULTS) == {**PUBLISHED, "top_k": 5}


async def test_a_request_can_switch_every_one_off(make_app: Callable[..., Starlette], mesh: FakeMesh) -> None:
    given = OPENAIS | {"top_k": 0}
    assert await sampled(make_app, mesh, given, sampling=DEFAULTS) == OPENAIS


async def test_by_itself_the_model_has_none(make_app: Callable[..., Starlette], mesh: FakeMesh) -> None:
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
