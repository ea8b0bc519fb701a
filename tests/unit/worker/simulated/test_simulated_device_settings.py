"""Which devices a process of simulated groups is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from spotwise.worker.simulated.groups.serve import SimulatedDeviceSettings


def test_each_device_of_a_group_has_its_leader_and_spare_ones_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = SimulatedDeviceSettings(groups="a,b", spares="s", stages=2, model_dir=tmp_path)
    assert settings.first_leaders == {
        "a-device-0": "a",
        "a-device-1": "a",
        "b-device-0": "b",
        "b-device-1": "b",
        "s": "",
    }
    assert SimulatedDeviceSettings(model_dir=tmp_path).first_leaders == {}
    with pytest.raises(ValidationError):
        SimulatedDeviceSettings(groups="a,,b", model_dir=tmp_path)
