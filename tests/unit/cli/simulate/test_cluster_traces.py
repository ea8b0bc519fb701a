"""`spotwise simulate run` with a cluster file: traces whose prompts begin alike, rows of requests, and marks of trust."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from spotwise.core.costs.cost_profile import BUILT_IN
from tests.unit.cli.builders import write_profile
from tests.unit.cli.command_line import RefusalOf, ReportOf

MACHINES = """
name = "mine"
[[machines]]
name = "measured"
profile = "measured.json"
count = 1
pool = "prompt"
[[machines]]
name = "described"
count = 2
pool = "token"
[machines.cost]
kv_bytes_per_token = {kv_bytes}
kv_tokens = 100_000
link = {{ latency_s = 0.001, bytes_per_s = 1e10 }}
{range}
[machines.cost.iteration]
kind = "linear"
fixed_s = 0.02
prompt_token_s = 1e-5
prompt_context_s = 0
decode_s = 1e-4
decode_context_s = 0
[policy]
break_even = false
repurpose_window_s = 0
"""
PRIORITIES = """
[[priorities]]
priority = 1
share = 1
[[priorities]]
priority = 2
share = 1
"""


QUICK = {"prompt_tokens": 64, "prompt_context": 32.0, "decodes": 2, "decode_context": 80.0}


def write_cluster(
    folder: Path, *, measured: dict[str, float] | None = None, described: str = "", more: str = ""
) -> None:
    """A cluster file of two kinds, with what their profiles measured."""
    write_profile(folder / "measured.json", name="a profile", message_s=0.001, measured_range=measured)
    text = MACHINES.format(kv_bytes=BUILT_IN.kv_bytes_per_token, range=described)
    (folder / "cluster.toml").write_text(text + more)


RUN = "simulate run --cluster @cluster.toml --jobs 1"
CHATS = "--trace @chats.jsonl --block-tokens 16"


def write_chats(folder: Path) -> None:
    """Ten prompts with the same first three of four blocks of 16 tokens."""
    line = '{{"timestamp": {}e3, "input_length": 64, "output_length": 5, "hash_ids": [7, 8, 9, {}]}}'
    (folder / "chats.jsonl").write_text("\n".join(line.format(second, 100 + second) for second in range(10)))


def test_machines_of_a_cluster_file_have_prefix_caches(report_of: ReportOf, tmp_path: Path) -> None:
    """Where the trace has hashes, unless they are switched off; and every request is a row."""
    write_cluster(tmp_path)
    write_chats(tmp_path)
    report_of(f"{RUN} {CHATS} --arrivals trace --requests {tmp_path / 'rows.csv'}")
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [row["cached_tokens"] for row in rows] == ["0", *["48"] * 9]
    assert {row["prompt_machine"] for row in rows} == {"m0"}
    assert {row["token_machine"] for row in rows} <= {"m1", "m2"}
    report = report_of(f"{RUN} {CHATS} --arrivals trace --no-prefix-caching")
    assert report.document["runs"][0]["cached_prompt_share"] is None


@pytest.mark.parametrize("policy", ["fcfs", "mlfq", "srpt", "priority"])
def test_prefixes_are_found_with_every_discipline(report_of: ReportOf, tmp_path: Path, policy: str) -> None:
    write_cluster(tmp_path, more=PRIORITIES)
    write_chats(tmp_path)
    (run,) = report_of(f"{RUN} {CHATS} --arrivals trace --policy {policy}").document["runs"]
    assert run["requests"]["completed"] == 10
    assert run["cached_prompt_share"] == pytest.approx(0.9 * 48 / 64)


def test_rows_have_the_rate_and_the_seed_of_their_run(report_of: ReportOf, tmp_path: Path) -> None:
    """In the order of the runs, with the requests' priorities; figures are those of the document, and of runs without rows."""
    write_cluster(tmp_path, more=PRIORITIES)
    write_chats(tmp_path)
    rows = tmp_path / "rows.csv"
    command = f"{RUN} {CHATS} --jointly --rates 2,4 --seed 5 --seeds 2 --seconds 6"
    report = report_of(f"{command} --requests {rows}")
    document = report.document
    runs = {(run["rate"], run["seed"]): run for run in document["runs"]}
    requests = list(csv.DictReader(rows.read_text().splitlines()))
    by_run = Counter((float(row["rate"]), int(row["seed"])) for row in requests)
    assert list(by_run) == [(2.0, 5), (2.0, 6), (4.0, 5), (4.0, 6)]
    assert by_run == {key: run["requests"]["completed"] for key, run in runs.items()}
    for key, run in runs.items():
        own = [row for row in requests if (float(row["rate"]), int(row["seed"])) == key]
        cached, prompts = (sum(int(row[name]) for row in own) for name in ("cached_tokens", "prompt_tokens"))
        assert run["cached_prompt_share"] == pytest.approx(cached / prompts)
        for priority, figures in run["latencies_s_by_priority"].items():
            e2e_s = [float(row["e2e_s"]) for row in own if row["priority"] == priority]
            assert figures["e2e"]["mean"] == pytest.approx(sum(e2e_s) / len(e2e_s))
    means = document["means"]
    assert means[0]["cached_prompt_share"]["mean"] == pytest.approx(
        sum(runs[2.0, seed]["cached_prompt_share"] for seed in (5, 6)) / 2
    )
    assert f"{means[0]['cached_prompt_share']['mean']:.1%} ± " in report.text
    assert [each["seeds_in_steady_state"] for each in means] == [2, 2]
    assert report_of(command).document["means"] == means


