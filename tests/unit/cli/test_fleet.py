"""What `spotwise fleet` shows of the planner's view."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from spotwise.cli import fleet as command
from spotwise.cli.fleet import fleet_view
from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages.fleet import (
    FleetInstance,
    FleetReported,
    FleetView,
    InstanceOffer,
    InstanceReason,
    InstanceState,
    LearnedLives,
    Market,
)
from tests.unit.cli.command_line import CommandLine

NOW = 10_000.0
RUNNING = FleetInstance("i-1", "small", Market.SPOT, InstanceState.RUNNING, NOW - 600, "t", "zone-a", 0.4)
BOUGHT = replace(RUNNING, id="i-2", market=Market.ON_DEMAND, price_per_h=1.2, zone="")
LEAVING = replace(
    RUNNING, id="i-3", state=InstanceState.LEAVING, leaves_at_s=NOW + 20, why_leaving="node-1 leaves", zone="zone-b"
)
GONE = replace(RUNNING, id="i-4", state=InstanceState.GONE)
OFFER = InstanceOffer("small", Market.SPOT, 0.4, 3)
REFUSED = replace(OFFER, zone="zone-a", refused_until_s=NOW + 45, refusal="no capacity")
#: One end in 1,000 s.
LIVES = LearnedLives("small", "zone-a", PiecewiseHazard((0.0,), (1e-3,)), lives=2, ends=1)
REPORT = FleetReported("watcher-0", 1, NOW, "local", (RUNNING, BOUGHT, LEAVING, GONE), (OFFER,), spent=0.5)
VIEW = FleetView(
    REPORT,
    rate=1.5,
    cv=1.0,
    input_tokens=60,
    output_tokens=24,
    config="2,1,1",
    serving="1,1,1",
    throughput=2.5,
    request_s=1.25,
    price_per_h=2.0,
    reasons=(InstanceReason("i-1", "serves: cheapest for 1.5 requests/s"),),
    why="2,1,1 on 2 small is the cheapest",
)


def shown(view: FleetView, *, gone: bool = False) -> str:
    """The view as a pipe has it."""
    assert view.report is not None
    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        console.print(fleet_view(view, view.report, NOW, gone=gone))
    return capture.get()


def row(text: str, first: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"│ {first} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_load_choice_and_bill_come_first() -> None:
    lines = shown(VIEW).splitlines()
    assert lines[0] == "load: 1.50 requests/s (CV 1.00), 60 tokens in, 24 out"
    assert lines[1] == "chosen: 2,1,1, serving: 1,1,1 (2.50 requests/s at most, 1.25 s a request)"
    assert "(2.50 requests/s at most, more come than it serves)" in shown(replace(VIEW, request_s=None))
    assert lines[2] == "price: 2 $/h now, no budget; 0.5000 $ so far; provider local"
    assert lines[3] == "why: 2,1,1 on 2 small is the cheapest"
    assert "budget 3" in shown(replace(VIEW, budget_per_h=3.0))


def test_an_instance_has_a_row_with_its_life_and_its_reason() -> None:
    """A spot one without a known life, one on demand, and one that leaves; one that is gone only where that is requested."""
    text = shown(VIEW)
    why = "serves: cheapest for 1.5 requests/s"
    assert row(text, "i-1") == ["i-1", "small", "spot", "zone-a", "running", "10 min 0 s", "unknown", "0.4", why]
    assert row(text, "i-2")[6:8] == ["stays", "1.2"]
    assert row(text, "i-3")[4:7] == ["leaving", "10 min 0 s", "20 s at most"]
    assert row(text, "i-3")[8] == "node-1 leaves"
    assert "i-4" not in text
    assert row(shown(VIEW, gone=True), "i-4")[4:7] == ["gone", "10 min 0 s", ""]


def test_a_life_is_that_of_the_instances_zone_or_else_of_its_type_without_a_zone() -> None:
    """As the planner and the scheduler take it; none before the first end."""

    def life(*lives: LearnedLives) -> str:
        return row(shown(replace(VIEW, report=replace(REPORT, lives=lives))), "i-1")[6]

    assert life(LIVES) == "16 min 40 s"
    slower = replace(LIVES, zone="zone-b", hazard=PiecewiseHazard((0.0,), (1e-4,)))
    assert life(slower, LIVES) == "16 min 40 s"
    assert life(slower) == "unknown"
    assert life(slower, replace(slower, zone="")) == "2 h 46 min"
    assert life(replace(LIVES, ends=0, hazard=PiecewiseHazard((0.0,), (0.0,)))) == "unknown"
    assert life(replace(LIVES, type_name="wide")) == "unknown"


def test_what_was_refused_is_named_while_it_rests() -> None:
    text = shown(replace(VIEW, report=replace(REPORT, offers=(REFUSED,))))
    assert "small, spot in zone-a: not asked for 45 s more: no capacity" in text
    assert "not asked" not in shown(
        replace(VIEW, report=replace(REPORT, offers=(replace(REFUSED, refused_until_s=1),)))
    )


def test_a_provider_that_does_not_list_is_named() -> None:
    text = shown(replace(VIEW, report=replace(REPORT, problem="no credentials")))
    assert "the provider does not list its instances: no credentials" in text


def answered_with(view: FleetView, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(url: str) -> FleetView:
        return view

    monkeypatch.setattr(command, "ask_fleet", ask)


def test_a_program_gets_json(spotwise: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    answered_with(VIEW, monkeypatch)
    ended = spotwise("fleet", "--nats-url", "nats://h:4222", "--json")
    told = json.loads(ended.stdout)
    assert told["serving"] == "1,1,1"
    assert [each["state"] for each in told["report"]["instances"]] == ["running", "running", "leaving", "gone"]
    assert told["report"]["instances"][0]["market"] == "spot"


def test_without_a_provider_the_reason_is_the_error(spotwise: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    answered_with(FleetView(None, why="the planner has no fleet file (SPOTWISE_FLEET_FILE)"), monkeypatch)
    ended = spotwise("fleet", "--nats-url", "nats://h:4222")
    assert (ended.status, ended.stdout) == (1, "")
    assert "the planner has no fleet file" in ended.stderr
