"""Every cloud that the settings name is opened."""

from __future__ import annotations

from typing import get_args

import pytest

from spotwise.spot_watcher.clouds import _candidates, cloud_of_this_machine
from spotwise.spot_watcher.settings import SpotWatcherSettings
from tests.property.test_metadata_answers import CLOUDS

NAMES = [
    name for name in get_args(SpotWatcherSettings.model_fields["cloud"].annotation) if name not in ("none", "auto")
]


def settings(cloud: str) -> SpotWatcherSettings:
    """Settings of a machine that may be in any cloud."""
    return SpotWatcherSettings(cloud=cloud, node_name="node", kubernetes_url="http://127.0.0.1:9")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
async def test_a_configured_cloud_is_the_one_of_that_name(name: str) -> None:
    async with cloud_of_this_machine(settings(name)) as here:
        assert here is not None, f"add the class of {name} to services/spotwise/spot_watcher/clouds.py"
        assert here[0].name == name


def test_detection_tries_every_cloud_and_so_do_the_tests() -> None:
    """With malformed answers of each."""
    tried = [cloud.name for cloud, _, _ in _candidates(settings("auto"))]
    assert tried == NAMES, "give clouds.py the settings' clouds, in the settings' order"
    untried = sorted(set(NAMES) - set(CLOUDS))
    assert not untried, f"add {', '.join(untried)} to CLOUDS of tests/property/test_metadata_answers.py"
