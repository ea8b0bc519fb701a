"""Machines that join and leave while a world runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spotwise.core.costs.cost_model import BatchShape, LinearIterationCost
from spotwise.core.messages.members import Pool
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.costs.hardware import LanguageModel, MachineType
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.observation import Arrival, CompletedRequest
from spotwise.simulator.world.settings import SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World

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
        """One machine replaces another and gets its KV."""
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
        """Let everything happen; return when each request ended."""
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
