"""Lists of adapters as settings and options give them."""

from __future__ import annotations

import pytest

from spotwise.core.requests.names import named_folders


def test_names_come_with_their_folders() -> None:
    """In the order of the list; blanks and empty entries do not count."""
    assert list(named_folders(" legal=/a/b, , code/v2:1=c=d,")) == [("legal", "/a/b"), ("code/v2:1", "c=d")]
    assert list(named_folders("")) == []


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ("legal", "'legal' is no adapter; write NAME=FOLDER"),
        ("=folder", "is no adapter"),
        ("legal=", "is no adapter"),
        ("-legal=folder", "is no adapter's name"),
        (f"{'a' * 129}=folder", "up to 128"),
        ("legal=one,code=two,legal=three", "'legal' is named twice"),
    ],
)
def test_another_form_is_an_error(listed: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(named_folders(listed))
