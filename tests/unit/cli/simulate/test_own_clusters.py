"""`spotwise simulate run` with a cluster file, with policies, and with several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.builders import write_profile
from tests.unit.cli.command_line import RefusalOf, ReportOf

TINY = "--workload code --seconds 5 --jobs 1"
TWO_KINDS = """
[[machines]]
name = "measured"
profile = "measured.json"
count = 1
pool = "prompt"
price_per_h = 4
[[machines]]
name = "paper"
kind = "dgx-h100"
count = 2
pool = "token"
[objectives]
seconds = { ttft = { p99 = 9 }, itl = { p50 = 0.001 } }
[[priorities]]
priority = 3
share = 1
[[events]]
at_s = 2
kind = "fail"
machines = 1
of = "paper"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    write_profile(tmp_path / "measured.json")
    path = tmp_path / "cluster.toml"
    path.write_text('name = "mine"\nmodel = "llama2-70b"\n' + TWO_KINDS)
    return path


def test_a_cluster_file_is_simulated(report_of: ReportOf, cluster: Path) -> None:
    """The report has its objectives, priorities and events, and the document all that it depends on."""
    report = report_of(f"simulate run --cluster {cluster} --rates 4 {TINY} --policy mlfq --no-break-even")
    for text in (
        "mine (1, 2)",
        "of 9,000 ms",
        "Objectives broken: itl p50 in seconds.",
        "1 machine left: ",
        "priority",
    ):
        assert text in report.text
    (run,) = report.document["runs"]
    assert run["design"] == "mine"
    assert run["machines"] == [
        {"kind": "measured", "count": 1, "pool": "prompt"},
        {"kind": "paper", "count": 2, "pool": "token"},
    ]
    assert (run["policy"]["scheduling"], run["policy"]["break_even"]) == ("mlfq", False)
    assert (run["requests"]["failed"], run["machines_left"], run["changes"][0]["kind"]) == (0, 1, "fail")
    assert run["objectives_s"]["ttft"]["p99"]["bound"] == 9.0
    assert run["slowdowns"]["ttft"]["p50"]["bound"] is None
    assert run["objectives_hold"] is False
    assert run["latencies_s_by_priority"]["3"]["e2e"]["mean"] == pytest.approx(run["latencies_s"]["e2e"]["mean"])
    assert 0 < run["spent_usd"] < run["price_per_hour"] * run["ended_s"] / 3600


def test_several_seeds_give_means_with_intervals(report_of: ReportOf, tmp_path: Path) -> None:
    """Of each rate; every run is in the document, too."""
    plot = tmp_path / "latencies.svg"
    report = report_of(f"simulate run --design HH --machines 2,1 --rates 2,4 --seed 7 --seeds 3 {TINY} --plot {plot}")
    assert "means of 3 seeds ± 95 %" in report.text
    assert "objectives hold with" in report.text
    document = report.document
    assert [(run["rate"], run["seed"]) for run in document["runs"]] == [(r, s) for r in (2, 4) for s in (7, 8, 9)]
    assert [(means["rate"], means["seeds"]) for means in document["means"]] == [(2, [7, 8, 9]), (4, [7, 8, 9])]
    for number, means in enumerate(document["means"]):
        runs = document["runs"][3 * number : 3 * number + 3]
        p90, slowdowns = ([run[figures]["ttft"]["p90"] for run in runs] for figures in ("latencies_s", "slowdowns"))
        shown = means["latencies_s"]["ttft"]["p90"]
        assert shown["mean"] == pytest.approx(sum(p90) / 3)
        assert shown["half_width"] > 0
        shown = means["slowdowns"]["ttft"]["p90"]["mean"]
        assert shown == pytest.approx(sum(slowdown["ours"] for slowdown in slowdowns) / 3)
    assert plot.stat().st_size > 1000


def test_a_profile_by_hand_is_a_machine(report_of: ReportOf, tmp_path: Path) -> None:
    """In TOML, where a recorded one may be."""
    (tmp_path / "mine.toml").write_text(
        'format = "spotwise-cost-profile/1"\nkv_bytes_per_token = 1000\nkv_tokens = 50_000\n[iteration]\nkind = "table"\n'
        "prompt = { at = [1, 512], seconds = [0.02, 0.1] }\ndecode = { at = [1, 64], seconds = [0.02, 0.03] }\n"
        "prompt_context_s = 0\ndecode_context_s = 0\n"
    )
    assert "Recorded (2)" in report_of(f"simulate run --profile @mine.toml --machines 2 --rates 2 {TINY}").text


def test_several_seeds_have_a_mean_bill(report_of: ReportOf, cluster: Path) -> None:
    cluster.with_name("prices.csv").write_text("time_s,instance_type,market,price_per_h\n0,small,spot,3600\n")
    machines = "--profile @measured.json --prices @prices.csv --machines 2"
    report = report_of(f"simulate run {machines} --rates 2 --seeds 2 {TINY}")
    assert "Bill: " in report.text
    for run in report.document["runs"]:
        assert run["bill_usd"] == pytest.approx(2 * run["ended_s"])


