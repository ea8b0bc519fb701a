"""The numbers that ship with the simulator as JSON files."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import orjson
import pytest
from pydantic import ValidationError

from spotwise.simulator.packaged_data import read_packaged

FILES = [
    ("spotwise.simulator.costs", "built_in_costs.json"),
    ("spotwise.simulator.loads", "azure_percentiles.json"),
]


@dataclass(frozen=True)
class Unlike:
    """No file has this field."""

    nowhere: int


@pytest.mark.parametrize(("package", "file"), FILES)
def test_a_data_file_names_its_source(package: str, file: str) -> None:
    assert len(orjson.loads((resources.files(package) / file).read_bytes())["source"]) > 20


def test_a_file_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match="nowhere"):
        read_packaged(*FILES[0], Unlike)
