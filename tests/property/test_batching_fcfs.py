"""Whatever is offered, a batch keeps its limits and the order of arrival."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchBuilder, BatchLimits, BatchRow

#: Prompt tokens of a prompt, or None for a decode.
OFFERS = st.lists(st.none() | st.integers(1, 120), max_size=40)


def offer(batch: BatchBuilder, offers: list[int | None]) -> None:
    """Offer prompts of so many tokens, and decodes, until the batch is full."""
    for number, tokens in enumerate(offers):
        if batch.is_full:
            break
        if tokens is None:
            batch.add_decode(BatchRow(str(number), 9, 1, ()))
        elif taken := batch.chunk_tokens(tokens):
            batch.add_prompt(BatchRow(str(number), 0, taken, ()))


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
        elif taken := batch.chunk_tokens(tokens):
            batch.add_prompt(BatchRow(str(number), 0, taken, ()))
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


@given(OFFERS, st.integers(1, 12), st.integers(1, 100))
def test_decodes_pause_only_where_prompts_fill_the_cap(
    offers: list[int | None], max_num_seqs: int, max_prompt_tokens: int
) -> None:
    """With pauses the same prompts run; beside them the first decodes, to the cap exactly where any pauses."""
    batches = [
        BatchBuilder(BatchLimits(max_num_seqs, max_prompt_tokens, decodes_pause=pause)) for pause in (False, True)
    ]
    for batch in batches:
        offer(batch, offers)
    going_on, pausing = (built.rows if built else () for built in (batch.build() for batch in batches))
    prompts, decodes = ([row for row in going_on if row.is_decode is is_decode] for is_decode in (False, True))
    kept = [row for row in pausing if row.is_decode]
    assert [row for row in pausing if not row.is_decode] == prompts
    assert kept == decodes[: len(kept)]
    prompt_tokens = sum(row.num_tokens for row in prompts)
    room = max(0, max_prompt_tokens - prompt_tokens) if prompts else len(decodes)
    assert len(kept) == min(room, len(decodes))


@given(OFFERS, st.integers(1, 12), st.integers(1, 100), st.integers(0, 60))
def test_parts_of_prompts_fill_what_the_decodes_leave(
    offers: list[int | None], max_num_seqs: int, max_prompt_tokens: int, above_rows: int
) -> None:
    """No batch has more tokens than allowed; all prompts but the last are whole; the first offered gets a token."""
    limits = BatchLimits(max_num_seqs, max_prompt_tokens, max_num_seqs + above_rows)
    batch = BatchBuilder(limits, decodes=offers.count(None))
    offer(batch, offers)
    rows = batch.rows
    prompts = [(row.num_tokens, offers[int(row.sequence_id)]) for row in rows if row.first_position == 0]
    assert sum(row.num_tokens for row in rows) <= max_num_seqs + above_rows
    assert sum(taken for taken, _ in prompts) <= max_prompt_tokens
    assert all(taken == wanted for taken, wanted in prompts[:-1])
    offered = [number for number, tokens in enumerate(offers) if tokens is not None]
    if offered and offered[0] < max_num_seqs:
        assert prompts, "the first prompt got no token"
        assert [wanted for _, wanted in prompts] == [offers[number] for number in offered[: len(prompts)]]
