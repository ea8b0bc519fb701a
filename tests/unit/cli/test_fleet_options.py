"""The options of `spotwise up` about a fleet: what is refused, in one line, and what is completed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.fleet_options import fleet_options
from spotwise.cli.launch.given_options import FleetChoice
from spotwise.cli.launch.options import FleetOptions
from spotwise.cli.launch.run_folder import run_folder
from spotwise.files.fleet_file import read_fleet
from tests.unit.cli.builders import write_profile
from tests.unit.cli.command_line import RefusalOf

FLEET = """provider = "local"
[local]
limit = 3
[[types]]
name = "small"
profile = "profile.json"
spot = {price_per_h = 0.4, most = 3}
on_demand = {price_per_h = 1.2, most = 1}
[[types]]
name = "wide"
profile = "profile.json"
devices = 2
on_demand = {price_per_h = 2.0, most = 1}
"""
AWS = FLEET.replace('provider = "local"', 'provider = "aws"').replace(
    "[local]\nlimit = 3", '[aws]\nlaunch_template = "lt"'
)
UNPROFILED = FLEET.replace('name = "wide"\nprofile = "profile.json"\n', 'name = "wide"\n')
ON_DEMAND_ALONE = FLEET.replace("spot = {price_per_h = 0.4, most = 3}\n", "")
TRACE = "0,add,node-1\n5000,remove,node-1,2000\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of fleet files, with the profile that they name, and a trace."""
    write_profile(tmp_path / "profile.json")
    for name, text in {
        "fleet.toml": FLEET,
        "aws.toml": AWS,
        "unprofiled.toml": UNPROFILED,
        "on-demand.toml": ON_DEMAND_ALONE,
        "none.toml": FLEET.replace("limit = 3", "limit = 0"),
        "no-toml.toml": "provider",
        "cloud.toml": FLEET.replace('"local"', '"moon"'),
        "trace.csv": TRACE,
        "wrong.csv": "0,come,node-1\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--fleet @missing.toml", "missing.toml cannot be read: No such file or directory; name an existing"),
        ("--fleet @no-toml.toml", "is no TOML file"),
        ("--fleet @cloud.toml", "provider: Input should be 'local' or 'aws'"),
        ("--fleet @unprofiled.toml", "types.wide has no profile"),
        ("--fleet @none.toml", "local.limit is 0, so that nothing can be bought; set at least 1"),
        ("--trace @missing.csv", "missing.csv"),
        ("--trace @wrong.csv", "wrong.csv, line 1"),
        ("--fleet @aws.toml --trace @trace.csv", "has the provider aws"),
        ("--fleet @on-demand.toml --trace @trace.csv", "--trace takes spot instances away"),
        ("--fleet @fleet.toml --compress 2", "--compress and --grace are about a trace; add --trace FILE"),
        ("--fleet @fleet.toml --grace 2", "--compress and --grace are about a trace; add --trace FILE"),
        ("--compress 2 --budget 3", "--compress, --budget: only a mesh whose machines are bought has that"),
        ("--on-demand-floor 1", "--on-demand-floor: only a mesh whose machines are bought has that"),
        ("--spares 1 --latency-target 2", "--spares, --latency-target: only a mesh"),
        ("--fleet @fleet.toml --budget 0", "--budget 0: nothing could be bought"),
        ("--fleet @fleet.toml --budget 0.3", "--budget 0.3: the cheapest instance of"),
        ("--fleet @fleet.toml --on-demand-floor 3", "have 2 on-demand instances at most"),
        ("--fleet @fleet.toml --latency-target -1", "--latency-target"),
        (
            "--fleet @fleet.toml --mixed-workers 2",
            "the planner decides what serves; leave out workers and devices",
        ),
        ("--fleet @fleet.toml --parallel 1,1,1", "the planner decides what serves"),
        ("--trace @trace.csv --devices 3", "the planner decides what serves"),
        ("--fleet @fleet.toml --engine simulated", "types.wide.devices is more"),
    ],
)
def test_what_does_not_go_together_is_refused(refusal_of: RefusalOf, files: Path, options: str, said: str) -> None:
    assert said in refusal_of(f"up {options}")
    assert not list(files.rglob("*.log"))


def given(file: Path | None, trace: Path | None, **options: float) -> FleetOptions | None:
    """Check options, those that are not given being unset."""
    paths = {name: path for name, path in (("file", file), ("trace", trace)) if path is not None}
    return fleet_options(run_folder("default"), FleetChoice.model_validate(paths | options))


def test_without_file_and_trace_nothing_is_bought() -> None:
    assert given(None, None) is None


def test_paths_are_absolute_and_devices_counted(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there can be at once: each shares memory and cores with the others."""
    monkeypatch.chdir(files)
    options = given(Path("fleet.toml"), Path("trace.csv"), compress=60.0, grace_s=5.0, budget_per_h=2.0)
    assert options is not None
    assert (options.file, options.trace) == (files / "fleet.toml", files / "trace.csv")
    assert options.most_devices == 2 * 3
    assert (options.compress, options.grace_s, options.budget_per_h) == (60.0, 5.0, 2.0)
    assert (options.on_demand_floor, options.spares) == (0, None)
    assert options.folder == run_folder("default").path / "instances"


def test_a_target_of_no_seconds_is_not_the_default(files: Path) -> None:
    """It asks for the fastest; without one the planner's own default holds."""
    fastest, usual = given(files / "fleet.toml", None, latency_target_s=0.0), given(files / "fleet.toml", None)
    assert fastest is not None and usual is not None
    assert (fastest.latency_target_s, usual.latency_target_s) == (0.0, None)


def test_a_trace_alone_is_of_devices_of_this_computer(files: Path) -> None:
    """By a fleet file that comes with the program, whose type has a profile."""
    options = given(None, files / "trace.csv")
    assert options is not None
    fleet = read_fleet(options.file)
    assert fleet.provider == "local"
    assert [each.profile is not None for each in fleet.types] == [True]


def test_requests_wait_until_the_first_instance_is_late_unless_the_environment_says(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the type that takes longest to start, and a minute more; each of the two settings is the user's where it is set."""
    names = ("SPOTWISE_MAX_UNREADY_S", "SPOTWISE_MAX_QUEUE_S")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    slow = files / "slow.toml"
    slow.write_text(FLEET.replace("devices = 2", "devices = 2\nstart_s = 50"))

    def waits() -> tuple[float | None, float | None]:
        options = given(slow, None)
        assert options is not None
        return options.max_unready_s, options.max_queue_s

    assert waits() == (60.0 + 3 * 50.0,) * 2
    monkeypatch.setenv(names[0], "5")
    assert waits() == (None, 210.0)
    monkeypatch.setenv(names[1], "5")
    assert waits() == (None, None)


def test_a_price_file_may_lower_prices_below_the_budget(files: Path) -> None:
    """Then no budget is known to be too small."""
    (files / "prices.csv").write_text("time_s,instance_type,market,price_per_h\n0,small,spot,0.1\n")
    priced = files / "priced.toml"
    priced.write_text(FLEET.replace('provider = "local"', 'provider = "local"\nprices = "prices.csv"'))
    assert given(priced, None, budget_per_h=0.2) is not None
    with pytest.raises(OptionError, match="--budget"):
        given(files / "fleet.toml", None, budget_per_h=0.2)
