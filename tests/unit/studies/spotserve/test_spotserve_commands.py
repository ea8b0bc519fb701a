"""`spotwise simulate paper spotserve`, on data so small that it takes no time."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from spotwise.studies.spotserve.studies import SEGMENTS
from tests.unit.cli.command_line import CommandLine
from tests.unit.studies.spotserve.spot_artifact import write_arrivals, write_profiles, write_segment


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Segments of two minutes, with a machine that goes."""
    published = tmp_path / "data" / "spot-traces" / "spotserve"
    for folder in ("availability", "arrivals"):
        (published / folder).mkdir(parents=True)
    write_profiles(published / "profiles")
    for file in SEGMENTS.values():
        write_segment(published / "availability" / file, {0.0: 6, 80.0: 5}, 120.0)
    write_arrivals(published / "arrivals" / "query_tpt0.35_cv6.txt", 0.2, 60)
    return tmp_path / "data"


def test_the_spotserve_paper_is_measured_again(spotwise: CommandLine, data: Path, tmp_path: Path) -> None:
    """The requested figures are printed, drawn, and in the file with all that they depend on."""
    file, figures = tmp_path / "spotserve.json", tmp_path / "figures"
    options = f"--quick --jobs 1 --studies golden,on-demand,zero-notice --runs {tmp_path / 'runs'}"
    ended = spotwise(*f"simulate paper spotserve --data {data} {options} --json {file} --figures {figures}".split())
    assert ended.status == 0, ended.stderr
    for text in ("the optimizer's answers: ", "of 36 as published", "Table 1", "Rerouting, 0 s", "Of the 8 latencies"):
        assert text in " ".join(ended.stdout.split())
    document = orjson.loads(file.read_bytes())
    assert [study["name"] for study in document["studies"]] == ["on-demand", "zero-notice"]
    assert {path.name for path in figures.iterdir()} == {"spotserve-zero-notice.png", "spotserve-on-demand.png"}
    assert len(document["golden"]) == 36
    assert set(document["alone_s"]) == {"OPT-6.7B", "GPT-20B", "LLaMA-30B"}
    point = document["studies"][0]["points"][0]
    assert (point["trace"], point["requests"], point["line"]) == ("3 on-demand", "as published", "on-demand")
    assert point["paper_s"] == {"mean": 141.5, "p99": 253.3}
    assert all(point["steady_state"] for study in document["studies"] for point in study["points"])
    assert "no steady state" not in " ".join(ended.stdout.split())
    (run,) = document["studies"][1]["points"][1]["runs"]
    assert run["requests"] == 23
    assert run["case"]["surroundings"]["grace_s"] == 0.0
    assert str(tmp_path) not in file.read_text()


def test_a_check_fails_where_a_headline_differs(spotwise: CommandLine, data: Path, tmp_path: Path) -> None:
    """The report and the document are there all the same; without a headline nothing was checked."""
    file = tmp_path / "spotserve.json"
    paper = f"simulate paper spotserve --data {data} --quick --jobs 1 --check --json {file}"
    ended = spotwise(*f"{paper} --studies gpt-20b,on-demand".split())
    assert ended.status == 1
    rows = orjson.loads(file.read_bytes())["headlines"]
    differing = [row["name"] for row in rows if row["close"] is False]
    assert differing
    assert f"--check: {len(differing)} of {len(rows)} headlines differ: {differing[0]}" in " ".join(
        ended.stderr.split()
    )
    ended = spotwise(*f"{paper} --studies on-demand".split())
    assert ended.status == 1
    assert "--check: no headline was measured" in ended.stderr


