"""Settings of the KV transport that cannot work are refused before anything listens."""

from __future__ import annotations

from typing import Any

import pytest

from spotwise.mesh.links.ucx_transfer import TransferSettings


@pytest.mark.parametrize(
    "wrong",
    [{"chunk_bytes": 0}, {"in_flight": 0}, {"exported_bytes": 0}, {"stream_bytes": -1}, {"push_timeout_s": 0.0}],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive"):
        TransferSettings(**wrong)
    assert TransferSettings(stream_bytes=0).stream_bytes == 0
