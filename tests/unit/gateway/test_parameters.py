"""Every parameter of vLLM's and OpenAI's APIs is honoured, refused or ignored, by its class.

Of Anthropic's, test_http_messages.py shows it.
"""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import completion_create_params as openai_completions
from openai.types.chat import completion_create_params as openai_chat
from openai.types.responses import response_create_params as openai_responses
from prometheus_client import CollectorRegistry

from spotwise.gateway.schema.chat import ChatRequest
from spotwise.gateway.schema.completions import CompletionRequest
from spotwise.gateway.schema.parameters import IGNORED, REFUSED, Endpoint, Ignored, Refused, counted_name, warning_of
from spotwise.gateway.schema.responses import ResponsesRequest
from spotwise.gateway.schema.shared import SharedRequest
from tests.unit.gateway.apps import Http, Json
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, PATHS, FakeMesh

MODELS: dict[Endpoint, type[SharedRequest]] = {
    Endpoint.CHAT: ChatRequest,
    Endpoint.COMPLETIONS: CompletionRequest,
    Endpoint.RESPONSES: ResponsesRequest,
}
PATH = dict(zip(MODELS, PATHS, strict=False))
BODIES = {endpoint: PATHS[path] for endpoint, path in PATH.items()}

#: Of the installed client, so that what a newer one can send is classified before it is let in.
OPENAI = {
    Endpoint.CHAT: set(openai_chat.CompletionCreateParamsBase.__annotations__) | {"stream"},
    Endpoint.COMPLETIONS: set(openai_completions.CompletionCreateParamsBase.__annotations__) | {"stream"},
    Endpoint.RESPONSES: set(openai_responses.ResponseCreateParamsBase.__annotations__) | {"stream"},
}
#: What vLLM's versions from 0.6 on take beside OpenAI's, at every endpoint.
VLLM_BOTH = """
    top_k min_p repetition_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs bad_words
    logprob_token_ids use_beam_search length_penalty early_stopping best_of watermarking add_special_tokens
    response_format guided_json guided_regex guided_choice guided_grammar guided_json_object structural_tag
    guided_decoding_backend guided_whitespace_pattern structured_outputs priority request_id session_id
    logits_processors return_tokens_as_token_ids return_token_ids return_token_offsets return_mm_kwargs cache_salt
    kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval
    routed_experts_prompt_start echo
"""
VLLM_CHAT = """
    add_generation_prompt continue_final_message documents chat_template chat_template_kwargs media_io_kwargs
    mm_processor_kwargs include_reasoning return_prompt_text
"""
VLLM = {
    Endpoint.CHAT: {*VLLM_BOTH.split(), *VLLM_CHAT.split()},
    Endpoint.COMPLETIONS: {*VLLM_BOTH.split(), "prompt_embeds"},
    Endpoint.RESPONSES: {*VLLM_BOTH.split(), *VLLM_CHAT.split()},
}

each_endpoint = pytest.mark.parametrize("endpoint", MODELS, ids=lambda endpoint: endpoint.value)
refusals = pytest.mark.parametrize(
    ("endpoint", "rule"),
    [(endpoint, rule) for rule in REFUSED for endpoint in rule.at if endpoint in MODELS],
    ids=lambda part: part.name if isinstance(part, Refused) else part.value,
)


def asking(rule: Refused | Ignored, value: Any) -> Json:
    """A body's part with a value of the rule's parameter or member."""
    parameter, _, member = rule.name.partition(".")
    asked: Json = {parameter: {member: value} if member else value}
    if parameter == "stream_options":
        asked["stream"] = True
    if parameter == "structured_outputs":
        asked[parameter]["regex"] = "a*"
    return asked


def something(rule: Refused) -> Any:
    """A value that is not the default, of the default's type."""
    if not rule.off:
        return {} if rule.name.startswith("guided") else [{"role": "user", "content": "Hi"}]
    match rule.off[0]:
        case bool():
            return not rule.off[0]
        case str():
            return "other"
        case int():
            return 7
        case list():
            return [1]
        case _:
            return {"key": 1}


@each_endpoint
def test_every_known_parameter_is_in_one_class(endpoint: Endpoint) -> None:
    """Every parameter of OpenAI and vLLM is in exactly one class: honoured, refused or ignored."""
    honoured = list(MODELS[endpoint].model_fields)
    refused = [rule.name for rule in REFUSED if endpoint in rule.at]
    ignored = [rule.name for rule in IGNORED if endpoint in rule.at]
    classified = honoured + refused + ignored
    assert sorted(set(classified)) == sorted(classified)
    assert (OPENAI[endpoint] | VLLM[endpoint]) - set(classified) == set()


