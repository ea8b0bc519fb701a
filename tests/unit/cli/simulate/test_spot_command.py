"""`spotwise simulate spot`, on a fleet and a load of a minute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.core.costs.cost_profile import BUILT_IN, MeasuredRange
from tests.unit.cli.builders import write_profile
from tests.unit.cli.command_line import CommandLine, RefusalOf, ReportOf

SYSTEMS = ["spotwise", "restart", "rerouting"]
SPOT = "simulate spot --jobs 1 --trace"


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
    write_profile(tmp_path / "machine.json")
    return tmp_path


def test_systems_stand_side_by_side_with_their_bills(report_of: ReportOf, folder: Path) -> None:
    """All figures are printed, drawn, and in the file; the bill follows each instance's zone, market and prices."""
    own = "--load @load.csv --profile @machine.json --model llama2-70b --seed 3"
    paid = "--prices @prices.csv --instance-type big --zone east --nodes @nodes.csv"
    report = report_of(f"{SPOT} @fleet.csv {own} {paid} --plot @fleet.png")
    for text in (
        *SYSTEMS,
        "60 requests before the trace's end, at their own times",
        "bill, $",
        "latency, p99",
        "prices.csv",
    ):
        assert text in report.text
    assert "assumed" not in report.text
    assert (folder / "fleet.png").stat().st_size > 10_000
    document = report.document
    assert document["trace"]["instances"] == [[0.0, 2], [30.0, 1], [40.0, 2], [60.0, 1]]
    assert (document["least_instances"], document["load"]["requests"]) == (1, 60)
    assert [each["system"] for each in document["systems"]] == SYSTEMS
    for each in document["systems"]:
        assert each["served"] == 60 and each["unfinished"] == []
        assert each["open_requests"][-1][1] == 0
        spot = 20 * 0.01 + 10 * 0.02 + 20 * 0.1
        assert each["bill_usd"] == pytest.approx(spot + each["ended_s"] * 1.0)
        assert (each["spot_s"], each["on_demand_s"]) == (50.0, each["ended_s"])


def test_a_load_beyond_the_profile_is_marked(report_of: ReportOf, folder: Path) -> None:
    measured = MeasuredRange(500, 250.0, 64, 10_000.0)
    write_profile(folder / "machine.json", replace(BUILT_IN, name="mine", measured=measured))
    own = "--load @load.csv --profile @machine.json --model llama2-70b --systems spotwise"
    report = report_of(f"{SPOT} @fleet.csv {own}")
    assert "48.3% of the prompts are longer than 500 tokens" in report.text
    beyond = report.document["beyond_profile"]
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


def test_a_fleet_file_lets_the_planner_buy(report_of: ReportOf, folder: Path) -> None:
    """Instances are bought for the load, of nodes that are there or on demand, and the bill is the market's."""
    (folder / "fleet.toml").write_text(FLEET)
    own = "--fleet @fleet.toml --load @load.csv --model llama2-70b --spares 0 --latency-target 100 --hold 5"
    report = report_of(f"{SPOT} @fleet.csv {own} --notice 10 --plot @o.png")
    assert "big at 36 $/h spot (at most 2), 72 $/h on demand (at most 1)" in report.text
    assert (folder / "o.png").stat().st_size > 10_000
    document = report.document
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
def test_a_fleet_that_cannot_be_bought_is_refused(refusal_of: RefusalOf, folder: Path, options: str, said: str) -> None:
    (folder / "fleet.toml").write_text(FLEET)
    (folder / "bare.toml").write_text(FLEET.replace('profile = "machine.json"\n', ""))
    (folder / "two.toml").write_text(FLEET + '[[types]]\nname = "b"\nspot = {price_per_h = 1, most = 1}\n')
    assert said in refusal_of(f"{SPOT} @fleet.csv {options}")


def test_a_trace_alone_is_enough(report_of: ReportOf, folder: Path) -> None:
    report = report_of(f"{SPOT} @fleet.csv --systems spotwise")
    assert "assumed: the machine (--profile), the load (--load, --rate)" in report.text
    assert "about Llama2-70B on a DGX-H100" in report.text and "no prices" in report.text
    (only,) = report.document["systems"]
    assert only["bill_usd"] is None and only["served"] > 20


