"""The scheduler's settings of pools."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spotwise.core.scheduler.policy import PoolPolicy


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_pending_prompt_tokens": -1},
        {"max_remaining_tokens": -1},
        {"repurpose_share": 0.0},
        {"repurpose_share": 1.1},
        {"repurpose_window_s": 0.0},
        {"prefix_spans": -1},
        {"interruption_s": -0.5},
        {"interruption_s": math.inf},
        {"token_s": 0.0},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PoolPolicy(**wrong)
