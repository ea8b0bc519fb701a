"""Prompts that begin alike, in a simulated world with prefix caching."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.world.observation import Arrival, PromptBlocks
from spotwise.simulator.world.settings import WorldSettings
from tests.unit.simulator.world.worlds import COST, machines, serve, settings

CACHING = settings(WorkerPolicy(prefix_caching=True), pools=PoolPolicy())
#: Tokens of a block of the trace; of the worker's blocks they are four.
BLOCK = 64


def prefill_s(tokens: int) -> float:
    return COST.fixed_s + COST.prompt_token_s * tokens


def prompt(at_s: float, *hashes: int, tokens: int | None = None, output: int = 1) -> Arrival:
    return Arrival(at_s, len(hashes) * BLOCK if tokens is None else tokens, output, PromptBlocks(hashes, BLOCK))


def ttft_s(arrivals: list[Arrival], chosen: WorldSettings, mixed: int = 1) -> list[tuple[float, int]]:
    """TTFT and cached tokens of requests, in order of arrival."""
    _, diary = serve(machines(mixed=mixed), arrivals, chosen)
    ended = sorted(diary.completed, key=lambda request: request.arrival.at_s)
    return [(request.ttft_s, request.cached_tokens) for request in ended]


def test_the_computed_beginning_of_a_prompt_is_not_computed_again() -> None:
    """Equal blocks behind equal blocks count; the prompt's last token is always computed, so its last block of 16 is."""
    arrivals = [prompt(0.0, 1, 2, 3), prompt(1.0, 1, 2, 4), prompt(2.0, 5, 2, 3), prompt(3.0, 1, 2, 3)]
    found = ttft_s(arrivals, CACHING)
    expected = [(192, 0), (64, 128), (192, 0), (16, 176)]
    assert [cached for _, cached in found] == [cached for _, cached in expected]
    assert [seconds for seconds, _ in found] == pytest.approx([prefill_s(computed) for computed, _ in expected])


def test_a_prompt_is_part_of_a_block_longer() -> None:
    """Tokens behind the blocks that a trace names are no other prompt's."""
    arrivals = [prompt(0.0, 1, tokens=100), prompt(1.0, 1, tokens=100)]
    assert [cached for _, cached in ttft_s(arrivals, CACHING)] == [0, 64]


def test_prompts_of_unknown_content_have_nothing_in_common() -> None:
    arrivals = [Arrival(0.0, 100, 1), Arrival(1.0, 100, 1)]
    assert [cached for _, cached in ttft_s(arrivals, CACHING)] == [0, 0]


def test_without_prefix_caching_contents_change_nothing() -> None:
    """The same requests without contents have the same times."""
    arrivals = [prompt(0.1 * number, 1, 2, output=20) for number in range(5)]
    _, with_contents = serve(machines(prompt=1, token=1), arrivals)
    _, without = serve(machines(prompt=1, token=1), [replace(each, blocks=None) for each in arrivals])
    assert [(each.ttft_s, each.e2e_s) for each in with_contents.completed] == [
        (each.ttft_s, each.e2e_s) for each in without.completed
    ]


def test_the_scheduler_sends_a_prompt_to_the_worker_that_has_its_beginning() -> None:
    """With two idle machines every follower of a prompt goes where it was; without memory of prefixes it need not."""
    arrivals = [prompt(float(number), number % 2, 7, 10 + number, output=4) for number in range(10)]
    chosen = replace(CACHING, reports_machines=True)
    _, diary = serve(machines(mixed=2), arrivals, chosen)
    of_even = {each.machines for each in diary.completed if each.arrival.at_s % 2 == 0}
    assert len(of_even) == 1
    assert [each.cached_tokens for each in diary.completed] == [0, 0, *[128] * 8]


def test_a_prompt_machine_keeps_what_it_handed_off() -> None:
    """Where a prompt is computed elsewhere, all of its KV is sent to the token machine, the cached part too."""
    arrivals = [prompt(0.0, 1, 2, output=3), prompt(5.0, 1, 2, output=3)]
    chosen = replace(CACHING, pools=PoolPolicy(break_even=False), reports_machines=True)
    result, diary = serve(machines(prompt=1, token=1), arrivals, chosen)
    assert [(each.cached_tokens, each.machines) for each in diary.completed] == [(0, ("m0", "m1")), (112, ("m0", "m1"))]
    assert result.machines[0].sent_bytes == 2 * 128 * 1000


def test_machines_are_reported_on_request_alone() -> None:
    """Reporting changes no time."""
    apart = PoolPolicy(break_even=False, prefix_spans=0)
    arrivals = [prompt(0.01 * number, number, output=5) for number in range(8)]
    plain, named = (
        serve(machines(prompt=1, token=2), arrivals, settings(pools=apart, reports_machines=reports))[1].completed
        for reports in (False, True)
    )
    assert {each.machines for each in plain} == {None}
    assert {each.machines for each in named} == {("m0", "m1"), ("m0", "m2")}
    assert [replace(each, machines=None) for each in named] == plain
