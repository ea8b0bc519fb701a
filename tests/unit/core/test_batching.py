"""Tests of batching: the rows of an iteration."""

from __future__ import annotations

import pytest

from spotwise.core.costs.batching import BatchBuilder, BatchLimits, BatchRow


def prompt(name: str, tokens: int) -> BatchRow:
    return BatchRow(name, 0, tokens, (0,))


def decode(name: str) -> BatchRow:
    return BatchRow(name, 7, 1, (0,))


def builder(max_num_seqs: int = 8, max_prompt_tokens: int = 100) -> BatchBuilder:
    return BatchBuilder(BatchLimits(max_num_seqs, max_prompt_tokens))


def cutting(max_num_batched_tokens: int, decodes: int = 0, max_prompt_tokens: int = 100) -> BatchBuilder:
    return BatchBuilder(BatchLimits(8, max_prompt_tokens, max_num_batched_tokens), decodes)


def offer(batch: BatchBuilder, name: str, tokens: int) -> int:
    """Offer a prompt to the batch, and add the tokens that it admits."""
    if taken := batch.chunk_tokens(tokens):
        batch.add_prompt(prompt(name, taken))
    return taken


def test_nothing_offered_makes_no_batch() -> None:
    assert builder().build() is None


def test_prompts_join_up_to_the_cap_exactly() -> None:
    """The cap itself is still allowed, one token more is not."""
    batch = builder()
    assert offer(batch, "a", 60)
    assert offer(batch, "b", 40)
    assert not offer(batch, "c", 1)


def test_a_prompt_longer_than_the_cap_runs_alone_among_prompts() -> None:
    """A prompt above the cap runs with decodes but without other prompts, since it would never run otherwise."""
    batch = builder()
    batch.add_decode(decode("d"))
    assert offer(batch, "long", 101)
    assert not offer(batch, "short", 1)
    batch.add_decode(decode("e"))
    assert names(batch) == ["d", "long", "e"]


def test_with_cuts_no_prompt_exceeds_the_cap() -> None:
    batch = BatchBuilder(BatchLimits(8, 100, cuts_prompts=True))
    assert offer(batch, "long", 101) == 100
    batch = BatchBuilder(BatchLimits(8, 100, cuts_prompts=True))
    assert offer(batch, "a", 60) == 60
    assert offer(batch, "b", 60) == 40
    assert offer(batch, "c", 1) == 0


def test_a_long_prompt_joins_no_other_prompt() -> None:
    batch = builder()
    assert offer(batch, "short", 1)
    assert not offer(batch, "long", 101)


def test_once_a_prompt_is_refused_later_ones_are_too_while_decodes_continue() -> None:
    """First come, first served: a small prompt does not pass a large one."""
    batch = builder()
    assert offer(batch, "a", 60)
    assert not offer(batch, "b", 50)
    assert not offer(batch, "c", 1)
    batch.add_decode(decode("d"))
    assert [row.sequence_id for row in batch.rows] == ["a", "d"]


def test_no_row_of_any_kind_beyond_max_num_seqs() -> None:
    """Decodes and prompts count alike toward `max_num_seqs`."""
    batch = builder(max_num_seqs=2)
    batch.add_decode(decode("a"))
    assert not batch.is_full
    assert offer(batch, "b", 5)
    assert batch.is_full
    assert not batch.chunk_tokens(1)


def test_prompts_are_cut_to_what_the_decodes_leave() -> None:
    """Three decodes of ten tokens leave seven; the prompt after the cut one gets none."""
    batch = cutting(10, decodes=3)
    assert offer(batch, "a", 4) == 4
    assert offer(batch, "b", 5) == 3
    assert offer(batch, "c", 1) == 0


def test_a_prompt_that_fits_exactly_is_whole_and_the_last() -> None:
    batch = cutting(10)
    assert offer(batch, "a", 10) == 10
    assert offer(batch, "b", 1) == 0


def test_the_prompt_cap_holds_for_parts_of_prompts_too() -> None:
    """A cap below the tokens of an iteration is the size of the parts."""
    batch = cutting(50, decodes=5, max_prompt_tokens=20)
    assert offer(batch, "long", 90) == 20


def test_a_prompt_gets_a_token_however_many_want_to_decode() -> None:
    assert offer(cutting(8, decodes=100), "a", 9) == 1


@pytest.mark.parametrize(
    ("row", "is_decode"), [(decode("a"), True), (prompt("a", 5), False), (prompt("a", 1), False)], ids=str
)
def test_a_decode_computes_one_token_after_others(row: BatchRow, is_decode: bool) -> None:
    """A prompt of one token is still a prompt."""
    assert row.is_decode is is_decode


def pausing() -> BatchBuilder:
    return BatchBuilder(BatchLimits(8, 100, decodes_pause=True))


def names(batch: BatchBuilder) -> list[str]:
    built = batch.build()
    return [row.sequence_id for row in built.rows] if built else []


@pytest.mark.parametrize(
    ("prompts", "running"),
    [([], "abc"), ([97], "abcp"), ([98], "abp"), ([100], "p"), ([300], "p"), ([50, 49], "apq"), ([60, 60], "abcp")],
)
def test_decodes_that_find_no_token_pause(prompts: list[int], running: str) -> None:
    """Decodes fill what the prompts leave of the cap, the first ones first; without prompts none pauses."""
    batch = pausing()
    for name in "abc":
        batch.add_decode(decode(name))
    for name, tokens in zip("pq", prompts, strict=False):
        offer(batch, name, tokens)
    assert names(batch) == list(running)


def test_the_last_token_of_a_cached_prompt_does_not_pause() -> None:
    """A prompt whose other tokens are cached looks like a decode, and is none."""
    batch = pausing()
    batch.add_decode(decode("a"))
    assert offer(batch, "p", 99)
    batch.add_prompt(decode("cached"))
    assert names(batch) == ["p", "cached"]
