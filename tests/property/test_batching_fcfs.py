"""Whatever is offered, a batch keeps its limits and the order of arrival."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.batching import BatchBuilder, BatchLimits, BatchRow

#: Prompt tokens of a prompt, or None for a decode.
OFFERS = st.lists(st.none() | st.integers(1, 120), max_size=40)


@given(OFFERS, st.integers(1, 12), st.integers(1, 100))
def test_batches_are_first_come_first_served_within_limits(
    offers: list[int | None], max_num_seqs: int, max_prompt_tokens: int
) -> None:
    """The prompts taken are the first ones offered, they fit the cap or are one, and decodes join while there are rows."""
    batch = BatchBuilder(BatchLimits(max_num_seqs, max_prompt_tokens))
    decodes_left_out = 0
    for number, tokens in enumerate(offers):
        if tokens is None:
            if batch.is_full:
                decodes_left_out += 1
            else:
                batch.add_decode(BatchRow(str(number), 9, 1, ()))
        elif batch.takes_prompt(tokens):
            batch.add_prompt(BatchRow(str(number), 0, tokens, ()))
    built = batch.build()
    rows = built.rows if built else ()
    numbers = [int(row.sequence_id) for row in rows]
    assert numbers == sorted(numbers)
    assert len(rows) <= max_num_seqs
    assert decodes_left_out == 0 or len(rows) == max_num_seqs
    assert bool(rows) == bool(offers)
    prompts = [row.num_tokens for row in rows if not row.is_decode]
    assert sum(prompts) <= max_prompt_tokens or len(prompts) == 1
    offered = [tokens for tokens in offers if tokens is not None]
    assert prompts == offered[: len(prompts)]
