"""Fleet files: what they say, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from types import NoneType
from typing import get_args

import pytest

from spotwise.core.messages.fleet import Market
from spotwise.files.fleet_file import PROVIDERS, FleetFile, FleetFileError, MarketTerms, read_fleet

RIGHT = """
provider = "local"
[local]
limit = 2
[[types]]
name = "small"
spot = {price_per_h = 0.5, most = 3}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_a_short_file_has_the_rest_by_default(tmp_path: Path) -> None:
    fleet = read_fleet(write(tmp_path, RIGHT))
    (kind,) = fleet.types
    assert kind.terms(Market.SPOT) == MarketTerms(price_per_h=0.5, most=3)
    assert kind.terms(Market.ON_DEMAND) is kind.memory is kind.profile is None
    assert (kind.devices, kind.start_s, kind.zones, kind.command) == (1, 30.0, (), ())
    assert (fleet.notice_s, fleet.price_list(), fleet.type("small"), fleet.type("other")) == (30.0, None, kind, None)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text("{}")
    (tmp_path / "prices.csv").write_text("time_s,instance_type,market,price_per_h\n0,small,spot,0.4\n")
    text = (
        'prices = "prices.csv"\ngrace_s = 0\n' + RIGHT + 'profile = "small.json"\nmemory = "2GiB"\nzones = ["a", "b"]\n'
    )
    fleet = read_fleet(write(tmp_path, text))
    assert (fleet.types[0].profile, fleet.types[0].memory) == (tmp_path / "small.json", 2 * 2**30)
    prices = fleet.price_list()
    assert prices is not None and prices.types == ("small",)
    assert fleet.notice_s == 0.0


def test_the_table_of_aws_has_the_launch_options(tmp_path: Path) -> None:
    """A notice of two minutes is what EC2 gives."""
    text = RIGHT.replace('"local"', '"aws"').replace(
        "[local]\nlimit = 2", '[aws]\nlaunch_template = "lt-1"\nsubnets = ["s"]'
    )
    fleet = read_fleet(write(tmp_path, text))
    assert fleet.aws is not None and (fleet.aws.launch_template, fleet.aws.subnets) == ("lt-1", ("s",))
    assert fleet.notice_s == 120.0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("provider = ", "no TOML file"),
        (RIGHT.replace('"local"', '"moon"'), "provider"),
        (RIGHT.replace("[local]\nlimit = 2", ""), r"no table \[local\]; add one with limit"),
        (RIGHT.replace('name = "small"', ""), "types.0.name: the key is missing"),
        (RIGHT.replace('"small"', '"a b"'), "types.0.name"),
        (RIGHT.replace("spot", "spots"), "no such key|neither spot nor on_demand"),
        (RIGHT.replace("spot = {price_per_h = 0.5, most = 3}", ""), "neither spot nor on_demand"),
        (RIGHT.replace("0.5", "-0.5"), "types.0.spot.price_per_h"),
        (RIGHT.replace("most = 3", "most = 0"), "types.0.spot.most"),
        (RIGHT + "memory = 'lots'", "types.0.memory"),
        (RIGHT + "profile = 'none.json'", "types.small.profile: there is no file .*spotwise profile"),
        ("prices = 'none.csv'\n" + RIGHT, "none.csv cannot be read"),
        (RIGHT + RIGHT.partition("limit = 2")[2], "small is there twice"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: str, says: str) -> None:
    path = write(tmp_path, wrong)
    with pytest.raises(FleetFileError, match=says) as refused:
        read_fleet(path)
    assert str(tmp_path) in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match=r"fleet\.toml cannot be read"):
        read_fleet(tmp_path / "fleet.toml")


def test_every_provider_has_its_table() -> None:
    """A name, a table of that name in the file, and the table's terms, which name a key of it."""
    names = get_args(FleetFile.model_fields["provider"].annotation)
    assert set(names) == set(PROVIDERS), "name each provider in FleetFile.provider and in PROVIDERS"
    for name, terms in PROVIDERS.items():
        assert get_args(FleetFile.model_fields[name].annotation) == (terms, NoneType)
        assert terms.needs in terms.model_fields
