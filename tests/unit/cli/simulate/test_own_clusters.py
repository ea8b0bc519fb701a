"""`spotwise simulate run` with a cluster file, with policies, and with several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.files.cost_profile import profile_as_dict
from tests.unit.cli.command_line import CommandLine

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
    (tmp_path / "measured.json").write_bytes(orjson.dumps(profile_as_dict(BUILT_IN)))
    path = tmp_path / "cluster.toml"
    path.write_text('name = "mine"\nmodel = "llama2-70b"\n' + TWO_KINDS)
    return path


def test_a_cluster_file_is_simulated(spotwise: CommandLine, cluster: Path, tmp_path: Path) -> None:
    """The report has its objectives, priorities and events, and the document all that it depends on."""
    file = tmp_path / "run.json"
    arguments = f"simulate run --cluster {cluster} --rates 4 {TINY} --policy mlfq --no-break-even --json {file}"
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    for text in (
        "mine (1, 2)",
        "of 9,000 ms",
        "Objectives broken: itl p50 in seconds.",
        "1 machine left: ",
        "priority",
    ):
        assert text in ended.stdout
    (run,) = orjson.loads(file.read_bytes())["runs"]
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


def test_several_seeds_give_means_with_intervals(spotwise: CommandLine, tmp_path: Path) -> None:
    """Of each rate; every run is in the document, too."""
    file, plot = tmp_path / "run.json", tmp_path / "latencies.svg"
    arguments = (
        f"simulate run --design HH --machines 2,1 --rates 2,4 --seed 7 --seeds 3 {TINY} --json {file} --plot {plot}"
    )
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    assert "means of 3 seeds ± 95 %" in " ".join(ended.stdout.split())
    assert "objectives hold with" in ended.stdout
    document = orjson.loads(file.read_bytes())
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


def test_a_profile_by_hand_is_a_machine(spotwise: CommandLine, tmp_path: Path) -> None:
    """In TOML, where a recorded one may be."""
    profile = tmp_path / "mine.toml"
    profile.write_text(
        'format = "spotwise-cost-profile/1"\nkv_bytes_per_token = 1000\nkv_tokens = 50_000\n[iteration]\nkind = "table"\n'
        "prompt = { at = [1, 512], seconds = [0.02, 0.1] }\ndecode = { at = [1, 64], seconds = [0.02, 0.03] }\n"
        "prompt_context_s = 0\ndecode_context_s = 0\n"
    )
    ended = spotwise(*f"simulate run --profile {profile} --machines 2 --rates 2 {TINY}".split())
    assert ended.status == 0, ended.stderr
    assert "Recorded (2)" in ended.stdout


def test_several_seeds_have_a_mean_bill(spotwise: CommandLine, cluster: Path) -> None:
    prices, file = cluster.with_name("prices.csv"), cluster.with_name("run.json")
    prices.write_text("time_s,instance_type,market,price_per_h\n0,small,spot,3600\n")
    options = f"--prices {prices} --machines 2 --rates 2 --seeds 2 {TINY} --json {file}"
    ended = spotwise(*f"simulate run --profile {cluster.with_name('measured.json')} {options}".split())
    assert ended.status == 0, ended.stderr
    assert "Bill: " in ended.stdout
    for run in orjson.loads(file.read_bytes())["runs"]:
        assert run["bill_usd"] == pytest.approx(2 * run["ended_s"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--design HA", "--design"),
        ("--machines 2,1", "--machines"),
        ("--profile x.json", "--profile"),
        ("--price 3", "--price"),
        ("--leaving 1@2", "--leaving"),
        ("--model llama2-70b", "--model"),
        ("--decode-model published", "--decode-model"),
    ],
)
def test_what_the_file_says_is_no_option(spotwise: CommandLine, cluster: Path, options: str, named: str) -> None:
    ended = spotwise("simulate", "run", "--cluster", str(cluster), *options.split())
    assert ended.status == 2, ended.stderr
    assert f"{named}: --cluster" in " ".join(ended.stderr.split())


def test_what_is_wrong_with_a_cluster_file_is_reported(spotwise: CommandLine, cluster: Path) -> None:
    cluster.write_text(cluster.read_text().replace("price_per_h", "price"))
    ended = spotwise("simulate", "run", "--cluster", str(cluster))
    assert ended.status == 2
    assert "machines.0.price: there is no such key" in " ".join(ended.stderr.split())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--policy lifo", "--policy"),
        ("--reserve nothing", "--reserve"),
        ("--policy mlfq --decode-model published", "take the decode model honest"),
        ("--repurpose-window=-1", "--repurpose-window"),
        ("--trace {trace} --arrivals trace --seeds 2", "--seeds"),
    ],
)
def test_a_wrong_policy_is_named(spotwise: CommandLine, tmp_path: Path, options: str, named: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,5,20\n")
    ended = spotwise("simulate", "run", *options.format(trace=trace).split())
    assert ended.status == 2, ended.stderr
    assert named in " ".join(ended.stderr.split())


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


def provision(spotwise: CommandLine, cluster: Path, text: str, options: str) -> dict[str, Any]:
    """Search among a file's kinds of machine, and return the document."""
    cluster.write_text(text)
    file = cluster.with_name("found.json")
    ended = spotwise(*f"simulate provision --cluster {cluster} {TINY} --json {file} {options}".split())
    assert ended.status == 0, ended.stderr
    found: dict[str, Any] = orjson.loads(file.read_bytes())
    return found


@pytest.mark.parametrize(("price", "best"), [(2, "both"), (50, "prompts+tokens")])
def test_own_machines_are_provisioned(spotwise: CommandLine, cluster: Path, price: float, best: str) -> None:
    text = KINDS.format(price=price, tbt_s=0.1)
    found = provision(spotwise, cluster, text, "--objective cost --rate 12 --most 6,6")
    assert set(found["designs"]) == {"both", "prompts+tokens"}
    split = found["designs"]["prompts+tokens"]
    assert split["cost, $/h"] == 4 * split["prompt machines"] + 3 * split["token machines"]
    assert found["designs"]["both"]["cost, $/h"] == price * found["designs"]["both"]["prompt machines"]
    assert min(found["designs"], key=lambda name: found["designs"][name]["cost, $/h"]) == best


def test_own_objectives_decide_what_a_budget_carries(spotwise: CommandLine, cluster: Path) -> None:
    options = "--objective throughput --max-machines 2 --step 2 --designs both"
    loose, strict = (
        provision(spotwise, cluster, KINDS.format(price=2, tbt_s=tbt_s), options)["designs"]["both"]["requests/s"]
        for tbt_s in (0.2, 0.06)
    )
    assert 0 < strict < loose


def test_a_changed_file_is_searched_again(spotwise: CommandLine, cluster: Path) -> None:
    runs = cluster.with_name("runs")
    options = f"--objective cost --rate 4 --most 3,3 --designs both --runs {runs}"
    provision(spotwise, cluster, KINDS.format(price=2, tbt_s=0.1), options)
    kept = runs.read_bytes()
    provision(spotwise, cluster, KINDS.format(price=2, tbt_s=0.1), options)
    assert runs.read_bytes() == kept
    provision(spotwise, cluster, KINDS.format(price=2, tbt_s=0.2), options)
    assert len(runs.read_bytes()) > len(kept)


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
    spotwise: CommandLine, cluster: Path, text: str, options: str, named: str
) -> None:
    cluster.write_text(text)
    arguments = f"simulate provision --objective cost --rate 4 --cluster {cluster} {options} {TINY}"
    ended = spotwise(*arguments.split())
    assert ended.status == 2, ended.stderr
    assert named in " ".join(ended.stderr.split())
