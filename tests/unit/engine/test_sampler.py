from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams, counter_uniform
from spotwise.engine.native.library import Kernels, load_kernels
from spotwise.engine.sampling.logit_changes import SamplingRow
from spotwise.engine.sampling.sampler import sample, token_logprobs

VOCAB = 600  # more than the sampler looks at before it sorts everything


def row(
    prompt: list[int] | None = None, output: list[int] | None = None, stop: Any = None, **sampling: Any
) -> SamplingRow:
    prompt = [1, 2] if prompt is None else prompt
    tokens = np.array(prompt + (output or []), dtype=np.int64)
    return SamplingRow(SamplingParams(**sampling), stop or StopCriteria(100), tokens, len(prompt))


def logits_of(seed: int, rows: int = 1, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def logits_of_kind(kind: str, seed: int, rows: int, vocab: int) -> torch.Tensor:
    """Logits as models and masks make them; `[rows, vocab]`."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator)
    if kind == "equal":
        return torch.zeros_like(logits)
    if kind == "ties":
        return (logits * 2).round() / 2
    if kind == "signed zeros":
        return torch.where(logits > 0.5, -0.0, torch.where(logits > 0, 0.0, -1.0))
    if kind == "masked":
        masked = torch.rand(rows, vocab, generator=generator) < 0.97
        masked[:, seed % vocab] = False
        return (logits * 3).masked_fill(masked, -torch.inf)
    return logits * {"flat": 0.01, "plain": 3.0, "sharp": 60.0}[kind]


LOGITS_KINDS = st.sampled_from(["equal", "ties", "signed zeros", "masked", "flat", "plain", "sharp"])


def reference_draw(logits: torch.Tensor, sampling: SamplingParams, output_index: int) -> int:
    """The definition, in float64 over the whole vocabulary: sorted where something is filtered, else as it is."""
    filters = sampling.top_p < 1.0 or sampling.top_k is not None or sampling.min_p > 0.0
    order = np.argsort(-logits.double().numpy(), kind="stable") if filters else np.arange(VOCAB)
    weights = np.exp((logits.double().numpy()[order] - float(logits.max())) / sampling.temperature)
    keep = int(((weights >= sampling.min_p * weights[0]) & (weights > 0)).sum()) if filters else VOCAB
    keep = min(keep, sampling.top_k or VOCAB)
    cumulative = weights[:keep].cumsum()
    if sampling.top_p < 1.0:
        keep = min(keep, int((cumulative < sampling.top_p * cumulative[-1]).sum()) + 1)
    wanted = counter_uniform(sampling.seed, output_index) * cumulative[keep - 1]
    return int(order[min(int((cumulative[:keep] <= wanted).sum()), keep - 1)])


sampling_parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.9]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.3, 1e-6]),
    top_k=st.sampled_from([None, 1, 2, 40, 300, 10_000]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=400)
@given(parameters=sampling_parameters, logits_seed=st.integers(0, 50), kind=LOGITS_KINDS, index=st.integers(0, 20))
def test_a_draw_follows_the_definition(parameters: SamplingParams, logits_seed: int, kind: str, index: int) -> None:
    """Whether the likeliest tokens decide or the whole vocabulary is sorted, the token is that of the plain definition."""
    logits = logits_of_kind(kind, logits_seed, 1, VOCAB)
    drawn = sample(logits, [SamplingRow(parameters, StopCriteria(9), np.arange(2 + index), 2)])
    assert drawn == [reference_draw(logits[0], parameters, index)]


@settings(max_examples=200)
@given(
    vocab=st.sampled_from([1, 5, 16, 17, 511, 512, 513, 1600]),
    temperatures=st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0, 1.9]), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.01, 1.0, 6.0, 60.0]),
)
def test_the_kernel_draws_what_torch_draws(vocab: int, temperatures: list[float], seed: int, spread: float) -> None:
    """The kernel's token covers the uniform number on the cumulative weights, or misses it by a millionth at most."""
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("no C++ compiler here")
    kernels.set_threads(2)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(temperatures), vocab, generator=generator) * spread
    rows = [row(temperature=temperature, seed=seed + i) for i, temperature in enumerate(temperatures)]
    for token, row_logits, one in zip(sample(logits, rows, kernels), logits.double(), rows, strict=True):
        if one.takes_likeliest:
            assert token == int(row_logits.argmax())
            continue
        cumulative = (row_logits / one.sampling.temperature).softmax(-1).cumsum(0)
        assert token is not None
        uniform = counter_uniform(one.sampling.seed, 0)
        assert uniform <= cumulative[token] + 1e-6
        assert token == 0 or uniform >= cumulative[token - 1] - 1e-6


