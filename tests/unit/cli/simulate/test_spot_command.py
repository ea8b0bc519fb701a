"""`spotwise simulate spot`, on a fleet and a load of a minute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from spotwise.core.costs.cost_profile import BUILT_IN, MeasuredRange
from spotwise.files.cost_profile import profile_as_dict
from tests.unit.cli.command_line import CommandLine, Ended

SYSTEMS = ["spotwise", "restart", "rerouting"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two instances, of which one leaves and another comes; prices that double; a request a second."""
    lines = "0,add,a\n0,add,b\n30000,remove,a\n40000,add,c\n60000,remove,c\n"
    (tmp_path / "fleet.csv").write_text(lines)
    requests = "".join(f"2026-01-01 00:00:{second:02},{200 + 10 * second},{5 + second % 7}\n" for second in range(60))
    (tmp_path / "load.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + requests)
    rows = "0,big,east,spot,36\n20,big,east,spot,72\n0,big,west,spot,360\n0,big,,on_demand,3600\n0,small,,spot,1\n"
    (tmp_path / "prices.csv").write_text("time_s,instance_type,zone,market,price_per_h\n" + rows)
    (tmp_path / "nodes.csv").write_text("node,zone,market\nb,,on_demand\nc,west,spot\n")
    (tmp_path / "machine.json").write_bytes(orjson.dumps(profile_as_dict(BUILT_IN)))
    return tmp_path


def simulate(spotwise: CommandLine, folder: Path, options: str = "", trace: str = "fleet.csv") -> Ended:
    named = options.replace("@", f"{folder}/")
    return spotwise(*f"simulate spot --jobs 1 --trace {folder}/{trace} {named}".split())


def test_systems_stand_side_by_side_with_their_bills(spotwise: CommandLine, folder: Path) -> None:
    """All figures are printed, drawn, and in the file; the bill follows each instance's zone, market and prices."""
    own = "--load @load.csv --profile @machine.json --model llama2-70b --seed 3"
    paid = "--prices @prices.csv --instance-type big --zone east --nodes @nodes.csv"
    ended = simulate(spotwise, folder, f"{own} {paid} --json @fleet.json --plot @fleet.png")
    assert ended.status == 0, ended.stderr
    for text in (
        *SYSTEMS,
        "60 requests before the trace's end, at their own times",
        "bill, $",
        "latency, p99",
        "prices.csv",
    ):
        assert text in ended.stdout
    assert "assumed" not in ended.stdout
    assert (folder / "fleet.png").stat().st_size > 10_000
    document = orjson.loads((folder / "fleet.json").read_bytes())
    assert document["trace"]["instances"] == [[0.0, 2], [30.0, 1], [40.0, 2], [60.0, 1]]
    assert (document["least_instances"], document["load"]["requests"]) == (1, 60)
    assert [each["system"] for each in document["systems"]] == SYSTEMS
    for each in document["systems"]:
        assert each["served"] == 60 and each["unfinished"] == []
        assert each["open_requests"][-1][1] == 0
        spot = 20 * 0.01 + 10 * 0.02 + 20 * 0.1
        assert each["bill_usd"] == pytest.approx(spot + each["ended_s"] * 1.0)
        assert (each["spot_s"], each["on_demand_s"]) == (50.0, each["ended_s"])


def test_a_load_beyond_the_profile_is_marked(spotwise: CommandLine, folder: Path) -> None:
    measured = MeasuredRange(500, 250.0, 64, 10_000.0)
    profile = replace(BUILT_IN, name="mine", measured=measured)
    (folder / "machine.json").write_bytes(orjson.dumps(profile_as_dict(profile)))
    own = "--load @load.csv --profile @machine.json --model llama2-70b --systems spotwise --json @fleet.json"
    ended = simulate(spotwise, folder, own)
    assert ended.status == 0, ended.stderr
    assert "48.3% of the prompts are longer than 500 tokens" in " ".join(ended.stdout.split())
    beyond = orjson.loads((folder / "fleet.json").read_bytes())["beyond_profile"]
    assert beyond["measured"]["prompt_tokens"] == 500
    assert (beyond["longer_prompts"], beyond["longer_contexts"]) == (pytest.approx(29 / 60), 0.0)


FLEET = """provider = "local"
[local]
limit = 3
[[types]]
name = "big"
profile = "machine.json"
start_s = 5
spot = {price_per_h = 36, most = 2}
on_demand = {price_per_h = 72, most = 1}
"""


def test_a_fleet_file_lets_the_planner_buy(spotwise: CommandLine, folder: Path) -> None:
    """Instances are bought for the load, of nodes that are there or on demand, and the bill is the market's."""
    (folder / "fleet.toml").write_text(FLEET)
    own = "--fleet @fleet.toml --load @load.csv --model llama2-70b --spares 0 --latency-target 100 --hold 5"
    ended = simulate(spotwise, folder, f"{own} --notice 10 --json @o.json --plot @o.png")
    assert ended.status == 0, ended.stderr
    assert "big at 36 $/h spot (at most 2), 72 $/h on demand (at most 1)" in " ".join(ended.stdout.split())
    assert (folder / "o.png").stat().st_size > 10_000
    document = orjson.loads((folder / "o.json").read_bytes())
    assert document["bought"] and [each["system"] for each in document["systems"]] == ["spotwise", "restart"]
    spotwise_run = document["systems"][0]
    assert spotwise_run["served"] == 60 and spotwise_run["spot_s"] > 0
    per_s = spotwise_run["spot_s"] * 0.01 + spotwise_run["on_demand_s"] * 0.02
    assert spotwise_run["bill_usd"] == pytest.approx(per_s)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--spares 1", "--spares: only a fleet that is bought has that; add --fleet FILE"),
        ("--fleet @fleet.toml --price 3", "--price: --fleet"),
        ("--fleet @fleet.toml --model llama2-70b --systems rerouting", "it chooses no configuration"),
        ("--fleet @fleet.toml", "say which model was profiled with --model"),
        ("--fleet @none.toml", "--fleet: "),
        ("--fleet @fleet.toml --model llama2-70b --budget 0", "--budget 0: nothing could be bought"),
        ("--fleet @fleet.toml --model llama2-70b --budget 30", "--budget 30: the cheapest instance of"),
        ("--fleet @fleet.toml --model llama2-70b --on-demand-floor 2", "--on-demand-floor 2: the types of"),
        ("--fleet @two.toml --model llama2-70b", "a simulated fleet has one type, and the file has 2"),
        ("--fleet @bare.toml --model llama2-70b", "types.big has no profile"),
    ],
)
def test_a_fleet_that_cannot_be_bought_is_refused(spotwise: CommandLine, folder: Path, options: str, said: str) -> None:
    (folder / "fleet.toml").write_text(FLEET)
    (folder / "bare.toml").write_text(FLEET.replace('profile = "machine.json"\n', ""))
    (folder / "two.toml").write_text(FLEET + '[[types]]\nname = "b"\nspot = {price_per_h = 1, most = 1}\n')
    ended = simulate(spotwise, folder, options)
    assert (ended.status, said in " ".join(ended.stderr.split())) == (2, True), ended.stderr