@pytest.mark.parametrize(
    ("lines", "memory", "said"),
    [
        ("0,add,a\n20000,remove,a\n", "", "1 instance had not answered them 9 s after the trace's end"),
        (
            "0,add,a\n60000,add,b\n",
            "--memory 40GiB",
            "no configuration of llama2-70b fits the 3 instances that are left",
        ),
    ],
    ids=["to nothing", "too small"],
)
def test_a_fleet_that_cannot_serve_ends_with_a_report(
    report_of: ReportOf, folder: Path, lines: str, memory: str, said: str
) -> None:
    """Nothing is left after 20 s; or an instance is too small for the model. What was not served is said and listed."""
    (folder / "small.csv").write_text(lines + "60000,add,z\n")
    report = report_of(f"{SPOT} @small.csv --load @load.csv --drain 9 {memory}")
    assert f"requests are not served: {said}" in report.text
    for each in report.document["systems"]:
        assert each["ended_s"] == 69.0
        assert each["served"] + len(each["unfinished"]) == 60
        assert all(set(request) == {"arrived_s", "output_tokens"} for request in each["unfinished"])
    assert ("does not fit all the trace's instances" in report.text) == bool(memory)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--load @none.csv", "none.csv cannot be read"),
        ("--load @prices.csv", "prices.csv, line 1: no column TIMESTAMP"),
        ("--prices @load.csv", "load.csv, line 1: no column time_s"),
        ("--prices @prices.csv", "--instance-type: big, small"),
        ("--prices @prices.csv --instance-type tiny", "--instance-type 'tiny'"),
        ("--prices @prices.csv --instance-type big", "no price of big, spot; it has them in east, west"),
        ("--prices @prices.csv --price 3", "--price: --prices has all prices"),
        ("--zone east", "--zone: there are no prices"),
        ("--nodes @fleet.csv", "fleet.csv, line 1: no column node"),
        ("--profile @machine.json", "say which model was profiled with --model"),
        ("--profile @load.csv --model llama2-70b", "--profile"),
        ("--model gpt-20b", "--model GPT-20B: the profile is of a model with 327,680 bytes"),
        ("--model none", "--model 'none' is no folder"),
        ("--between 40,10", "--between '40,10': write two times within the trace's 60 s"),
        ("--between x", "--between 'x'"),
        ("--systems spotwise,foo", "--systems 'foo': choose of spotwise, restart, rerouting, eager"),
        ("--memory much", "--memory 'much' is no size"),
        ("--network 0", "--network '0' is no size"),
        ("--drain -1", "--drain"),
        ("--plot @fleet.txt", "--plot"),
    ],
)
def test_a_wrong_input_is_named(refusal_of: RefusalOf, folder: Path, options: str, said: str) -> None:
    assert said in refusal_of(f"{SPOT} @fleet.csv {options}")


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
    ended = spotwise(*f"{SPOT} {folder}/wrong.csv".split())
    assert ended.status in (1, 2) and "wrong.csv" in ended.stderr and said in ended.stderr


def test_a_part_of_a_trace_may_be_taken(report_of: ReportOf, folder: Path) -> None:
    document = report_of(f"{SPOT} @fleet.csv --between 35,60 --rate 2 --systems rerouting").document
    assert document["trace"] == {"name": "fleet 35-60 s", "end_s": 25.0, "instances": [[0.0, 1], [5.0, 2], [25.0, 2]]}


def test_instances_that_come_late_load_their_weights_and_before_them_nothing_serves(
    report_of: ReportOf, spotwise: CommandLine, folder: Path
) -> None:
    (folder / "late.csv").write_text("20000,add,a\n400000,add,b\n")
    report = report_of(f"{SPOT} @late.csv --rate 0.1 --systems spotwise")
    (only,) = report.document["systems"]
    weights = 135 * 2**30
    assert only["changes"][0]["storage_bytes"] == pytest.approx(weights, rel=1e-6)
    assert "135.0 GiB" in report.text
    assert only["latency_s"]["max"] > 100.0 and only["unfinished"] == []
    nothing = spotwise(*f"{SPOT} {folder}/late.csv --rate 1 --between 0,15".split())
    assert nothing.status == 0 and "the trace, or this part of it, has no instance" in nothing.stdout


RUN = "simulate run --profile @machine.json --trace @load.csv --arrivals trace --jobs 1"
PRICES = "--prices @prices.csv --instance-type big --zone east"


def test_a_cluster_is_billed_by_prices_over_time(report_of: ReportOf, folder: Path) -> None:
    """`simulate run` takes the same files; machines that leave are paid until they are gone."""
    report = report_of(f"{RUN} {PRICES} --machines 3 --leaving 1@20 --notice 10")
    (run,) = report.document["runs"]
    assert (run["machines_left"], run["requests"]["failed"], run["recomputed"]) == (1, 0, 0)
    ended_s = run["ended_s"]
    assert run["bill_usd"] == pytest.approx(3 * 0.2 + 3 * 10 * 0.02 + 2 * (ended_s - 30) * 0.02)
    assert f"Bill: {run['bill_usd']:,.2f} $" in report.text


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{RUN} {PRICES} --machines 3 --price 2", "--price: --prices has all prices"),
        (f"{RUN} --prices @prices.csv --machines 3", "--instance-type: big, small"),
        (f"{RUN} --machines 3 --zone east", "--zone: there are no prices"),
        ("simulate run --prices @prices.csv", "--prices: only for a recorded machine"),
    ],
)
def test_prices_that_name_no_machine_are_refused(refusal_of: RefusalOf, folder: Path, command: str, said: str) -> None:
    assert said in refusal_of(command)
