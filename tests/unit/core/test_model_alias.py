"""Further names of a model or adapter: how they are listed, and what they may stand for."""

from __future__ import annotations

import pytest

from spotwise.core.requests.names import model_aliases, require_aliases_of


def test_aliases_are_read_from_a_list() -> None:
    assert model_aliases(" gpt-4o=a/b , *=law,x=k=v,") == {"gpt-4o": "a/b", "*": "law", "x": "k=v"}


@pytest.mark.parametrize("wrong", ["gpt-4o", "=m", "a=", "a b=m", "a=m,a=n"])
def test_a_wrong_list_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="alias"):
        model_aliases(wrong)


@pytest.mark.parametrize(
    ("aliases", "words"),
    [({"a": "n"}, "'a' stands for 'n', which is not served; served are 'm', 'law'"), ({"law": "m"}, "'law' is served")],
)
def test_aliases_that_mean_nothing_are_refused(aliases: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        require_aliases_of(("m", "law"), aliases)


def test_aliases_of_what_is_served_are_accepted() -> None:
    require_aliases_of(("m", "law"), {"gpt-4o": "m", "claude": "law"})