def test_each_kind_is_marked_beyond_its_own_profile(report_of: ReportOf, tmp_path: Path) -> None:
    """In the report and the document, with the share of the time of both; a profile without a range is named."""
    wide = "measured_range = { prompt_tokens = 9000, prompt_context = 9000, decodes = 900, decode_context = 90_000 }"
    command = f"{RUN} --workload code --rates 2 --seconds 10"
    write_cluster(tmp_path, measured=QUICK, described=wide)
    report = report_of(command)
    beyond = report.document["runs"][0]["beyond_profile"]
    measured, described = beyond["machines"]
    assert (measured["kind"], described["kind"]) == ("measured", "described")
    assert measured["share"] > 0.9
    assert (described["share"], described["shares"]) == (0.0, {})
    assert 0 < beyond["share"] < measured["share"]
    assert (
        f"{beyond['share']:.1%} of the iterations' time of measured, described lies beyond what their profiles measured, and "
        f"is extrapolated: of measured {measured['share']:.1%}: more than 64 prompt tokens at once"
    ) in report.text
    assert "does not say" not in report.text

    write_cluster(tmp_path, measured=QUICK)
    report = report_of(command)
    assert [each["kind"] for each in report.document["runs"][0]["beyond_profile"]["machines"]] == ["measured"]
    assert "The profile of described does not say how far it was measured" in report.text
    report = report_of(f"{command} --seeds 2")
    shares = [run["beyond_profile"]["share"] for run in report.document["runs"]]
    assert report.document["means"][0]["beyond_profile"]["mean"] == pytest.approx(sum(shares) / 2)
    assert (
        f"With seed {shares.index(max(shares))}, where it is most, {max(shares):.1%} of the iterations' time"
        in report.text
    )
    assert "The profile of described does not say how far it was measured" in report.text

    write_cluster(tmp_path)
    assert report_of(command).document["runs"][0]["beyond_profile"] is None


def test_seeds_without_a_steady_state_are_counted(report_of: ReportOf, tmp_path: Path) -> None:
    write_cluster(tmp_path)
    report = report_of(f"{RUN} --workload code --rates 2 --seconds 2 --seeds 2")
    assert report.document["means"][0]["seeds_in_steady_state"] == 0
    assert "No steady state with 2 of 2 seeds: with seed " in report.text


def test_the_papers_machines_are_not_marked(report_of: ReportOf, tmp_path: Path) -> None:
    """Nor asked for a range, alone and in a file."""
    (tmp_path / "cluster.toml").write_text(
        'model = "llama2-70b"\n[[machines]]\nname = "a"\nkind = "dgx-a100"\ncount = 1\n'
        '[[machines]]\nname = "h"\nkind = "dgx-h100"\ncount = 1\n'
    )
    report = report_of(f"{RUN} --workload code --rates 1 --seconds 5")
    assert report.document["runs"][0]["beyond_profile"] is None
    assert "does not say" not in report.text


def test_a_trace_that_is_wrong_is_reported_before_a_search(refusal_of: RefusalOf, tmp_path: Path) -> None:
    """As the trace's fault, and not the cluster file's."""
    write_cluster(tmp_path)
    (tmp_path / "wrong.jsonl").write_text('{"timestamp": 1, "hash_ids": [1]}')
    search = "--objective machines --rate 4 --cluster @cluster.toml --jointly"
    refusal = refusal_of(f"simulate provision {search} --trace @wrong.jsonl")
    assert "wrong.jsonl, line 1: no column" in refusal
    assert "--cluster" not in refusal


def test_machines_are_provisioned_for_prompts_that_begin_alike(report_of: ReportOf, tmp_path: Path) -> None:
    write_cluster(tmp_path)
    write_chats(tmp_path)
    search = "--objective machines --rate 4 --cluster @cluster.toml --most 2,2 --jobs 1"
    assert "measured+described" in report_of(f"simulate provision {search} {CHATS} --jointly --seconds 3").text


@pytest.mark.parametrize(
    "options", ["--objective machines --rate 2 --most 3,3", "--objective throughput --max-machines 2 --step 1"]
)
def test_what_is_provisioned_beyond_a_profile_is_marked(report_of: ReportOf, tmp_path: Path, options: str) -> None:
    write_cluster(tmp_path, measured=QUICK, more="[objectives]\nseconds = { ttft = { p90 = 9 } }\n")
    report = report_of(f"simulate provision --cluster @cluster.toml {options} --workload code --seconds 4 --jobs 1")
    beyond = report.document["beyond_profile"]["measured+described"]
    assert [each["kind"] for each in beyond["machines"]] == ["measured"]
    assert beyond["share"] > 0.5
    assert f"measured+described: {beyond['share']:.1%} of the iterations' time of measured lies beyond" in report.text
    assert "The profile of described does not say how far it was measured" in report.text
