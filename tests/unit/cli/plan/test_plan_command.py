"""`spotwise plan`, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.command_line import CommandLine, RefusalOf, ReportOf


def test_a_plan_shows_what_moves_and_what_that_saves(report_of: ReportOf, tmp_path: Path) -> None:
    report = report_of("plan --from 2,3,4 --to 2,2,8 --plot @plan.svg")
    for text in (
        "longest pause",
        "restart",
        "positions of devices",
        "what moves, in order",
        "when stages may start",
        "i6 i7 join",
    ):
        assert text in report.text
    assert "<svg" in (tmp_path / "plan.svg").read_text()
    plan = report.document
    assert (plan["from"], plan["to"]) == ("2,3,4,1", "2,2,8,1")
    assert len(plan["positions"]) == 32
    assert set(plan["stage_start_s"]) == {"0.0", "0.1", "1.0", "1.1"}
    assert sum(each["bytes"] for each in plan["transfers"]) == plan["moved_bytes"] + plan["storage_bytes"]
    assert plan["storage_bytes"] == 0
    assert plan["kept_bytes"] > 0
    assert plan["moved_bytes"] < plan["naive_bytes"]
    assert max(plan["stage_start_s"].values()) == pytest.approx(plan["done_s"])


def test_newcomers_share_what_they_read_from_storage(report_of: ReportOf) -> None:
    """All is lost, and two instances come: one read of the weights is passed on, where `--read-each` reads them twice."""
    command = "plan --from 1,1,4 --to 2,1,4 --lost 0 --joining 2"
    shared, each = report_of(command).document, report_of(f"{command} --read-each").document
    assert shared["storage_bytes"] == each["storage_bytes"] / 2 == shared["moved_bytes"]
    assert each["storage_bytes"] == each["naive_bytes"]
    assert 0.5 < shared["done_s"] / each["done_s"] < 0.55


def test_pipelines_that_stay_in_place_do_not_stop(report_of: ReportOf) -> None:
    """One pipeline loses its instance, and the other continues: no KV moves to it."""
    plan = report_of("plan --from 2,1,4,2 --to 1,1,4,2 --leaving 1 --requests 0").document
    assert plan["running_on"] == {"0": 0}
    assert plan["pause_s"] == {"0": 0.0}
    assert plan["transfers"] == []
    assert set(plan["positions"]) == {"i0:0", "i0:1", "i0:2", "i0:3"}


def test_the_most_decoded_requests_continue(report_of: ReportOf) -> None:
    """Where half of the requests fit, the most decoded of each pipeline continue, and KV on other devices moves."""
    plan = report_of("plan --from 2,1,4,2 --to 1,1,4,2 --leaving 1").document
    assert plan["running"] == {"0": ["r0.0", "r1.0"]}
    assert plan["waiting"] == ["r0.1", "r1.1"]
    assert {(each["part"], each["request"]) for each in plan["transfers"]} == {("kv", "r1.0")}
    assert plan["pause_s"]["0"] == pytest.approx(plan["kv_done_s"])


def test_a_dying_instance_sends_what_only_it_has(report_of: ReportOf) -> None:
    """Given time; without notice, it comes from storage and requests are computed again."""
    change = "plan --from 1,2,4 --to 1,2,4"
    with_notice, without = (report_of(f"{change} {how}").document for how in ("--leaving 1 --grace 60", "--lost 1"))
    assert with_notice["storage_bytes"] == 0
    assert with_notice["recomputed"] == []
    assert {each["source"][:2] for each in with_notice["transfers"]} == {"i1"}
    assert with_notice["transfers"][0]["part"] == "kv"
    kv_bytes = sum(each["bytes"] for each in with_notice["transfers"] if each["part"] == "kv")
    assert without["storage_bytes"] == with_notice["moved_bytes"] - kv_bytes
    assert without["waiting"] == ["r0.0"]


def test_a_buffer_is_kept_to(report_of: ReportOf) -> None:
    """At a cost of time."""
    without, within = (
        report_of(f"plan --from 1,4,4 --to 1,2,8 {buffer}").document for buffer in ("", "--buffer 256MiB")
    )
    assert max(within["peak_buffer_bytes"].values()) <= 256 << 20 < max(without["peak_buffer_bytes"].values())
    assert within["done_s"] >= without["done_s"]
    assert within["moved_bytes"] == without["moved_bytes"]


def test_a_live_plan_asks_a_running_mesh(spotwise: CommandLine) -> None:
    ended = spotwise("plan", "--live", "--to", "2,2,8", "--name", "nowhere")
    assert ended.status == 1
    assert "nowhere" in ended.stderr


def test_a_title_names_a_few_instances(report_of: ReportOf) -> None:
    """Of many instances under notice, and many that join, four are named, and the others counted."""
    leaving = ",".join(map(str, range(30)))
    report = report_of(f"plan --from 16,2,4 --to 16,2,4 --leaving {leaving} --rows 1")
    assert "; i0 i1 i2 i3 +26 under notice, 30 s left; i32 i33 i34 i35 +26 join" in report.text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--from 2,3 --to 2,2,8", "--from"),
        ("--from 2,3,4 --to 0,2,8", "--to"),
        ("--from 2,3,4 --to 1,99,4", "--to"),
        ("--from 2,3,4 --to 2,2,8 --devices 9", "--devices"),
        ("--from 2,3,4 --to 2,2,8 --leaving 6", "--leaving"),
        ("--from 2,3,4 --to 2,2,8 --leaving x", "--leaving"),
        ("--from 2,3,4 --to 2,2,8 --leaving 1 --lost 1", "--lost"),
        ("--from 2,3,4 --to 2,2,8 --joining 1", "--joining"),
        ("--from 2,3,4 --to 2,2,8 --requests 2", "--requests"),
        ("--from 2,3,4 --to 2,2,8 --model nothing", "--model"),
        ("--from 2,3,4 --to 2,2,8 --network fast", "--network"),
        ("--from 2,3,4 --to 2,2,8 --plot plan.txt", "--plot"),
        ("--to 2,2,8", "--from is missing"),
        ("--live --from 2,3,4 --to 2,2,8", "--from"),
        ("--live --leaving 1 --rows 5 --to 2,2,8", "--leaving, --rows: --live asks"),
        ("--from 2,3,4 --to 2,2,8 --name mine", "--name mine: only --live"),
        ("--from 2,3,4 --to 2,2,8 --grace 5", "--grace 5: no instance is under notice"),
        ("--from 2,3,4 --to 2,2,8 --at-once --stage-ms 5", "--stage-ms"),
        ("--from 2,3,4 --to 2,2,8 --tokens 100 --decoded 101", "--decoded 101: a request has 100 tokens"),
    ],
)
def test_a_wrong_option_is_named(refusal_of: RefusalOf, options: str, named: str) -> None:
    assert named in refusal_of(f"plan {options}")
