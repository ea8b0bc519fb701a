"""Machines that leave a simulated world with a notice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from spotwise.core.costs.cost_model import BatchShape, LinearIterationCost
from spotwise.core.messages.members import Pool
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.costs.hardware import LanguageModel, MachineType
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.observation import Arrival, CompletedRequest, WorldResult
from spotwise.simulator.world.settings import SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World
from tests.unit.simulator.world import worlds

#: Eight requests that decode for about a second and a half.
ARRIVALS = [Arrival(0.01 * number, 40, 60) for number in range(8)]


def run(
    notice_s: float, *leaving: str, at_s: float = 0.3, link_bytes_per_s: float = 1e7, kv_tokens: int = 4096
) -> tuple[WorldResult, worlds.Diary]:
    """Serve the arrivals on one prompt and three token machines, of which some get notice."""
    kind = worlds.machine_type(kv_tokens, link_bytes_per_s)
    diary = worlds.Diary()
    world = World(worlds.machines(1, 3, kind=kind), worlds.settings(elastic=True, max_new_tokens=200), diary)
    for machine_id in leaving:
        world.notice_at(at_s, machine_id, notice_s)
    return world.run(ARRIVALS), diary


def test_requests_move_before_the_deadline() -> None:
    result, diary = run(0.4, "m1")
    assert (result.completed, result.failed) == (8, 0)
    assert result.moved > 0
    assert result.recomputed == 0
    assert diary.busy_s("m1") <= 0.3 + 0.4
    assert len(result.machines) == 4


def test_with_time_enough_requests_end_where_they_are() -> None:
    """By their longest possible answers."""
    result, _ = run(60.0, "m1")
    assert (result.completed, result.moved, result.recomputed) == (8, 0, 0)


def test_without_time_they_are_computed_again() -> None:
    """As without moves; so are those whose copy would take longer than computing again."""
    for notice_s, at_s, link_bytes_per_s in ((0.0, 0.3, 1e7), (0.4, 0.6, 1e6)):
        result, _ = run(notice_s, "m1", at_s=at_s, link_bytes_per_s=link_bytes_per_s)
        assert (result.completed, result.moved) == (8, 0)
        assert result.recomputed > 0


def test_a_machine_without_free_blocks_has_them_computed_again() -> None:
    """They wait for blocks at the scheduler then."""
    result, _ = run(0.4, "m1", "m2", kv_tokens=260)
    assert (result.completed, result.failed) == (8, 0)


@pytest.mark.parametrize("seed", range(12))
def test_any_machines_may_leave_at_any_time(seed: int) -> None:
    """No request is lost, and no block is held at the end, which the world checks."""
    rng = random.Random(seed)
    arrivals = [
        Arrival(at_s, rng.randint(1, 100), rng.randint(1, 80)) for at_s in sorted(rng.uniform(0, 3) for _ in range(40))
    ]
    world = World(
        worlds.machines(2, 3, 2),
        worlds.settings(elastic=True, control_latency_s=0.001, max_new_tokens=100),
        worlds.Diary(),
    )
    for machine_id in rng.sample([f"m{number}" for number in range(7)], 5):
        world.notice_at(rng.uniform(0, 3), machine_id, rng.choice([0.0, 0.1, 0.5, 2.0]))
    result = world.run(arrivals)
    assert (result.completed, result.failed) == (40, 0)


MODEL = LanguageModel("tiny", 0, layers=1, heads=1, kv_heads=1, head_size=1, value_bytes=1)
#: A prompt token takes 10 ms, a decode step 100 ms.
COST = LinearIterationCost(0.0, 0.01, 0.0, 0.1, 0.0)
#: Longer than all messages of a request.
SLACK_S = 0.02
REQUEST = Arrival(0.0, 10, 20)
ALONE_S = 0.1 + 19 * 0.1


@dataclass
class Seen:
    completed: list[CompletedRequest] = field(default_factory=list)

    def request_completed(self, request: CompletedRequest) -> None:
        self.completed.append(request)

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        raise AssertionError(reason)

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None: ...

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None: ...


@dataclass
class Scene:
    """A world without machines at its start, and what happens in it."""

    queue: EventQueue = field(default_factory=EventQueue)
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        settings = WorldSettings(
            MODEL,
            WorkerPolicy(prefix_caching=False),
            knows_output=True,
            memory_share=1.0,
            kv_block_size=1,
            elastic=True,
        )
        self.world = World((), settings, self.seen, self.queue)

    def join(self, at_s: float, machine_id: str, pool: Pool = Pool.MIXED) -> None:
        kind = SimulatedMachine(MachineType("tiny", COST, 100 * MODEL.kv_token_bytes, 1e9), pool)
        self.queue.at(at_s, lambda _: self.world.join(machine_id, kind))

    def leave(self, at_s: float, machine_id: str) -> None:
        """The machine leaves, and its requests compute their known tokens again."""

        def happen(_: object) -> None:
            for sequence in self.world.leave(machine_id):
                self.world.submit_again(int(sequence.choice_id), sequence.output_tokens)

        self.queue.at(at_s, happen)

    def move(self, at_s: float, from_id: str, to_id: str, pause_s: float) -> None:
        kind = SimulatedMachine(MachineType("tiny", COST, 100 * MODEL.kv_token_bytes, 1e9), Pool.MIXED)

        def happen(_: object) -> None:
            numbers = []
            for sequence in self.world.leave(from_id):
                numbers.append(int(sequence.choice_id))
                self.world.take_off(numbers[-1], sequence.output_tokens)
            self.queue.at(self.queue.now + pause_s, lambda _: self.world.join(to_id, kind, numbers))

        self.queue.at(at_s, happen)

    def request(self, at_s: float) -> None:
        self.queue.at(at_s, lambda _: self.world.submit(Arrival(at_s, REQUEST.prompt_tokens, REQUEST.output_tokens)))

    def run(self) -> list[float]:
        self.queue.run()
        self.world.check_idle()
        return [request.finished_s for request in self.seen.completed]


def test_a_request_waits_for_the_first_machine() -> None:
    scene = Scene()
    scene.request(1.0)
    scene.join(5.0, "a")
    (end_s,) = scene.run()
    assert 5.0 + ALONE_S < end_s < 5.0 + ALONE_S + SLACK_S


def test_the_requests_of_a_machine_that_leaves_are_computed_again_from_their_known_tokens() -> None:
    """At 1.05 s 10 tokens are known: prompt and answer are one prompt of 20 then, which brings the 11th."""
    scene = Scene()
    scene.join(0.0, "a")
    scene.join(0.5, "b")
    scene.request(0.01)
    scene.leave(1.05, "a")
    (end_s,) = scene.run()
    assert 1.05 + 0.2 + 9 * 0.1 < end_s < 1.05 + 0.2 + 9 * 0.1 + SLACK_S


def test_a_request_whose_kv_moves_computes_nothing_again() -> None:
    """The iteration that ran is lost, and the pause comes on top."""
    scene = Scene()
    scene.join(0.0, "a")
    scene.request(0.01)
    scene.move(1.05, "a", "b", pause_s=0.5)
    (end_s,) = scene.run()
    assert 1.55 + 10 * 0.1 < end_s < 1.55 + 10 * 0.1 + SLACK_S


def test_a_prompt_that_was_on_its_way_to_a_machine_that_left_is_placed_again() -> None:
    """The machine leaves before the order reaches it, after it, and while the prompt is computed."""
    for after_s in (0.0006, 0.0011, 0.0016, 0.0021, 0.05):
        scene = Scene()
        scene.join(0.0, "a")
        scene.request(1.0)
        scene.leave(1.0 + after_s, "a")
        scene.join(2.0, "b")
        (end_s,) = scene.run()
        assert end_s < 2.0 + 0.3 + ALONE_S


def test_with_phases_apart_either_machine_may_leave() -> None:
    for leaving in ("prompts", "tokens"):
        for after_s in (0.0016, 0.05, 0.1035, 0.5):
            scene = Scene()
            for machine, pool in (("prompts", Pool.PROMPT), ("tokens", Pool.TOKEN)):
                scene.join(0.0, machine, pool)
                scene.join(3.0, f"more {machine}", pool)
            scene.request(1.0)
            scene.leave(1.0 + after_s, leaving)
            assert len(scene.run()) == 1