@pytest.mark.parametrize(
    "options",
    [
        "--design HA",
        "--machines 2,1",
        "--profile x.json",
        "--price 3",
        "--leaving 1@2",
        "--model llama2-70b",
        "--decode-model published",
    ],
)
def test_what_the_file_says_is_no_option(refusal_of: RefusalOf, cluster: Path, options: str) -> None:
    """An option that would have no effect is refused."""
    assert f"{options.split()[0]}: --cluster" in refusal_of(f"simulate run --cluster {cluster} {options}")


def test_what_is_wrong_with_a_cluster_file_is_reported(refusal_of: RefusalOf, cluster: Path) -> None:
    cluster.write_text(cluster.read_text().replace("price_per_h", "price"))
    assert "machines.0.price: there is no such key" in refusal_of(f"simulate run --cluster {cluster}")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--policy lifo", "--policy"),
        ("--reserve nothing", "--reserve"),
        ("--policy mlfq --decode-model published", "take the decode model honest"),
        ("--repurpose-window=-1", "--repurpose-window"),
        ("--trace @trace.csv --arrivals trace --seeds 2", "--seeds"),
    ],
)
def test_a_wrong_policy_is_named(refusal_of: RefusalOf, tmp_path: Path, options: str, named: str) -> None:
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,5,20\n")
    assert named in refusal_of(f"simulate run {options}")


KINDS = """
name = "kinds"
[[machines]]
name = "prompts"
profile = "measured.json"
count = 1
pool = "prompt"
price_per_h = 4
power = 1
[[machines]]
name = "tokens"
profile = "measured.json"
count = 1
pool = "token"
price_per_h = 3
power = 1
[[machines]]
name = "both"
profile = "measured.json"
count = 1
price_per_h = {price}
power = 1
[objectives]
seconds = {{ ttft = {{ p90 = 0.4 }}, tbt = {{ p90 = {tbt_s} }} }}
"""


@pytest.mark.parametrize(("price", "best"), [(2, "both"), (50, "prompts+tokens")])
def test_own_machines_are_provisioned(report_of: ReportOf, cluster: Path, price: float, best: str) -> None:
    cluster.write_text(KINDS.format(price=price, tbt_s=0.1))
    options = f"--cluster {cluster} --objective cost --rate 12 --most 6,6"
    designs = report_of(f"simulate provision {options} {TINY}").document["designs"]
    assert set(designs) == {"both", "prompts+tokens"}
    split = designs["prompts+tokens"]
    assert split["cost, $/h"] == 4 * split["prompt machines"] + 3 * split["token machines"]
    assert designs["both"]["cost, $/h"] == price * designs["both"]["prompt machines"]
    assert min(designs, key=lambda name: designs[name]["cost, $/h"]) == best


def test_own_objectives_decide_what_a_budget_carries(report_of: ReportOf, cluster: Path) -> None:
    def carried(tbt_s: float) -> float:
        cluster.write_text(KINDS.format(price=2, tbt_s=tbt_s))
        options = f"--cluster {cluster} --objective throughput --max-machines 2 --step 2 --designs both"
        rate: float = report_of(f"simulate provision {options} {TINY}").document["designs"]["both"]["requests/s"]
        return rate

    assert 0 < carried(0.06) < carried(0.2)


def test_a_changed_file_is_searched_again(report_of: ReportOf, cluster: Path) -> None:
    def kept(tbt_s: float) -> bytes:
        cluster.write_text(KINDS.format(price=2, tbt_s=tbt_s))
        options = f"--cluster {cluster} --objective cost --rate 4 --most 3,3 --designs both"
        report_of(f"simulate provision {options} {TINY} --runs @runs")
        return cluster.with_name("runs").read_bytes()

    first = kept(0.1)
    assert kept(0.1) == first
    assert len(kept(0.2)) > len(first)


@pytest.mark.parametrize(
    ("text", "options", "named"),
    [
        (KINDS.format(price=2, tbt_s=1), "--designs all", "--designs 'all': choose some of both, prompts+tokens"),
        (KINDS.format(price=0, tbt_s=1), "", "--objective cost: both has no price_per_h"),
        (KINDS.format(price=2, tbt_s=1), "--profile x.csv", "--profile: --cluster"),
        (KINDS.format(price=2, tbt_s=1) + '[policy]\nwhen_full = "reactive"', "", "swaps KV"),
        (
            KINDS.format(price=2, tbt_s=1) + '[[events]]\nat_s = 1\nkind = "fail"\nmachines = 1',
            "",
            "machines to buy stay",
        ),
        (KINDS.format(price=2, tbt_s=1).partition('[[machines]]\nname = "tokens')[0], "", "make no design"),
    ],
)
def test_what_cannot_be_bought_is_named(
    refusal_of: RefusalOf, cluster: Path, text: str, options: str, named: str
) -> None:
    cluster.write_text(text)
    command = f"simulate provision --objective cost --rate 4 --cluster {cluster} {options} {TINY}"
    assert named in refusal_of(command)
