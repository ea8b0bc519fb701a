"""Prompts that begin alike, in a simulated world with prefix caching."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.world.observation import Arrival, PromptBlocks
from spotwise.simulator.world.settings import Overlap, SimulatedMachine, WorldSettings
from tests.unit.simulator.world.worlds import COST, machine_type, machines, serve, settings

CACHING = settings(WorkerPolicy(prefix_caching=True), pools=PoolPolicy())
#: Tokens of a block of the trace; of the worker's blocks they are four.
BLOCK = 64


def prefill_s(tokens: int) -> float:
    return COST.fixed_s + COST.prompt_token_s * tokens


def prompt(at_s: float, *hashes: int, tokens: int | None = None, output: int = 1) -> Arrival:
    return Arrival(at_s, len(hashes) * BLOCK if tokens is None else tokens, output, PromptBlocks(hashes, BLOCK))


def ttft_s(arrivals: list[Arrival], chosen: WorldSettings, mixed: int = 1) -> list[tuple[float, int]]:
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


@pytest.mark.parametrize(
    ("arrivals", "cached"),
    [
        ([prompt(0.0, 1, tokens=100), prompt(1.0, 1, tokens=100)], [0, 64]),
        ([Arrival(0.0, 100, 1), Arrival(1.0, 100, 1)], [0, 0]),
    ],
    ids=["behind the last block", "unknown content"],
)
def test_tokens_that_no_block_names_are_no_other_prompts(arrivals: list[Arrival], cached: list[int]) -> None:
    assert [tokens for _, tokens in ttft_s(arrivals, CACHING)] == cached


def test_without_prefix_caching_contents_change_nothing() -> None:
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
    apart = PoolPolicy(break_even=False, prefix_spans=0)
    arrivals = [prompt(0.01 * number, number, output=5) for number in range(8)]
    plain, named = (
        serve(machines(prompt=1, token=2), arrivals, settings(pools=apart, reports_machines=reports))[1].completed
        for reports in (False, True)
    )
    assert {each.machines for each in plain} == {None}
    assert {each.machines for each in named} == {("m0", "m1"), ("m0", "m2")}
    assert [replace(each, machines=None) for each in named] == plain


#: One request whose KV of 100,000 bytes is handed over before its second token.
ONE_HANDED_OVER = [Arrival(0.0, 100, 2)]
DECODE_S = COST.fixed_s + COST.decode_s + 101 * COST.decode_context_s


def pair(send_latency_s: float | None, receive_latency_s: float | None) -> list[SimulatedMachine]:
    """A prompt machine and a token machine, which are alike but for their links' latencies."""
    kind = machine_type(link_bytes_per_s=1e6)
    return [
        SimulatedMachine(replace(kind, link_latency_s=latency_s), pool)
        for latency_s, pool in ((send_latency_s, Pool.PROMPT), (receive_latency_s, Pool.TOKEN))
    ]


@pytest.mark.parametrize(
    ("send_s", "receive_s", "latency_s"), [(0.3, 0.1, 0.3), (0.1, 0.3, 0.3), (None, 0.1, 0.2), (0.0, 0.0, 0.0)]
)
def test_the_longer_latency_of_two_links_counts(
    send_s: float | None, receive_s: float | None, latency_s: float
) -> None:
    """A machine without a latency of its own has the world's."""
    chosen = settings(link_latency_s=0.2, overlap=Overlap(None), pools=replace(settings().pools, break_even=False))
    _, diary = serve(pair(send_s, receive_s), ONE_HANDED_OVER, chosen)
    (request,) = diary.completed
    assert request.finished_s - request.first_token_s == pytest.approx(0.1 + latency_s + DECODE_S, abs=1e-6)


@pytest.mark.parametrize("layers", [1, 2, 10])
def test_a_machine_sends_layer_by_layer_as_it_is_made_to(layers: int) -> None:
    """Beside the prompt's computing all layers but the last are sent: what the world says holds for other machines."""
    kind = machine_type(link_bytes_per_s=1e8)
    cluster = [
        SimulatedMachine(kind, Pool.PROMPT, overlap=Overlap(1, layers)),
        SimulatedMachine(kind, Pool.TOKEN),
    ]
    chosen = settings(overlap=Overlap(None), pools=replace(settings().pools, break_even=False))
    _, diary = serve(cluster, ONE_HANDED_OVER, chosen)
    (request,) = diary.completed
    assert request.finished_s - request.first_token_s == pytest.approx(0.001 / layers + DECODE_S, abs=1e-6)


def test_a_worker_may_have_a_policy_of_its_own() -> None:
    chunked = WorkerPolicy(prefix_caching=False, limits=BatchLimits(max_num_seqs=16, max_num_batched_tokens=64))
    cluster = [
        SimulatedMachine(machine_type(), Pool.MIXED, chunked),
        SimulatedMachine(machine_type(), Pool.MIXED),
    ]
    _, diary = serve(cluster, [Arrival(0.0, 300, 2), Arrival(0.0, 300, 2)])
    prompts = {
        id_: max(shape.prompt_tokens for machine_id, shape, *_ in diary.iterations if machine_id == id_)
        for id_ in ("m0", "m1")
    }
    assert prompts == {"m0": 64, "m1": 300}


def test_a_prefix_cache_of_one_machine_alone_is_refused() -> None:
    """Without one in the world prompts have no contents, and all would be alike."""
    cluster = [
        SimulatedMachine(machine_type(), Pool.MIXED, WorkerPolicy(prefix_caching=True)),
        SimulatedMachine(machine_type(), Pool.MIXED),
    ]
    with pytest.raises(ValueError, match="prefix caching is a world's"):
        serve(cluster, ONE_HANDED_OVER)