filtered_parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-9, 1e-5, 1e-4, 0.1, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0 - 1e-9, 0.999, 0.9, 0.5, 0.3, 1e-9]),
    top_k=st.sampled_from([None, 1, 2, 40, 255, 256, 257, 1000, 2048, 10_000]),
    min_p=st.sampled_from([0.0, 1e-300, 1e-4, 0.02, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
).filter(lambda sampling: sampling.top_p < 1 or sampling.top_k is not None or sampling.min_p > 0)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parameters=st.lists(filtered_parameters, min_size=1, max_size=5),
    vocab=st.sampled_from([1, 5, 16, 17, 63, 64, 65, 255, 256, 257, 600, 3001]),
    seed=st.integers(0, 2**32),
    kind=LOGITS_KINDS,
)
def test_the_kernel_keeps_and_draws_what_torch_does(
    parameters: list[SamplingParams], vocab: int, seed: int, kind: str, kernels: Kernels
) -> None:
    kernels.set_threads(2)
    logits = logits_of_kind(kind, seed, len(parameters), vocab)
    rows = [SamplingRow(sampling, StopCriteria(9), np.arange(5), 2) for sampling in parameters]
    assert sample(logits, rows, kernels) == sample(logits, rows)


@pytest.mark.parametrize("native", [False, True])
def test_a_masked_token_is_never_drawn(native: bool, best_kernels: Kernels) -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, [7, 333]] = torch.tensor([0.0, -0.5])
    for parameters in ({}, {"top_k": 300}, {"top_p": 1.0 - 1e-12}, {"min_p": 1e-300}, {"temperature": 0.0}):
        rows = [row(seed=seed, **parameters) for seed in range(100)]
        drawn = set(sample(logits.expand(100, -1), rows, best_kernels if native else None))
        assert drawn == ({7} if parameters.get("temperature") == 0 else {7, 333})


@settings(max_examples=30)
@given(seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=6))
def test_a_row_is_drawn_alike_alone_and_beside_others(seeds: list[int]) -> None:
    logits = logits_of(1, rows=len(seeds))
    before = logits.clone()
    rows = [row(temperature=0.0 if seed % 3 == 0 else 1.1, seed=seed, presence_penalty=seed % 2) for seed in seeds]
    together = sample(logits, rows)
    assert together == [sample(logits[i : i + 1], [rows[i]])[0] for i in range(len(seeds))]
    assert torch.equal(logits, before)


def test_draws_follow_the_probabilities() -> None:
    logits = torch.full((1, VOCAB), -50.0)
    logits[0, [3, 4]] = torch.log(torch.tensor([0.8, 0.2]))
    rows = [row(temperature=2.0, seed=seed) for seed in range(4000)]
    drawn = sample(logits.expand(4000, -1), rows)
    assert drawn.count(3) / 4000 == pytest.approx(0.8**0.5 / (0.8**0.5 + 0.2**0.5), abs=0.03)


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    """A logit falls by `presence + count * frequency` for tokens of the output; the prompt does not count."""
    output = [5, 5, 5, 9]
    logits = torch.zeros(1, VOCAB)
    logits[0, [5, 9, 1, 12]] = torch.tensor([10.0, 8.0, 6.2, 6.1])
    # 5: 10 - 1 - 3 * 1 = 6, 9: 8 - 1 - 1 = 6, 1 is in the prompt only
    penalties = {"presence_penalty": 1.0, "frequency_penalty": 1.0}
    assert sample(logits, [row(prompt=[1, 12], output=output, temperature=0.0, **penalties)]) == [1]
    assert sample(logits, [row(prompt=[1, 12], output=output[:1], temperature=0.0, **penalties)]) == [5]


@settings(max_examples=40)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=30),
    penalty=st.sampled_from([0.5, 1.2, 2.0]),
)
def test_the_repetition_penalty_is_transformers_own(prompt: list[int], output: list[int], penalty: float) -> None:
    """Tokens of prompt and output, each once, whatever the sign of the logit."""
    logits = logits_of(4)
    processor: Any = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([prompt + output]), logits.clone()).argmax(-1).tolist()
    assert sample(logits, [row(prompt, output, temperature=0.0, repetition_penalty=penalty)]) == expected


def test_logit_bias_adds_and_bans() -> None:
    logits = logits_of(5)
    likeliest = int(logits.argmax())
    assert sample(logits, [row(temperature=0.0, logit_bias=((17, 100.0),))]) == [17]
    banned = row(temperature=0.0, logit_bias=((likeliest, -100.0),))
    assert sample(logits, [banned]) == [int(logits[0].topk(2).indices[1])]


