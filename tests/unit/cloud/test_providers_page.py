"""Tests that the examples of docs/providers.md do what the page states."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from spotwise.cloud.ec2_client import Ec2Options
from spotwise.cloud.instances import AcquiredInstance, AcquireRequest, InstanceProvider
from spotwise.cloud.local_instances import LocalInstances
from spotwise.core.messages.fleet import Market
from tests.contracts.instances import InstanceProviderContract, Site

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "providers.md").read_text()
RACK = DOCS / "examples" / "rack.py"


def example(heading: str) -> dict[str, Any]:
    """Return what the Python example under a heading defines."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, heading
    defined: dict[str, Any] = {}
    exec(blocks[0], defined)
    return defined


class RackSite:
    instance_type = "box"
    room = 4

    def __init__(self) -> None:
        self._rack = runpy.run_path(str(RACK))["Rack"]
        self._lent: dict[str, tuple[str, AcquiredInstance]] = {}

    async def open(self, mesh: str) -> InstanceProvider:
        rack: InstanceProvider = self._rack(mesh, {f"host-{number}": "box" for number in range(4)}, self._lent)
        return rack


class TestTheExample(InstanceProviderContract):
    @pytest.fixture
    def site(self) -> Site:
        return RackSite()


def test_the_examples_of_both_providers_are_right() -> None:
    local, aws = example("local"), example("aws")
    assert isinstance(local["provider"], LocalInstances)
    assert isinstance(aws["options"], Ec2Options)
    for order in (local["order"], aws["order"]):
        assert isinstance(order, AcquireRequest)
        assert order.market is Market.SPOT


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"token": ""}, "token"),
        ({"token": "a b"}, "token"),
        ({"token": "a" * 65}, "token"),
        ({"instance_types": ()}, "type"),
        ({"instance_types": ("",)}, "type"),
        ({"count": 0}, "1 instance"),
        ({"tags": {"spotwise:mesh": "another"}}, "spotwise:mesh"),
        ({"tags": {"aws:name": "x"}}, "aws:name"),
    ],
)
def test_an_order_that_no_provider_could_fill_is_refused(wrong: dict[str, Any], says: str) -> None:
    """The message names what is wrong; the mesh's own tags cannot be given by a caller."""
    right: dict[str, Any] = {"token": "one", "instance_types": ("box",), "market": Market.SPOT, "count": 1}
    AcquireRequest(**right)
    with pytest.raises(ValueError, match=says):
        AcquireRequest(**{**right, **wrong})


def test_a_mesh_needs_a_name_that_can_mark() -> None:
    with pytest.raises(ValueError, match="mesh"):
        LocalInstances("", example("local")["options"])
