"""A cluster in simulated time: small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.counted_blocks import CountedBlockPool
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.simulator.world.client import SimulationError
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.observation import Arrival
from spotwise.simulator.world.settings import Overlap
from spotwise.simulator.world.world import World
from tests.unit.simulator.world.worlds import COST, Diary, machine_type, machines, serve, settings


def prefill_s(tokens: int) -> float:
    return COST.fixed_s + COST.prompt_token_s * tokens


def decode_s(*contexts: int) -> float:
    return COST.fixed_s + sum(COST.decode_s + COST.decode_context_s * context for context in contexts)


class TestOneRequest:
    """The times of one request's phases."""

    def test_a_prompt_is_computed_handed_over_and_decoded(self) -> None:
        """A small one's KV, 100,000 bytes at 10 MB/s, leaves when all of it is there."""
        result, diary = serve(machines(prompt=1, token=1), [Arrival(5.0, 100, 3)])
        (served,) = diary.completed
        assert served.ttft_s == pytest.approx(prefill_s(100))
        assert served.e2e_s == pytest.approx(prefill_s(100) + 0.01 + decode_s(101) + decode_s(102))
        assert [diary.run_by(machine) for machine in ("m0", "m1")] == [1, 2]
        assert [count for _, count in diary.gaps] == [1, 1]
        assert [gap_s for gap_s, _ in diary.gaps] == pytest.approx([0.01 + decode_s(101), decode_s(102)])
        assert (result.completed, result.failed) == (1, 0)
        assert result.ended_s == pytest.approx(5.0 + served.e2e_s)

    def test_a_machine_reports_time_and_bytes(self) -> None:
        result, diary = serve(machines(prompt=1, token=1), [Arrival(0.0, 100, 3)])
        prompt, token = result.machines
        assert (prompt.home_pool, token.home_pool) == (Pool.PROMPT, Pool.TOKEN)
        assert (prompt.sent, token.sent) == (1, 0)
        assert prompt.sent_bytes == pytest.approx(100_000)
        assert diary.busy_s(prompt.machine_id) == pytest.approx(prefill_s(100))
        assert diary.busy_s(token.machine_id) == pytest.approx(decode_s(101) + decode_s(102))

    def test_a_large_prompts_kv_leaves_layer_by_layer(self) -> None:
        """Of ten layers the last one's KV, 0.01 s, is all that is seen of 0.1 s."""
        _, diary = serve(machines(prompt=1, token=1), [Arrival(0.0, 1000, 2)])
        assert diary.completed[0].e2e_s == pytest.approx(prefill_s(1000) + 0.01 + decode_s(1001))

    def test_what_the_link_cannot_carry_meanwhile_is_seen(self) -> None:
        """Nine layers take 0.18 s from the first one's end on, the last 0.02 s more."""
        cluster = machines(prompt=1, token=1, kind=machine_type(link_bytes_per_s=5e6))
        _, diary = serve(cluster, [Arrival(0.0, 1000, 2)])
        assert diary.completed[0].e2e_s == pytest.approx(prefill_s(1000) / 10 + 0.2 + decode_s(1001))

    def test_without_overlap_all_of_a_transfer_is_seen(self) -> None:
        _, diary = serve(machines(prompt=1, token=1), [Arrival(0.0, 1000, 2)], settings(overlap=Overlap(None)))
        assert diary.completed[0].e2e_s == pytest.approx(prefill_s(1000) + 0.1 + decode_s(1001))

    def test_a_mixed_machine_does_both_and_sends_nothing(self) -> None:
        result, diary = serve(machines(mixed=1), [Arrival(0.0, 1000, 3)])
        assert diary.completed[0].e2e_s == pytest.approx(prefill_s(1000) + decode_s(1001) + decode_s(1002))
        assert result.machines[0].sent_bytes == 0

    def test_a_single_token_needs_no_token_phase(self) -> None:
        """The request ends on its prompt machine, and the KV sent before that was wasted."""
        result, diary = serve(machines(prompt=1, token=1), [Arrival(0.0, 1000, 1)])
        assert diary.completed[0].e2e_s == diary.completed[0].ttft_s == pytest.approx(prefill_s(1000))
        assert (result.machines[0].sent, diary.run_by("m1")) == (0, 0)
        assert result.machines[0].sent_bytes > 0

    def test_messages_take_their_time(self) -> None:
        """The request, the reservation, its answer, the order, and the token; in place the request, the order and the token."""
        for split, messages in ((machines(prompt=1, token=1), 5), (machines(mixed=1), 3)):
            _, diary = serve(split, [Arrival(1.0, 100, 1)], settings(control_latency_s=0.25))
            assert diary.completed[0].ttft_s == pytest.approx(messages * 0.25 + prefill_s(100))


