"""Machines of one world with links, overlap and policies of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages.members import Pool
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.world.observation import Arrival
from spotwise.simulator.world.settings import Overlap, SimulatedMachine
from tests.unit.simulator.world.worlds import COST, machine_type, serve, settings

#: One request whose KV of 100,000 bytes is handed over before its second token.
ARRIVALS = [Arrival(0.0, 100, 2)]
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
    _, diary = serve(pair(send_s, receive_s), ARRIVALS, chosen)
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
    _, diary = serve(cluster, ARRIVALS, chosen)
    (request,) = diary.completed
    assert request.finished_s - request.first_token_s == pytest.approx(0.001 / layers + DECODE_S, abs=1e-6)


def test_a_worker_may_have_a_policy_of_its_own() -> None:
    """Of two equal machines only the one with a bound cuts its prompts."""
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
        serve(cluster, ARRIVALS)