@settings(max_examples=60)
@given(
    output=st.lists(st.integers(0, 5), max_size=6),
    words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6),
)
def test_bad_words_are_transformers_own(output: list[int], words: list[list[int]]) -> None:
    """A word's last token is banned where the output ends with those before it, and a word of one token always."""
    logits = logits_of(9)
    logits[0, :6] += 50.0
    processor: Any = NoBadWordsLogitsProcessor(words)
    expected = processor(torch.tensor([[599, *output]]), logits.clone()).argmax(-1).tolist()
    bad_words = tuple(map(tuple, words))
    assert sample(logits, [row([599], output, temperature=0.0, bad_words=bad_words)]) == expected


def test_bad_words_are_of_the_output() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 8] = 9.0
    assert sample(logits, [row([7], temperature=0.0, bad_words=((7, 8),))]) == [8]
    assert sample(logits, [row([1], [7], temperature=0.0, bad_words=((7, 8),))]) != [8]


@pytest.mark.parametrize("native", [False, True])
def test_only_allowed_tokens_are_drawn(native: bool, best_kernels: Kernels) -> None:
    """And all of them; without bad words, unless these leave none."""
    logits = torch.zeros(1, VOCAB)
    for parameters in ({}, {"top_k": 400}, {"top_p": 0.999}, {"repetition_penalty": 1.5, "presence_penalty": 2.0}):
        for bad_words, drawn in (((), {3, 4, 5}), (((3,), (2, 4)), {5}), (((3,), (4,), (5,)), {3, 4, 5})):
            rows = [
                row([1], [9, 2], seed=seed, allowed_token_ids=(3, 4, 5), bad_words=bad_words, **parameters)
                for seed in range(60)
            ]
            assert set(sample(logits.expand(60, -1), rows, best_kernels if native else None)) == drawn


def test_no_stop_token_before_the_minimum() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 4], logits[0, 8] = 9.0, 5.0
    stop = StopCriteria(100, stop_token_ids=(4,), min_new_tokens=2)
    for temperature in (0.0, 0.01):
        tokens = [sample(logits, [row(output=[3] * n, stop=stop, temperature=temperature)])[0] for n in range(4)]
        assert tokens == [8, 8, 4, 4]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("temperature", [1e-5, 1e-6, 1e-9, 1e-37, 1e-39, 1e-46, 5e-324, -0.0])
def test_a_tiny_temperature_is_the_likeliest_and_no_overflow(
    temperature: float, native: bool, best_kernels: Kernels
) -> None:
    logits = logits_of(6, rows=2, spread=100.0)
    rows = [row(temperature=temperature, seed=3), row(temperature=temperature, seed=4, top_p=0.9)]
    assert sample(logits, rows, best_kernels if native else None) == logits.argmax(-1).tolist()


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = logits_of(7, rows=3)
    found = token_logprobs(logits, [4, 5, 6], [VOCAB, 2, 0])
    assert np.exp(found[0].top_logprobs).sum() == pytest.approx(1.0, abs=1e-5)
    assert list(found[0].top_logprobs) == sorted(found[0].top_logprobs, reverse=True)
    assert [len(entry.top_token_ids) for entry in found] == [VOCAB, 2, 0]
    expected = logits.log_softmax(-1)
    assert [entry.logprob for entry in found] == pytest.approx([float(expected[i, 4 + i]) for i in range(3)])


def test_half_precision_logits_are_drawn_in_float32() -> None:
    logits = logits_of(8).to(torch.bfloat16)
    assert sample(logits, [row(seed=11)]) == sample(logits.float(), [row(seed=11)])


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("bad", [[float("nan")], [float("inf")], [float("nan")] * VOCAB, [-float("inf")] * VOCAB])
@pytest.mark.parametrize("parameters", [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 300}, {"min_p": 0.1}])
def test_a_row_without_a_finite_maximum_has_no_token(
    parameters: dict[str, Any], bad: list[float], native: bool, best_kernels: Kernels
) -> None:
    """Wherever in the vocabulary it is; the rows beside it have theirs."""
    kernels = best_kernels if native else None
    sound = logits_of(9, rows=1)
    (expected,) = sample(sound, [row(seed=3, **parameters)], kernels)
    for place in {0, 5, VOCAB - len(bad)} if len(bad) == 1 else {0}:
        logits = sound.repeat(3, 1)
        logits[1, place : place + len(bad)] = torch.tensor(bad)
        assert sample(logits, [row(seed=3, **parameters)] * 3, kernels) == [expected, None, expected]
