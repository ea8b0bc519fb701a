"""Cost profiles as documents."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.costs.cost_model import LinkCost, PiecewiseLinear, TableIterationCost
from spotwise.core.costs.cost_profile import BUILT_IN, CostProfile, MeasuredRange
from spotwise.files.cost_profile import profile_as_dict, profile_from_json, read_cost_profile

TABLE = TableIterationCost(
    prompt=PiecewiseLinear((1, 512, 2048), (0.01, 0.05, 0.2)),
    decode=PiecewiseLinear((1, 64), (0.02, 0.04)),
    prompt_context_s=1e-8,
    decode_context_s=2e-8,
)


@pytest.mark.parametrize(
    "profile",
    [
        BUILT_IN,
        replace(BUILT_IN, iteration=TABLE),
        replace(BUILT_IN, iteration=replace(TABLE, mixed_factor=1.1)),
        replace(BUILT_IN, link=None),
        replace(BUILT_IN, host_link=LinkCost(1e-6, 3e10)),
        replace(BUILT_IN, measured=MeasuredRange(2048, 1024.0, 32, 1040.0)),
    ],
)
def test_a_profile_comes_back_from_json(profile: CostProfile) -> None:
    document = {**profile_as_dict(profile), "fit": {"mape": 0.02}}
    assert profile_from_json(json.dumps(document).encode()) == profile


def test_a_profile_of_an_earlier_version_has_no_range() -> None:
    document = profile_as_dict(BUILT_IN)
    del document["measured_range"]
    assert profile_from_json(json.dumps({**document, "measured": {"longest_prompt": 64}}).encode()) == BUILT_IN


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": "other/1"}, "format"),
        ({"iteration": None}, "iteration"),
        ({"iteration": {"kind": "cubic"}}, "'cubic'"),
        ({"iteration": {"kind": "linear", "fixed_s": 1}}, "iteration.prompt_token_s"),
        ({"iteration": {"kind": "linear", "fixed_ms": 1}}, "fixed_ms"),
        ({"iteration": {"kind": "table", "prompt": {"at": [1, 2]}}}, "iteration.prompt.seconds"),
        ({"iteration": {"kind": "table", "prompt": 3}}, "iteration.prompt"),
        ({"link": {"latency_s": 0.0, "bytes_per_s": "fast"}}, "link.bytes_per_s"),
        ({"link": {"latency_s": 0.0, "bytes_per_s": True}}, "link.bytes_per_s"),
        ({"link": {"latency_s": math.nan, "bytes_per_s": 1e9}}, "link.latency_s"),
        ({"link": {"latency_s": 0.0, "bytes_per_s": math.inf}}, "link.bytes_per_s"),
        ({"host_link": {"latency_s": 0.0}}, "host_link.bytes_per_s"),
        ({"message_s": 10**400}, "message_s"),
        ({"kv_tokens": 1.5}, "kv_tokens"),
        ({"kv_tokens": 0}, "kv_tokens"),
        ({"kv_bytes_per_token": None}, "kv_bytes_per_token"),
        ({"measured_range": {"prompt_tokens": 64}}, "measured_range.prompt_context"),
        ({"measured_range": {"prompt_tokens": 6.5}}, "measured_range.prompt_tokens"),
    ],
)
def test_what_is_wrong_with_a_document_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        profile_from_json(json.dumps({**profile_as_dict(BUILT_IN), **change}).encode())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"model,hardware", b"\xff\xfe\xfd"])
def test_what_is_no_json_object_is_no_profile(text: bytes) -> None:
    with pytest.raises(ValueError, match="the profile"):
        profile_from_json(text)


BY_HAND = """
format = "spotwise-cost-profile/1"
kv_bytes_per_token = 131072
kv_tokens = 60_000
link = { latency_s = 0.001, bytes_per_s = 12.5e9 }

[iteration]
kind = "table"
prompt = { at = [1, 512, 2048], seconds = [0.01, 0.05, 0.2] }
decode = { at = [1, 64], seconds = [0.02, 0.04] }
prompt_context_s = 1e-8
decode_context_s = 2e-8
"""


def test_a_profile_may_be_written_by_hand(tmp_path: Path) -> None:
    """In TOML, with the keys of the JSON document; whole numbers are seconds as well."""
    path = tmp_path / "machine.toml"
    path.write_text(BY_HAND)
    expected = CostProfile("", TABLE, LinkCost(0.001, 12.5e9), 131072, 60_000)
    assert read_cost_profile(path) == expected
    with path.open("a") as file:
        file.write(
            "[measured_range]\nprompt_tokens = 2048\nprompt_context = 1024\ndecodes = 64\ndecode_context = 8e3\n"
        )
    expected = replace(expected, measured=MeasuredRange(2048, 1024.0, 64, 8000.0))
    assert read_cost_profile(path) == expected
    path.with_suffix(".json").write_text(json.dumps(profile_as_dict(expected)))
    assert read_cost_profile(path.with_suffix(".json")) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (BY_HAND.replace("kv_tokens = 60_000", ""), "kv_tokens"),
        (BY_HAND.replace("0.05", '"fast"'), "iteration.prompt.seconds.1"),
        (BY_HAND.replace("[0.02, 0.04]", "[0.04, 0.02]"), "must be positive and not fall"),
        ("kv_tokens =", "the profile"),
    ],
)
def test_what_is_wrong_with_a_profile_in_toml_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        read_cost_profile(path)
