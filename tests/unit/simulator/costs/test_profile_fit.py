"""What iterations cost, found again in a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.core.costs.cost_model import BatchShape, pairs
from spotwise.simulator.costs.hardware import BLOOM_176B
from spotwise.simulator.costs.machine_costs import H100, H100_CAPPED, PEAKS, costs_from
from spotwise.simulator.costs.profile_fit import Peaks, ProfileError, fit_honest, measured, read_profile
from tests.unit.simulator.costs.fit_errors import error_between_points, error_on_repeats, predicted
from tests.unit.simulator.costs.profile_rows import HEADER, lines, row, write

GOOD = "llama2-70b,a100-80gb,512,4,128,0.9,0.73,196.25,54.75,7168.9,2\n"


def test_rows_are_read_in_seconds(tmp_path: Path) -> None:
    """Durations of a profile are read from milliseconds into seconds."""
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + GOOD)
    (read,) = read_profile(path)
    assert (read.model, read.hardware, read.tensor_parallel) == ("llama2-70b", "a100-80gb", 2)
    assert (read.prompt_size, read.batch_size, read.prompt_tokens, read.token_size) == (512, 4, 2048, 128)
    assert (read.prompt_s, read.token_s) == (0.19625, 0.05475)


def test_rows_that_mislead_are_left_out_and_counted() -> None:
    """Misleading rows are left out and counted by reason; the others keep their order."""
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


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    """`write` and `read_profile` are inverses, which the other tests rely on."""
    rows = [row(512, 1, 0.1, 0.04), row(512, 64, 9.0, 0.1)]
    assert read_profile(write(rows, tmp_path / "profile.csv")) == rows


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
    """The error has the line's number and what is wrong."""
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
    """The fit finds the costs of pairs and context, and the tables without them."""
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
    """The error has the model and hardware without rows."""
    path = write(lines(prompt_s, token_s), tmp_path / "profile.csv")
    with pytest.raises(ProfileError, match="no rows of bloom-176b on 8 h100-80gb"):
        costs_from(path, BLOOM_176B)


def test_too_few_measurements_are_refused() -> None:
    """A fit needs two sizes, since a line needs two points."""
    with pytest.raises(ProfileError, match="two sizes at least"):
        fit_honest([row(512, 1, 0.1, 0.04), row(512, 2, 0.1, 0.04)], BLOOM_176B, FAST)


def test_errors_are_those_of_rows_that_a_fit_has_not_seen() -> None:
    """None where rows follow the law; a row that does not is seen as long as it is left out."""

    def fit(rows: object) -> object:
        return fit_honest(rows, BLOOM_176B, FAST)  # type: ignore[arg-type]

    assert error_on_repeats(ROWS, fit).prompt == pytest.approx(0.0, abs=1e-6)  # type: ignore[arg-type]
    assert error_on_repeats(ROWS, fit).decode == pytest.approx(0.0, abs=1e-6)  # type: ignore[arg-type]
    between = error_between_points(ROWS, fit)  # type: ignore[arg-type]
    assert between.prompt < 1.0
    assert between.decode < 1.0


def test_what_a_fit_predicts_of_a_row_is_its_batch() -> None:
    cost = fit_honest(ROWS, BLOOM_176B, FAST)
    own = row(512, 8, 0.0001, 0.0001)
    assert predicted(cost, own) == pytest.approx((prompt_s(512, 8), token_s(8, 8 * 576)))