def test_a_trace_alone_is_enough(spotwise: CommandLine, folder: Path) -> None:
    ended = simulate(spotwise, folder, "--systems spotwise --json @fleet.json")
    assert ended.status == 0, ended.stderr
    assert "assumed: the machine (--profile), the load (--load, --rate)" in ended.stdout
    assert "about Llama2-70B on a DGX-H100" in ended.stdout and "no prices" in ended.stdout
    (only,) = orjson.loads((folder / "fleet.json").read_bytes())["systems"]
    assert only["bill_usd"] is None and only["served"] > 20


@pytest.mark.parametrize(
    "lines", ["0,add,a\n20000,remove,a\n", "0,add,a\n60000,add,b\n"], ids=["to nothing", "too small"]
)
def test_a_fleet_that_cannot_serve_ends_with_a_report(spotwise: CommandLine, folder: Path, lines: str) -> None:
    """Nothing is left after 20 s; or an instance is too small for the model. What was not served is said and listed."""
    (folder / "small.csv").write_text(lines + "60000,add,z\n")
    memory = "--memory 40GiB" if "b" in lines else ""
    ended = simulate(spotwise, folder, f"--load @load.csv --drain 9 {memory} --json @o.json", "small.csv")
    assert ended.status == 0, ended.stderr
    said = " ".join(ended.stdout.split())
    if memory:
        assert "requests are not served: no configuration of llama2-70b fits the 3 instances that are left" in said
    else:
        assert "requests are not served: 1 instance had not answered them 9 s after the trace's end" in said
    for each in orjson.loads((folder / "o.json").read_bytes())["systems"]:
        assert each["ended_s"] == 69.0
        assert each["served"] + len(each["unfinished"]) == 60
        assert all(set(request) == {"arrived_s", "output_tokens"} for request in each["unfinished"])
    assert ("does not fit all the trace's instances" in ended.stdout) == bool(memory)


