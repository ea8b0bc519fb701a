"""A request's ledger as `spotwise explain` shows it."""

from __future__ import annotations

from spotwise.cli.explain import _table
from spotwise.core.messages.mesh import LedgerEntry


def entry(stage: str, at_s: float, member: str = "w", epoch: int = 1, **facts: str | int | float) -> LedgerEntry:
    return LedgerEntry("r", epoch, stage, member, at_s, tuple(facts.items()))


def rows(*entries: LedgerEntry) -> list[list[str]]:
    table = _table("r", [*entries])
    return [list(cells) for cells in zip(*(column._cells for column in table.columns), strict=True)]  # type: ignore[misc]


def test_each_thing_that_happened_is_a_row() -> None:
    reported = rows(entry("prefilled", 10.0, prefill_s=0.25, prompt_tokens=7), entry("failed", 10.5, reason="no luck"))
    assert reported == [
        ["+0.0 ms", "1", "prefilled", "w", "prefill: 250.0 ms\nprompt tokens: 7"],
        ["+500.0 ms", "1", "failed", "w", "reason: no luck"],
    ]


def test_moves_of_kv_one_after_another_are_one_row() -> None:
    """Moves of another worker or another attempt have rows of their own, and a single move's row has all its facts."""
    reported = rows(
        entry("prefilled", 10.0),
        entry("swapped_out", 11.0, blocks=3, known_blocks=1),
        entry("swapped_in", 12.0, blocks=4, known_blocks=0),
        entry("swapped_out", 13.5, blocks=1, known_blocks=3),
        entry("swapped_out", 14.0, member="x", epoch=2, blocks=5, known_blocks=2),
        entry("decoded", 15.0),
    )
    assert [row[2] for row in reported] == ["prefilled", "swapped_out\nswapped_in", "swapped_out", "decoded"]
    assert reported[1][0] == "+1,000.0 ms"
    assert reported[1][4] == "swapped out: 2 times\nswapped in: 1 times\nblocks: 8\nwithin: 2,500.0 ms"
    assert reported[2][3:] == ["x", "blocks: 5\nknown blocks: 2"]