@each_endpoint
def test_the_other_endpoints_parameters_are_in_one_class(endpoint: Endpoint) -> None:
    """A parameter that the other endpoint honours is not ignored here without a word in the table."""
    other = next(each for each in MODELS if each is not endpoint)
    here = set(MODELS[endpoint].model_fields)
    rules: list[Any] = [*REFUSED, *IGNORED]
    here |= {rule.name for rule in rules if endpoint in rule.at}
    assert set(MODELS[other].model_fields) <= here


@refusals
async def test_what_is_refused_is_named(client: Http, mesh: FakeMesh, endpoint: Endpoint, rule: Refused) -> None:
    """400 before anything reaches the mesh."""
    response = await client.post(PATH[endpoint], json=BODIES[endpoint] | asking(rule, something(rule)))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", rule.name), error
    assert rule.hint in error["message"]
    assert not mesh.specs


@refusals
async def test_parameters_without_effect_are_accepted(client: Http, endpoint: Endpoint, rule: Refused) -> None:
    for value in (None, *rule.off):
        if value is None and rule.name in BODIES[endpoint]:
            continue
        response = await client.post(PATH[endpoint], json=BODIES[endpoint] | asking(rule, value))
        assert response.status_code == 200, (value, response.text)


@pytest.mark.parametrize("endpoint", MODELS, ids=lambda endpoint: endpoint.value)
async def test_a_number_is_no_switch(client: Http, endpoint: Endpoint) -> None:
    """0 and 1 are neither false nor true, as everywhere in the API, and as its description says."""
    switches = [rule for rule in REFUSED if endpoint in rule.at and isinstance(next(iter(rule.off), None), bool)]
    assert switches
    for rule in switches:
        response = await client.post(PATH[endpoint], json=BODIES[endpoint] | asking(rule, int(rule.off[0])))
        assert (response.status_code, response.json()["error"]["param"]) == (400, rule.name)


@pytest.mark.parametrize("value", [{}, [], "", 0, False, {"type": "object"}], ids=repr)
@pytest.mark.parametrize("name", ["guided_json", "guided_choice", "guided_regex", "structured_outputs"])
async def test_empty_values_of_constraints_are_requests(client: Http, name: str, value: Any) -> None:
    """To vLLM `{}` is a schema and `[]` a choice among nothing."""
    response = await client.post(CHATS, json=CHAT | {name: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)


@each_endpoint
async def test_what_is_ignored_is_accepted_and_named(
    client: Http, mesh: FakeMesh, registry: CollectorRegistry, endpoint: Endpoint
) -> None:
    """With any value. The answer names it, and it is counted; an unknown parameter is `other` to the counter."""
    body, names = dict(BODIES[endpoint]), ["anything"]
    for rule in IGNORED:
        if endpoint in rule.at:
            given: Any = "x" if "." in rule.name else {"a": [1]}
            for name, value in asking(rule, given).items():
                body[name] = {**body[name], **value} if name in body and isinstance(value, dict) else value
            names.append(rule.name)
    response = await client.post(PATH[endpoint], json=body | {"anything": 1, "Evil\r\nX: y": 1})
    assert response.status_code == 200, response.text
    assert mesh.specs
    assert response.headers["x-spotwise-warning"] == warning_of([*names, "\n"])
    assert "Evil" not in str(response.headers)
    counted = {
        sample.labels["parameter"]
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "spotwise_ignored_parameters_total" and sample.value == 1
    }
    assert counted == {*names, "other"} - {"anything"}


@each_endpoint
async def test_what_asks_for_nothing_is_no_warning(client: Http, endpoint: Endpoint) -> None:
    body = dict(BODIES[endpoint]) | {"temperature": 0.5, "user": "u", "anything": None}
    for rule in IGNORED:
        if endpoint in rule.at and "." not in rule.name:
            body[rule.name] = rule.off[0] if rule.off else None
    response = await client.post(PATH[endpoint], json=body)
    assert (response.status_code, "x-spotwise-warning" in response.headers) == (200, False), response.headers


def test_a_warning_has_a_bound_and_no_text_of_clients() -> None:
    """A header holds names that look like parameters, and so many; the counter holds the table's only."""
    names = [f"wish_{number}" for number in range(100)]
    assert warning_of(names).endswith(", 76 more")
    assert warning_of(["a\r\nb"]) == "ignored: 1 more"
    assert warning_of([]) == ""
    assert [counted_name(name) for name in ("service_tier", "tools.x y", "mine", "mine.x")] == [
        *("service_tier", "tools", "other", "other")
    ]


async def test_members_of_stream_options(client: Http) -> None:
    """Obfuscation and unknown ones are ignored; a known one is of its type."""
    for members, status in (
        ({"continuous_usage_stats": False, "include_obfuscation": True, "anything": 1}, 200),
        ({"continuous_usage_stats": None, "include_usage": True}, 200),
        ({"continuous_usage_stats": 1}, 400),
        ({"resumable": "true"}, 400),
    ):
        response = await client.post(COMPLETIONS, json=COMPLETION | {"stream": True, "stream_options": members})
        assert response.status_code == status, response.text
