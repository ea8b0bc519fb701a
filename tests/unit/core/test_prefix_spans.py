"""The names of a prompt's beginnings."""

from __future__ import annotations

from itertools import islice

from spotwise.core.requests.prefixes import prefix_spans, span_ends


def test_ends_are_close_at_first_and_grow() -> None:
    """Span ends grow by 64 tokens eight times, then by twice as many for each further eight."""
    ends = list(islice(span_ends(), 17))
    assert ends[:9] == [64, 128, 192, 256, 320, 384, 448, 512, 640]
    assert ends[15:] == [1536, 1792]


def test_prompts_that_begin_alike_have_the_first_names_in_common() -> None:
    shared = list(range(200))
    one, other = prefix_spans("m", [*shared, *[1] * 100]), prefix_spans("m", [*shared, *[2] * 100])
    assert len(one) == len(other) == 4
    assert one[:3] == other[:3]
    assert one[3] != other[3]


def test_a_difference_in_the_first_token_changes_all_names() -> None:
    """Each name covers the whole prefix and the model."""
    names = [prefix_spans("m", [first, *range(200)]) for first in (1, 2)] + [prefix_spans("n", [1, *range(200)])]
    assert len({name for spans in names for name in spans}) == 9


def test_a_salt_changes_all_names() -> None:
    names = [prefix_spans("m", range(200), salt) for salt in ("", "a", "b")]
    assert len({name for spans in names for name in spans}) == 9


def test_short_prompts_have_none_and_long_ones_few() -> None:
    """A prompt below 64 tokens has no spans, and longer ones have eight for each doubling."""
    assert prefix_spans("m", [1] * 63) == ()
    assert len(prefix_spans("m", [1] * 64)) == 1
    assert len(prefix_spans("m", [1] * 131_072)) == 64


def test_names_are_the_same_in_every_process() -> None:
    """Gateways of different machines mean the same by them."""
    assert prefix_spans("m", range(64)) == (PINNED,)


#: By another implementation: sha256 of the name and 64 little-endian 64-bit numbers, its first 8 bytes, little-endian.
PINNED = 0x4FEB97216BFA36CB
