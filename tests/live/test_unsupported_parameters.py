"""Parameters that change the answer and are not honoured are refused by name, by the real client and by raw posts alike."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from spotwise.gateway.schema.parameters import REFUSED, Endpoint
from tests.live.mesh import MODEL, LiveMesh

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO: Any = [{"role": "user", "content": "What is the capital of France?"}]
#: What both endpoints refuse, and a value that asks for it.
REFUSED_NAMES = [rule.name for rule in REFUSED if set(rule.at) == set(Endpoint)]
VALUE = "anything"


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_both_endpoints_refuse_by_name(mesh: LiveMesh, name: str) -> None:
    """The client raises BadRequestError with the parameter's name; a raw post gets the same."""
    bodies: list[tuple[str, dict[str, Any]]] = [(CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "Paris is"})]
    for path, asked in bodies:
        response = mesh.post(path, {"model": MODEL, "max_tokens": 2, **asked, name: VALUE})
        error = response.json().get("error", {})
        assert (response.status_code, error.get("code")) == (400, "unsupported_parameter"), response.text
        assert error["param"] == name
        assert f"'{name}'" in error["message"]
    with pytest.raises(openai.BadRequestError) as raised:
        mesh.client().chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2, extra_body={name: VALUE})
    assert (raised.value.code, raised.value.param) == ("unsupported_parameter", name)


@pytest.mark.parametrize(("name", "value"), [("echo", True), ("best_of", 2)])
def test_a_chat_refuses_what_only_completions_have(mesh: LiveMesh, name: str, value: Any) -> None:
    """The parameters exist for completions, so a client may expect them for chats."""
    with pytest.raises(openai.BadRequestError) as raised:
        mesh.client().chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2, extra_body={name: value})
    assert (raised.value.code, raised.value.param) == ("unsupported_parameter", name)


def test_what_asks_for_nothing_is_answered(mesh: LiveMesh) -> None:
    """Clients that send every parameter with its default get their answer."""
    defaults: dict[str, Any] = dict.fromkeys(REFUSED_NAMES) | {
        "structured_outputs": None,
        "bad_words": [],
        "allowed_token_ids": None,
        "echo": False,
        "best_of": 1,
        "use_beam_search": False,
        "response_format": {"type": "text"},
        "return_tokens_as_token_ids": False,
    }
    answer = mesh.client().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=8, temperature=0, extra_body=defaults
    )
    assert "Paris" in (answer.choices[0].message.content or "")


@pytest.mark.parametrize("value", [2**33, 2**62])
def test_a_huge_top_k_keeps_the_whole_vocabulary(mesh: LiveMesh, value: int) -> None:
    """A huge `top_k` gives the same text as none, with the same seed."""
    asked: dict[str, Any] = {"model": MODEL, "prompt": "Paris is", "max_tokens": 4, "seed": 5}
    wide, off = (mesh.post(COMPLETIONS, asked | {"top_k": top_k}) for top_k in (value, 0))
    assert (wide.status_code, off.status_code) == (200, 200), wide.text
    assert wide.json()["choices"][0]["text"] == off.json()["choices"][0]["text"]


@pytest.mark.parametrize("temperature", [1e-6, 1e-39, 5e-324, -0.0])
def test_a_temperature_of_almost_nothing_is_greedy(mesh: LiveMesh, temperature: float) -> None:
    """With almost no temperature the tokens are the greedy ones, for any seed."""
    asked: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 8}
    greedy = mesh.post(CHAT, asked | {"temperature": 0}).json()["choices"][0]["message"]["content"]
    for seed in (1, 2):
        cold = mesh.post(CHAT, asked | {"temperature": temperature, "seed": seed})
        assert cold.json()["choices"][0]["message"]["content"] == greedy


def test_the_series_of_vllms_dashboard(mesh: LiveMesh) -> None:
    """A request is in all of them, and prefill and decode make up the time of its inference."""
    names = (
        *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
        *("request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds"),
        *("request_params_n", "request_params_max_tokens", "request_time_per_output_token_seconds"),
    )

    def shown() -> dict[str, tuple[float, float]]:
        lines = dict(line.rsplit(" ", 1) for line in mesh.get("/metrics").text.splitlines() if line[:1] != "#")
        label = f'{{model_name="{MODEL}"}}'
        return {
            name: (float(lines[f"vllm:{name}_count{label}"]), float(lines[f"vllm:{name}_sum{label}"])) for name in names
        }

    before = shown()
    answer = mesh.client().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=5, n=2, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    after = shown()
    counts = {name: after[name][0] - before[name][0] for name in names}
    sums = {name: after[name][1] - before[name][1] for name in names}
    of_requests = ("request_params_n", "request_max_num_generation_tokens")
    assert counts == {name: 1 if name in of_requests else 2 for name in names}
    assert sums["request_prompt_tokens"] == 2 * answer.usage.prompt_tokens
    assert (sums["request_generation_tokens"], sums["request_max_num_generation_tokens"]) == (10, 5)
    assert (sums["request_params_n"], sums["request_params_max_tokens"]) == (2, 10)
    phases = sums["request_prefill_time_seconds"] + sums["request_decode_time_seconds"]
    assert sums["request_prefill_time_seconds"] > 0
    assert sums["request_inference_time_seconds"] == pytest.approx(phases)