class TestManyRequests:
    """How they get into one another's way."""

    def test_two_hand_offs_to_one_machine_share_its_link(self) -> None:
        """Both take twice as long as alone; the first to be there is decoded, then the second."""
        _, diary = serve(machines(prompt=2, token=1), [Arrival(0.0, 100, 2), Arrival(0.0, 100, 2)])
        first_s = prefill_s(100) + 0.02 + decode_s(101)
        assert [request.e2e_s for request in diary.completed] == [
            pytest.approx(first_s),
            pytest.approx(first_s + decode_s(101)),
        ]

    def test_whole_prompts_hold_up_those_that_decode_and_parts_do_so_less(self) -> None:
        """Chunked prefill bounds the longest gap."""
        arrivals = [Arrival(0.0, 50, 20), Arrival(0.1, 2000, 2)]
        limits = BatchLimits(max_num_seqs=8, max_num_batched_tokens=64)
        chunked = settings(WorkerPolicy(limits, prefix_caching=False))
        _, whole = serve(machines(mixed=1), arrivals)
        _, parts = serve(machines(mixed=1), arrivals, chunked)
        longest = [max(gap_s for gap_s, _ in diary.gaps) for diary in (whole, parts)]
        assert longest[0] > prefill_s(2000)
        assert longest[1] < prefill_s(128)

    def test_without_an_oracle_blocks_are_given_as_tokens_come(self) -> None:
        kind = machine_type(kv_tokens=512)
        arrivals = [Arrival(0.0, 16, 8) for _ in range(8)]
        _, unknown = serve(machines(mixed=1, kind=kind), arrivals, settings(max_new_tokens=240))
        reserved = settings(WorkerPolicy(reserve=Reserve.MAX_TOKENS, prefix_caching=False), max_new_tokens=240)
        _, known_bound = serve(machines(mixed=1, kind=kind), arrivals, reserved)
        _, oracle = serve(machines(mixed=1, kind=kind), arrivals, settings(knows_output=True))
        assert unknown.run_by("m0") < known_bound.run_by("m0")
        assert oracle.run_by("m0") < known_bound.run_by("m0")

    def test_room_is_known_with_the_next_heartbeat_or_at_once(self) -> None:
        """One request fills the machine; the second begins when the scheduler receives the report that the first has left."""
        kind, arrivals = machine_type(kv_tokens=64), [Arrival(0.0, 32, 16), Arrival(0.0, 32, 16)]
        oracle = settings(knows_output=True, heartbeat_s=5.0)
        _, late = serve(machines(mixed=1, kind=kind), arrivals, oracle)
        _, at_once = serve(machines(mixed=1, kind=kind), arrivals, replace(oracle, beats_after_endings=True))
        assert late.completed[1].ttft_s == pytest.approx(5.0 + prefill_s(32))
        assert at_once.completed[1].ttft_s == pytest.approx(at_once.completed[0].e2e_s + prefill_s(32))

    def test_a_machine_that_always_works_for_the_other_pool_is_given_to_it(self) -> None:
        """One token machine cannot hold what three prompt machines send: a prompt machine helps out, then moves."""
        arrivals = [Arrival(number * 0.05, 64, 100) for number in range(400)]
        kind = machine_type(kv_tokens=1024)
        pools = PoolPolicy(prefix_spans=0, repurpose_share=0.5, repurpose_window_s=2.0)
        stays, _ = serve(
            machines(prompt=3, token=1, kind=kind),
            arrivals,
            settings(max_new_tokens=128, pools=replace(pools, repurpose_window_s=None)),
        )
        moves, _ = serve(machines(prompt=3, token=1, kind=kind), arrivals, settings(max_new_tokens=128, pools=pools))
        home_pools = [machine.home_pool for machine in stays.machines]
        assert home_pools == [Pool.PROMPT, Pool.PROMPT, Pool.PROMPT, Pool.TOKEN]
        assert [machine.home_pool for machine in moves.machines].count(Pool.TOKEN) > 1

    def test_what_no_machine_could_hold_is_refused(self) -> None:
        """The refusal is reported to the observer, not raised."""
        result, diary = serve(machines(mixed=1), [Arrival(0.0, 5000, 1), Arrival(1.0, 10, 1)])
        assert (result.completed, result.failed) == (1, 1)
        arrival, reason = diary.failed[0]
        assert arrival.prompt_tokens == 5000
        assert reason.startswith("never_fits")

    def test_a_machine_to_which_nothing_happens_costs_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A hundred idle machines beat once each, at the start."""
        planned: list[float] = []

        def counted(schedule: Callable[..., None]) -> Callable[..., None]:
            def count(queue: EventQueue, time_s: float, *what: Any) -> None:
                planned.append(time_s)
                schedule(queue, time_s, *what)

            return count

        for schedule in (EventQueue.at, EventQueue.in_turn):
            monkeypatch.setattr(EventQueue, schedule.__name__, counted(schedule))
        serve(machines(mixed=1), [Arrival(10.0, 10, 1)])
        few = len(planned)
        serve(machines(mixed=101), [Arrival(10.0, 10, 1)])
        assert len(planned) - few == few + 100

    def test_leaked_blocks_are_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(CountedBlockPool, "free", lambda pool, owner: 0)
        with pytest.raises(SimulationError, match="KV blocks are held"):
            serve(machines(mixed=1), [Arrival(0.0, 10, 2)], settings(aggregates=False))

    def test_the_next_arrival_is_read_when_the_one_before_has_come(self) -> None:
        """A trace is never held in memory."""
        diary = Diary()
        world = World(machines(mixed=1), settings(), diary)
        read = []

        def trace() -> Iterator[Arrival]:
            for number in range(5):
                read.append((number, world.now))
                yield Arrival(number * 1.0, 10, 1)

        world.run(trace())
        assert read == [(0, 0.0), (1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]

    def test_arrivals_that_go_back_in_time_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="nothing can happen"):
            serve(machines(mixed=1), [Arrival(1.0, 10, 1), Arrival(0.5, 10, 1)])

    def test_a_world_without_machines_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="machine"):
            World([], settings(), Diary())


@pytest.mark.parametrize(("news_interval_s", "machine"), [(0.02, "m0"), (1000.0, "m1")])
def test_a_machine_that_has_computed_a_prompt_reports_it_at_once(news_interval_s: float, machine: str) -> None:
    """The first is free when the third request comes, the second is not; only that heartbeat shows it."""
    arrivals = [Arrival(0.0, 1000, 1), Arrival(prefill_s(1000) - 0.01, 500, 1), Arrival(prefill_s(1000) + 0.01, 300, 1)]
    world = settings(max_new_tokens=1, heartbeat_s=1000.0, news_interval_s=news_interval_s)
    _, diary = serve(machines(mixed=2), arrivals, world)
    served = {shape.prompt_tokens: machine_id for machine_id, shape, _, _ in diary.iterations}
    assert served == {1000: "m0", 500: "m1", 300: machine}


@pytest.mark.parametrize(("third_s", "machine"), [(0.45, "m1"), (0.55, "m0")])
def test_news_waits_until_the_last_heartbeat_is_long_enough_ago(third_s: float, machine: str) -> None:
    """Both machines are free early, and report it half a second after their first heartbeat."""
    arrivals = [Arrival(0.0, 1000, 1), Arrival(0.1, 500, 1), Arrival(third_s, 300, 1)]
    world = settings(max_new_tokens=1, heartbeat_s=1000.0, news_interval_s=0.5)
    _, diary = serve(machines(mixed=2), arrivals, world)
    served = {shape.prompt_tokens: machine_id for machine_id, shape, _, _ in diary.iterations}
    assert served == {1000: "m0", 500: "m1", 300: machine}


def test_one_request_at_a_time_waits_as_in_queueing_theory() -> None:
    """Poisson arrivals at a server with a constant time of service: M/D/1, mean wait = rho / (2 (1 - rho)) services."""
    service_s, load, count = 0.1, 0.6, 20_000
    rng = np.random.default_rng(7)
    at_s = np.cumsum(rng.exponential(service_s / load, count))
    kind = machine_type(kv_tokens=100_000, cost=LinearIterationCost(service_s, 0.0, 0.0, 0.0, 0.0))
    one_at_a_time = WorkerPolicy(BatchLimits(max_num_seqs=1), prefix_caching=False)
    _, diary = serve(
        machines(mixed=1, kind=kind),
        (Arrival(float(time_s), 16, 1) for time_s in at_s),
        settings(one_at_a_time, max_new_tokens=1),
    )
    waits = [request.ttft_s - service_s for request in diary.completed]
    assert len(waits) == count
    assert np.mean(waits) == pytest.approx(load / (2 * (1 - load)) * service_s, rel=0.05)
