"""Numerics classes and their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages.numerics import (
    Crossing,
    Numerics,
    dtype_of,
    is_crossing,
    refusal_of_classes,
    with_class,
)
from spotwise.wire.framing import MAX_NUMERICS_CLASS_BYTES

ONE = Numerics("bfloat16", "dot", "3f", "gguf:Q4_1", "torch 2.9")


def test_a_name_has_format_and_order_and_tells_all_else_apart() -> None:
    """Each field counts: two with one name are equal."""
    assert ONE.name.startswith("bfloat16/dot/") and dtype_of(ONE.name) == "bfloat16"
    others = [replace(ONE, **{name: "x"}) for name in ("dtype", "order", "kernels", "quantisation", "backend")]
    assert len({each.name for each in (ONE, *others)}) == 6
    assert replace(ONE).name == ONE.name
    assert replace(ONE, kernels="3fgguf", quantisation=":Q4_1").name != ONE.name


def test_a_name_fits_the_links_and_lists_of_names() -> None:
    """A hello has so many bytes for it; saved tokens have blanks and commas between names."""
    longest = Numerics("bfloat16", "simulated", "k", "gguf:Q4_1", "torch 2.11.0+cu130, NVIDIA H200, of some length")
    assert len(longest.name.encode()) <= MAX_NUMERICS_CLASS_BYTES
    assert not set(longest.name) & set(" ,")


def test_processes_that_compute_nothing_belong_to_every_class() -> None:
    assert is_crossing("a", "b")
    assert not any((is_crossing("a", "a"), is_crossing("", "a"), is_crossing("a", "")))


@pytest.mark.parametrize(
    ("classes", "latest", "expected"),
    [((), "a", ("a",)), (("a",), "a", ("a",)), (("a", "b"), "a", ("b", "a")), (("a",), "", ("a",))],
)
def test_classes_are_in_order_of_their_last_token(
    classes: tuple[str, ...], latest: str, expected: tuple[str, ...]
) -> None:
    assert with_class(classes, latest) == expected


def test_only_the_class_of_the_last_token_may_go_on_where_crossings_are_refused() -> None:
    assert refusal_of_classes(Crossing.REFUSE, ("b", "a"), "a") is None
    assert refusal_of_classes(Crossing.REFUSE, (), "a") is None
    assert refusal_of_classes(Crossing.COUNT, ("a",), "b") is None
    refusal = refusal_of_classes(Crossing.REFUSE, ("a", "b"), "a")
    assert refusal is not None and "numerics class b" in refusal
