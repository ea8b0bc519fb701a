"""What iterations cost, found again in a profile, and as the published simulator has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import BatchShape, pairs
from spotwise.simulator.costs.hardware import BLOOM_176B, LLAMA2_70B, LanguageModel
from spotwise.simulator.costs.machine_costs import (
    A100,
    H100,
    H100_CAPPED,
    PEAKS,
    DecodeModel,
    costs_from,
    published_built_in_costs,
    published_costs_from,
)
from spotwise.simulator.costs.profile_fit import Peaks, ProfileError, ProfileRow, fit_honest, measured, read_profile
from spotwise.simulator.costs.published_costs import (
    InterpolatedTable,
    PublishedIterationCost,
    fit_published,
    fit_published_by_batch,
)

HEADER = (
    "model,hardware,prompt_size,batch_size,token_size,peak_power,average_power,prompt_time,token_time,e2e_time,"
    "tensor_parallel\n"
)


def row(
    prompt_size: int,
    batch_size: int,
    prompt_s: float,
    token_s: float,
    *,
    token_size: int = 128,
    hardware: str = "a100-80gb",
    tensor_parallel: int = 8,
) -> ProfileRow:
    return ProfileRow("bloom-176b", hardware, tensor_parallel, prompt_size, batch_size, token_size, prompt_s, token_s)


def lines(
    prompt_s: Callable[[int, int], float], token_s: Callable[[int, int], float], hardware: str = "a100-80gb"
) -> list[ProfileRow]:
    """Measure a law as the published profile was: single prompts of 128 to 8,192 tokens, and 1 to 64 of 512."""
    sizes = [(2**power, 1) for power in range(7, 14)] + [(512, 2**power) for power in range(1, 7)]
    return [
        row(prompt, batch, prompt_s(prompt, batch), token_s(batch, batch * (prompt + 64)), hardware=hardware)
        for prompt, batch in sizes
        for _ in range(5)
    ]


def write(rows: list[ProfileRow], path: Path) -> Path:
    text = "".join(
        f"{r.model},{r.hardware},{r.prompt_size},{r.batch_size},{r.token_size},0,0,"
        f"{1000 * r.prompt_s!r},{1000 * r.token_s!r},0,{r.tensor_parallel}\n"
        for r in rows
    )
    path.write_text(HEADER + text)
    return path


GOOD = "llama2-70b,a100-80gb,512,4,128,0.9,0.73,196.25,54.75,7168.9,2\n"


def test_rows_are_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + GOOD)
    (read,) = read_profile(path)
    assert (read.model, read.hardware, read.tensor_parallel) == ("llama2-70b", "a100-80gb", 2)
    assert (read.prompt_size, read.batch_size, read.prompt_tokens, read.token_size) == (512, 4, 2048, 128)
    assert (read.prompt_s, read.token_s) == (0.19625, 0.05475)


def test_rows_that_mislead_are_left_out_and_counted() -> None:
    good = [row(512, 1, 0.1, 0.04), row(512, 64, 9.0, 0.1)]
    bad = [
        row(512, 1, 0.13, 0.04, hardware="h100-80gb-pcap"),
        row(512, 64, 0.2, 0.1, tensor_parallel=2),
        row(512, 32, 0.2, 0.1, tensor_parallel=2),
        row(512, 1, 0.1, 0.04, token_size=8192),
        row(512, 1, 0.1, 0.04, token_size=256),
    ]
    kept, left_out = measured([good[0], *bad, good[1]])
    assert kept == good
    assert sorted(left_out.values()) == [1, 2, 2]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model,hardware\n", "line 1: no column prompt_size"),
        (HEADER + GOOD + GOOD.replace("196.25", "fast"), "line 3: prompt_time is 'fast'"),
        (HEADER + GOOD.replace("196.25", "0"), "line 2: prompt_time is '0', not above 0"),
        (HEADER + "llama2-70b,a100-80gb\n", "line 2: prompt_size is None"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(text)
    with pytest.raises(ProfileError, match=why):
        read_profile(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"absent\.csv cannot be read"):
        read_profile(tmp_path / "absent.csv")


#: So fast that no bound of arithmetic or memory is in the way.
FAST = Peaks(1e30, 1e30)
PAIR_S, CONTEXT_S = 3e-9, 5e-7


def prompt_s(prompt_size: int, batch_size: int) -> float:
    return 0.05 + 2e-4 * prompt_size * batch_size + PAIR_S * batch_size * pairs(0, prompt_size)


def token_s(batch_size: int, context: int) -> float:
    return 0.045 + 3e-4 * batch_size + CONTEXT_S * context


ROWS = lines(prompt_s, token_s)


def test_the_law_behind_a_profile_is_found() -> None:
    cost = fit_honest(ROWS, BLOOM_176B, FAST)
    assert cost.prompt_context_s == pytest.approx(PAIR_S)
    assert cost.decode_context_s == pytest.approx(CONTEXT_S)
    assert [cost.prompt(tokens) for tokens in (128, 3000, 40_000)] == pytest.approx([0.0756, 0.65, 8.05])
    assert [cost.decode(batch) for batch in (1, 24, 100)] == pytest.approx([0.0453, 0.0522, 0.075])


def test_long_contexts_in_large_batches_have_an_unmeasured_cost() -> None:
    """The profile has large batches with short contexts only; the fitted law extrapolates."""
    cost = fit_honest(ROWS, BLOOM_176B, FAST)
    shape = BatchShape(decodes=64, decode_context=64 * 4096)
    assert cost.iteration_s(shape) == pytest.approx(token_s(64, 64 * 4096))


def test_attention_costs_what_the_machine_allows_at_least() -> None:
    """Equal times of several short prompts and a long one, or a context without cost, are noise."""
    rows = lines(lambda prompt, batch: 2e-4 * prompt * batch, lambda batch, context: 0.05 + 3e-4 * batch)
    peaks = PEAKS[H100]
    cost = fit_honest(rows, BLOOM_176B, peaks)
    assert cost.decode_context_s == pytest.approx(2 * 70 * 14336 * 2 / peaks.memory_bytes_per_s)
    assert cost.prompt_context_s == pytest.approx(4 * 70 * 14336 / peaks.flops)


def test_a_table_that_would_fall_is_levelled() -> None:
    rows = [row(128, 1, 0.06, 0.03), row(256, 1, 0.05, 0.03), row(512, 1, 0.07, 0.03), row(512, 2, 0.08, 0.02)]
    cost = fit_honest(rows, BLOOM_176B, FAST)
    assert cost.prompt.seconds == pytest.approx((0.055, 0.055, 0.07, 0.08))
    assert cost.decode.seconds == pytest.approx((0.025, 0.025))


def test_a_capped_machine_has_slower_prompts(tmp_path: Path) -> None:
    """Prompts of a capped machine take 1.3 times as long, decodes do not; its own rows are ignored."""
    rows = ROWS + [row for hardware in (H100, H100_CAPPED) for row in lines(prompt_s, token_s, hardware)]
    costs = costs_from(write(rows, tmp_path / "profile.csv"), BLOOM_176B)
    prompt = BatchShape(3000, pairs(0, 3000))
    decode = BatchShape(decodes=8, decode_context=9000)
    assert costs[H100_CAPPED].iteration_s(prompt) == pytest.approx(1.3 * costs[H100].iteration_s(prompt))
    assert costs[H100_CAPPED].iteration_s(decode) == costs[H100].iteration_s(decode)


def test_a_profile_without_the_model_is_refused(tmp_path: Path) -> None:
    path = write(lines(prompt_s, token_s), tmp_path / "profile.csv")
    with pytest.raises(ProfileError, match="no rows of bloom-176b on 8 h100-80gb"):
        costs_from(path, BLOOM_176B)


LINEAR_ROWS = lines(lambda prompt, batch: 0.05 + 2e-4 * prompt * batch, token_s)


def test_a_table_falls_where_measurements_fall() -> None:
    """Medians are kept as they are, and the line of the first two goes on below them, that of the last two above."""
    rows = [row(128, 1, seconds, 0.03) for seconds in (0.06, 0.05, 9.0)] + [
        row(256, 1, 0.05, 0.02),
        row(512, 1, 0.07, 0.04),
    ]
    cost = fit_published(rows)
    assert cost.prompt.seconds == pytest.approx((0.06, 0.05, 0.07))
    assert [cost.prompt(tokens) for tokens in (0, 192, 768)] == pytest.approx([0.07, 0.055, 0.09])
    assert cost.decode(1) == pytest.approx(0.03 + 0.01 * 127 / 128)


def test_decodes_read_the_table_of_tokens_at_their_number() -> None:
    """Decodes take about as long as behind the shortest prompt, in any batch."""
    cost = fit_published(LINEAR_ROWS)
    alone, crowd = (cost.iteration_s(BatchShape(decodes=count, decode_context=900 * count)) for count in (1, 64))
    assert crowd == pytest.approx(alone, rel=0.01)
    assert crowd < 0.75 * token_s(64, 64 * 576)


def test_both_phases_in_one_iteration_take_a_tenth_longer() -> None:
    """Prompts and decodes take 1.1 times the prompt time of all tokens; prompts alone their own, nothing no time."""
    cost = fit_published(LINEAR_ROWS)
    assert cost.iteration_s(BatchShape(1000, pairs(0, 1000), 24, 24_000)) == pytest.approx(1.1 * cost.prompt(1024))
    assert cost.iteration_s(BatchShape(1000, pairs(0, 1000))) == cost.prompt(1000)
    assert cost.iteration_s(BatchShape()) == 0.0


def test_one_change_times_decodes_by_requests() -> None:
    """Decodes are timed by requests, as measured behind prompts of 512 tokens; prompts stay as published."""
    cost = fit_published_by_batch(LINEAR_ROWS)
    assert cost.iteration_s(BatchShape(decodes=64, decode_context=1)) == pytest.approx(token_s(64, 64 * 576))
    assert cost.prompt == fit_published(LINEAR_ROWS).prompt


@pytest.mark.parametrize("decode_model", [DecodeModel.PUBLISHED, DecodeModel.BY_BATCH])
def test_a_capped_machine_has_slower_prompts_there_too(tmp_path: Path, decode_model: DecodeModel) -> None:
    path = write(
        [each for gpu in (A100, H100) for each in lines(lambda p, b: 1e-4 * p * b, token_s, gpu)],
        tmp_path / "p.csv",
    )
    costs = published_costs_from(path, BLOOM_176B, decode_model)
    assert costs[H100_CAPPED].prompt(3000) == pytest.approx(1.3 * costs[H100].prompt(3000))
    assert costs[H100_CAPPED].decode == costs[H100].decode


def test_too_few_measurements_are_refused() -> None:
    """Of a fit as of a table."""
    with pytest.raises(ProfileError, match="two sizes at least"):
        fit_honest([row(512, 1, 0.1, 0.04), row(512, 2, 0.1, 0.04)], BLOOM_176B, FAST)
    with pytest.raises(ProfileError, match="two sizes at least"):
        fit_published([row(512, 1, 0.1, 0.04)])


@pytest.mark.parametrize("model", [BLOOM_176B, LLAMA2_70B])
def test_costs_that_come_along_are_positive(model: LanguageModel) -> None:
    for decode_model in (DecodeModel.PUBLISHED, DecodeModel.BY_BATCH):
        for cost in published_built_in_costs(model, decode_model).values():
            assert min(table(tokens) for table in (cost.prompt, cost.decode) for tokens in (1, 60, 512, 100_000)) > 0.02


def test_llamas_small_prompts_take_longer_on_an_h100() -> None:
    prompt = published_built_in_costs(LLAMA2_70B, DecodeModel.PUBLISHED)[H100].prompt
    assert prompt(64) > prompt(128) > prompt(256) < prompt(512)


@pytest.mark.parametrize(
    ("at", "seconds"),
    [((1,), (1.0,)), ((1, 2), (1.0,)), ((2, 1), (1.0, 2.0)), ((1, 1), (1.0, 2.0)), ((1, 2), (0.0, 1.0))],
)
def test_a_table_without_an_order_is_refused(at: tuple[float, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="a table"):
        InterpolatedTable(at, seconds)


@given(
    st.lists(
        st.tuples(st.integers(1, 10_000), st.floats(0.01, 10)), min_size=2, max_size=9, unique_by=lambda point: point[0]
    ),
    st.integers(0, 8),
    st.floats(0, 1),
)
def test_between_two_measurements_a_table_is_their_line(
    points: list[tuple[int, float]], place: int, share: float
) -> None:
    points = sorted(points)
    table = InterpolatedTable(tuple(map(float, dict(points))), tuple(dict(points).values()))
    (x0, y0), (x1, y1) = points[place % (len(points) - 1) :][:2]
    assert table(x0 + share * (x1 - x0)) == pytest.approx(y0 + share * (y1 - y0))
    cost = PublishedIterationCost(table, table)
    assert min(cost.iteration_s(BatchShape(tokens, 0.0, 1)) for tokens in (1, 20_000)) >= 0.0
