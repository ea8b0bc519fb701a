"""Numbers at the edges of their types: refused with a 400, or carried to the workers as they are; never an error of ours."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from spotwise.core.requests.record import RequestRecord
from spotwise.wire.codec_records import decode_record, encode_record
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, FakeMesh

INTEGERS = ("max_tokens", "n", "seed", "top_k", "min_tokens", "priority", "logprobs", "best_of")
FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
#: As JSON, because a client's own library may not be what wrote it.
EDGES = (
    *("0", "-0", "1", "-1", "2147483647", "2147483648", "4294967295", "4294967296", "8589934592", "9007199254740993"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615"),
    *("18446744073709551616", "1" + "0" * 400, "0.0", "-0.0", "1.0", "1e-5", "1e-38", "1e-46", "5e-324", "1e-400"),
    *("1e308", "-1e308", "true", "false", '"1"', "[1]", "{}"),
)


def record(mesh: FakeMesh) -> RequestRecord:
    """Return the record that a gateway writes of the only sequence."""
    choice_id, spec = next(iter(mesh.specs.items()))
    return RequestRecord(choice_id, 1, "g", 1, "m", spec.prompt_token_ids, (), spec.sampling, spec.stop, 0.0)


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge[:24])
@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, "logit_bias", "stop_token_ids", "prompt"])
async def test_a_number_at_the_edge_is_refused_or_carried(
    client: httpx.AsyncClient, mesh: FakeMesh, name: str, edge: str
) -> None:
    """A 400 that names the parameter, or a record that comes through the wire as it was."""
    value = {"logit_bias": f'{{"5": {edge}}}', "stop_token_ids": f"[{edge}]", "prompt": f"[{edge}]"}.get(name, edge)
    fields = {"model": f'"{COMPLETION["model"]}"', "prompt": '"Hi"', "echo": "true"} | {name: value}
    body = "{" + ", ".join(f'"{key}": {member}' for key, member in fields.items()) + "}"
    response = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["code"] == "invalid_json" or error["param"].split(".")[0] in (name, "prompt"), error
        return
    assert response.status_code == 200, response.text
    written = record(mesh)
    assert decode_record(encode_record(written)) == written


@pytest.mark.parametrize("name", ["max_tokens", "n", "seed", "top_k", "min_tokens", "priority", "temperature", "top_p"])
async def test_truth_values_are_no_numbers(client: httpx.AsyncClient, name: str) -> None:
    """JSON's `true` is refused as a number, although a Python bool is an int."""
    response = await client.post("/v1/chat/completions", json=CHAT | {name: True})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_type")


@pytest.mark.parametrize(("top_k", "kept"), [(2**33, None), (2**63, None), (512, None), (511, 511), (1, 1)])
async def test_top_k_beyond_the_vocabulary_keeps_all(
    client: httpx.AsyncClient, mesh: FakeMesh, top_k: int, kept: int | None
) -> None:
    assert (await client.post("/v1/completions", json=COMPLETION | {"top_k": top_k})).status_code == 200
    assert mesh.spec.sampling.top_k == kept


@pytest.mark.parametrize(("penalty", "status"), [(0.01, 200), (0.0099, 400), (5e-324, 400), (10, 200), (10.1, 400)])
async def test_repetition_penalties_stay_where_logits_stay_finite(
    client: httpx.AsyncClient, penalty: float, status: int
) -> None:
    """A logit divided by almost nothing is infinite, and among infinities nothing can be drawn."""
    response = await client.post("/v1/completions", json=COMPLETION | {"repetition_penalty": penalty})
    assert response.status_code == status, response.text


@pytest.mark.parametrize("temperature", [-0.0, 5e-324, 1e-39, 9e-6])
async def test_almost_no_temperature_is_greedy(client: httpx.AsyncClient, mesh: FakeMesh, temperature: Any) -> None:
    """No random number is used for it."""
    assert (await client.post("/v1/completions", json=COMPLETION | {"temperature": temperature})).status_code == 200
    assert mesh.spec.sampling.is_greedy