def test_requests_that_cannot_be_answered_are_counted(spotwise: CommandLine, data: Path, tmp_path: Path) -> None:
    """Five machines that become two: the study ends with a line that says how many requests are left, and why."""
    availability = data / "spot-traces" / "spotserve" / "availability"
    for file in SEGMENTS.values():
        write_segment(availability / file, {0.0: 5, 60.0: 2}, 120.0)
    document = tmp_path / "spotserve.json"
    ended = spotwise(
        *f"simulate paper spotserve --data {data} --quick --jobs 1 --studies zero-notice --json {document}".split()
    )
    assert ended.status == 0, ended.stderr
    said = " ".join(ended.stdout.split())
    assert "requests unanswered: no configuration of GPT-20B fits the 2 instances that are left" in said
    assert "zero-notice, A_S, as published: SpotServe, 30 s leaves " in said
    point = orjson.loads(document.read_bytes())["studies"][0]["points"][0]
    assert not point["steady_state"]
    assert "points reach no steady state" in said
    (run,) = point["runs"]
    assert 0 < run["unanswered"] < run["requests"] and run["why_unanswered"]


def test_placement_rules_are_compared_on_request(spotwise: CommandLine, data: Path, tmp_path: Path) -> None:
    folder, file = data / "spot-traces" / "bamboo", tmp_path / "placement.json"
    folder.mkdir()
    lines = [
        f"{minute * 60000},{kind},n{node}" for node in range(4) for minute, kind in ((0, "add"), (4 + node, "remove"))
    ]
    lines += ["0,add,stays", "500000,add,last"]
    lines.sort(key=lambda line: int(line.split(",")[0]))
    for name in ("g4dn", "p3"):
        (folder / f"{name}-trace.csv").write_text("\n".join(lines))
    ended = spotwise(*f"simulate paper spotserve --data {data} --quick --studies placement --json {file}".split())
    assert ended.status == 0, ended.stderr
    assert "preemption-aware" in " ".join(ended.stdout.split())
    placed = orjson.loads(file.read_bytes())["placement"]
    assert [(found["trace"], found["fitted_on"], found["steady"]) for found in placed] == [
        ("g4dn", "g4dn, first half", 0),
        ("g4dn", "g4dn, first half", 4),
        ("g4dn", "p3", 0),
        ("p3", "p3, first half", 0),
        ("p3", "p3, first half", 4),
        ("p3", "g4dn", 0),
    ]
    assert set(placed[0]["by_placement"]) == {"random", "least loaded", "preemption-aware"}


def test_a_malformed_data_file_is_reported(spotwise: CommandLine, data: Path) -> None:
    path = data / "spot-traces" / "spotserve" / "availability" / SEGMENTS["B_S"]
    path.write_text('[0, "add", {"nodes": []}]\n')
    ended = spotwise(*f"simulate paper spotserve --data {data} --quick --jobs 1 --studies gpt-20b".split())
    assert ended.status == 2
    assert "line 1: add names no nodes" in " ".join(ended.stderr.split())
    (data / "spot-traces" / "spotserve" / "profiles" / "megatron_h6144_profile.json").write_text("{}")
    ended = spotwise(*f"simulate paper spotserve --data {data} --studies golden".split())
    assert ended.status == 2
    assert "is no profile of layers" in " ".join(ended.stderr.split())


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ("", "--data"),
        ("--data nowhere", "--data"),
        ("--data DATA --studies gpt-30b", "--studies"),
        ("--data DATA --seconds 5", "--seconds"),
        ("--data DATA --step 5", "--step"),
        ("--data DATA --requests 50", "--requests"),
        ("--data DATA --decode-model honest", "--decode-model"),
        ("--data DATA --no-headlines", "--no-headlines"),
        ("--data DATA --published-runs", "--published-runs"),
    ],
)
def test_a_wrong_option_is_named(
    spotwise: CommandLine, data: Path, monkeypatch: pytest.MonkeyPatch, options: str, option: str
) -> None:
    monkeypatch.delenv("SPOTWISE_DATA", raising=False)
    ended = spotwise("simulate", "paper", "spotserve", *options.replace("DATA", str(data)).split())
    assert ended.status == 2, ended.stderr
    assert option in ended.stderr
    assert "Traceback" not in ended.stderr
