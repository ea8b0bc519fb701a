"""The published answers that ship with the study."""

from __future__ import annotations

from importlib import resources

import orjson

from spotwise.studies.spotserve.golden import golden_cells


def test_the_published_answers_name_their_source() -> None:
    data = (resources.files("spotwise.studies.spotserve") / "golden_answers.json").read_bytes()
    assert len(orjson.loads(data)["source"]) > 20
    assert len(golden_cells()) == 36