@pytest.mark.parametrize(
    ("options", "said", "status"),
    [
        ("--load @none.csv", "none.csv cannot be read", 2),
        ("--load @prices.csv", "prices.csv, line 1: no column TIMESTAMP", 2),
        ("--prices @load.csv", "load.csv, line 1: no column time_s", 2),
        ("--prices @prices.csv", "--instance-type: big, small", 2),
        ("--prices @prices.csv --instance-type tiny", "--instance-type 'tiny'", 2),
        ("--prices @prices.csv --instance-type big", "no price of big, spot; it has them in east, west", 2),
        ("--prices @prices.csv --price 3", "--price: --prices has all prices", 2),
        ("--zone east", "--zone: there are no prices", 2),
        ("--nodes @fleet.csv", "fleet.csv, line 1: no column node", 2),
        ("--profile @machine.json", "say which model was profiled with --model", 2),
        ("--profile @load.csv --model llama2-70b", "--profile", 2),
        ("--model gpt-20b", "--model GPT-20B: the profile is of a model with 327,680 bytes", 2),
        ("--model none", "--model 'none' is no folder", 2),
        ("--between 40,10", "--between '40,10': write two times within the trace's 60 s", 2),
        ("--between x", "--between 'x'", 2),
        ("--systems spotwise,foo", "--systems 'foo': choose of spotwise, restart, rerouting, eager", 2),
        ("--memory much", "--memory 'much' is no size", 2),
        ("--network 0", "--network '0' is no size", 2),
        ("--drain -1", "--drain", 2),
        ("--plot @fleet.txt", "--plot", 2),
    ],
)
def test_a_wrong_input_is_named(spotwise: CommandLine, folder: Path, options: str, said: str, status: int) -> None:
    ended = simulate(spotwise, folder, options)
    assert (ended.status, said in ended.stderr) == (status, True), ended.stderr


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("0,add,a\n1,remove,b\n", "line 2: b goes and is not there"),
        ("0,add\n", "line 1: '0,add' is not milliseconds,add|remove,node"),
        ("0,add,a\n", "it ends at 0 s; write a last line"),
    ],
)
def test_a_wrong_trace_is_named(spotwise: CommandLine, folder: Path, lines: str, said: str) -> None:
    (folder / "wrong.csv").write_text(lines)
    ended = simulate(spotwise, folder, trace="wrong.csv")
    assert ended.status in (1, 2) and "wrong.csv" in ended.stderr and said in ended.stderr


def test_a_part_of_a_trace_may_be_taken(spotwise: CommandLine, folder: Path) -> None:
    ended = simulate(spotwise, folder, "--between 35,60 --rate 2 --systems rerouting --json @o.json")
    assert ended.status == 0, ended.stderr
    document = orjson.loads((folder / "o.json").read_bytes())
    assert document["trace"] == {"name": "fleet 35-60 s", "end_s": 25.0, "instances": [[0.0, 1], [5.0, 2], [25.0, 2]]}


def test_instances_that_come_late_load_their_weights_and_before_them_nothing_serves(
    spotwise: CommandLine, folder: Path
) -> None:
    (folder / "late.csv").write_text("20000,add,a\n400000,add,b\n")
    ended = simulate(spotwise, folder, "--rate 0.1 --systems spotwise --json @o.json", "late.csv")
    assert ended.status == 0, ended.stderr
    (only,) = orjson.loads((folder / "o.json").read_bytes())["systems"]
    weights = 135 * 2**30
    assert only["changes"][0]["storage_bytes"] == pytest.approx(weights, rel=1e-6)
    assert "135.0 GiB" in ended.stdout
    assert only["latency_s"]["max"] > 100.0 and only["unfinished"] == []
    nothing = simulate(spotwise, folder, "--rate 1 --between 0,15", "late.csv")
    assert nothing.status == 0 and "the trace, or this part of it, has no instance" in nothing.stdout


def test_a_cluster_is_billed_by_prices_over_time(spotwise: CommandLine, folder: Path) -> None:
    """`simulate run` takes the same files; machines that leave are paid until they are gone."""
    options = (
        f"--profile {folder}/machine.json --trace {folder}/load.csv --arrivals trace --jobs 1 --json {folder}/r.json"
    )
    prices = f"--prices {folder}/prices.csv --instance-type big --zone east"
    ended = spotwise(*f"simulate run {options} {prices} --machines 3 --leaving 1@20 --notice 10".split())
    assert ended.status == 0, ended.stderr
    (run,) = orjson.loads((folder / "r.json").read_bytes())["runs"]
    ended_s = run["ended_s"]
    assert run["bill_usd"] == pytest.approx(3 * 0.2 + 3 * 10 * 0.02 + 2 * (ended_s - 30) * 0.02)
    assert f"Bill: {run['bill_usd']:,.2f} $" in ended.stdout
    for wrong, said in (
        (f"{options} {prices} --machines 3 --price 2", "--price: --prices has all prices"),
        (f"{options} --prices {folder}/prices.csv --machines 3", "--instance-type: big, small"),
        (f"{options} --machines 3 --zone east", "--zone: there are no prices"),
        (f"--prices {folder}/prices.csv", "--prices: only for a recorded machine"),
    ):
        refused = spotwise("simulate", "run", *wrong.split())
        assert refused.status == 2 and said in refused.stderr, refused.stderr
