"""Discrete-event simulation of a recorded spot fleet on which one rule places requests: at random, least loaded, or least
expected cost of load and preemption (`core/lives/survival.py`); only notices are known ahead. A preempted request is
recomputed elsewhere. `World`'s machines are not used: runs have millions of uninterrupted iterations, and here a load change
is one event."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Literal

import numpy as np

from spotwise.core.lives.survival import PiecewiseHazard, Place, cheapest
from spotwise.simulator.world.events import EventQueue

#: Time, whether an instance joins or leaves, and its id.
NodeEvent = tuple[float, Literal["add", "remove"], str]


class PlacementRule(StrEnum):
    """The rule that places a request."""

    RANDOM = "random"
    LEAST_LOADED = "least loaded"  #: where the fewest requests are; among equals at random
    AWARE = "preemption-aware"


@dataclass(frozen=True, slots=True)
class PlacementSetting:
    """Requests, machines and the weight of a preemption.

    Attributes:
        rate_per_s: Poisson arrivals, requests a second.
        median_tokens, spread, longest_tokens: parameters of log-normal output lengths; `spread` is the standard
            deviation of the logarithm.
        length_error: error of the length estimate at placement: standard deviation of its logarithm.
        step_s, request_step_s: seconds of an iteration, and for each request in it.
        prompt_token_s: seconds of a prompt token, or of a recomputed one.
        slots: concurrent requests of an instance; more wait.
        notice_s: seconds from the notice to the preemption; a notified instance receives no requests.
        interruption_s: seconds of user time that an interruption is weighted with.
        steady: instances that are never preempted, besides those of the trace.
    """

    rate_per_s: float = 0.5
    prompt_tokens: int = 512
    median_tokens: float = 400.0
    spread: float = 1.6
    longest_tokens: int = 32_768
    length_error: float = 0.5
    step_s: float = 0.028
    request_step_s: float = 2e-4
    prompt_token_s: float = 4.4e-5
    slots: int = 32
    notice_s: float = 30.0
    interruption_s: float = 60.0
    steady: int = 0


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """Outcome of one run.

    Attributes:
        interruptions: interruptions of requests; one may be interrupted again.
        recomputed_tokens: prompt and output, over all interruptions.
        mean_latency_s: E2E.
    """

    requests: int
    interruptions: int
    recomputed_tokens: int
    mean_latency_s: float


def place_requests(
    events: Sequence[NodeEvent],
    from_s: float,
    hazard: PiecewiseHazard,
    setting: PlacementSetting,
    rule: PlacementRule,
    seed: int,
) -> PlacementOutcome:
    """Serve the requests that arrive from a time until the trace ends, and return their outcome.

    Args:
        events: the whole trace, by time; instances still up at its end stay until all requests have ended.
        from_s: earliest arrival.
        hazard: estimated preemption hazard of the trace's instances.
        seed: seed of requests, and of random placement.
    """
    return _PlacementRun(events, from_s, hazard, setting, rule, seed).run()


@dataclass(slots=True)
class _Request:
    arrived_s: float
    tokens: int
    guess: float
    decoded: int = 0


@dataclass(slots=True)
class _Node:
    name: str
    from_s: float
    stays: bool
    leaving: bool = False
    gone: bool = False
    at_s: float = 0.0  # time up to which `iterations` is counted
    iterations: float = 0.0
    version: int = 0
    running: list[tuple[float, int, float, _Request]] = field(default_factory=list)  # ends, order, began, whose


class _PlacementRun:
    def __init__(
        self,
        events: Sequence[NodeEvent],
        from_s: float,
        hazard: PiecewiseHazard,
        setting: PlacementSetting,
        rule: PlacementRule,
        seed: int,
    ) -> None:
        self._hazard, self._setting, self._rule = hazard, setting, rule
        self._choices = np.random.default_rng([seed, 1])
        self._nodes: dict[str, _Node] = {
            f"steady-{index}": _Node(f"steady-{index}", from_s, stays=True) for index in range(setting.steady)
        }
        self._waiting: deque[_Request] = deque()
        self._queue = EventQueue()
        self._placed = 0
        self._latencies: list[float] = []
        self._interruptions = self._recomputed = 0
        came: dict[str, float] = {}
        for at_s, kind, node in events:
            if kind == "remove":  # the notice of a newly joined instance follows its join
                self._at(max(at_s - setting.notice_s, came[node]), partial(self._notice, node))
                self._at(at_s, partial(self._remove, node))
            else:
                came[node] = at_s
                self._at(at_s, partial(self._add, node))
        requests = _requests(setting, from_s, events[-1][0], seed)
        self._arrived = len(requests)
        for request in requests:
            self._at(request.arrived_s, partial(self._waiting.append, request))

    def run(self) -> PlacementOutcome:
        self._queue.run()
        if len(self._latencies) != self._arrived:
            raise RuntimeError("the trace ends with an empty fleet, and requests wait; add steady instances")
        mean_s = float(np.mean(self._latencies)) if self._latencies else 0.0
        return PlacementOutcome(self._arrived, self._interruptions, self._recomputed, mean_s)

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        self._queue.at(at_s, self._happen, action)

    def _happen(self, action: Callable[[], None]) -> None:
        action()
        self._place_waiting(self._queue.now)

    def _add(self, name: str) -> None:
        now_s = self._queue.now
        self._nodes[name] = _Node(name, now_s, stays=False, at_s=now_s)

    def _notice(self, name: str) -> None:
        self._nodes[name].leaving = True

    def _place_waiting(self, now_s: float) -> None:
        while self._waiting:
            nodes = [
                node for node in self._nodes.values() if not node.leaving and len(node.running) < self._setting.slots
            ]
            if not nodes:
                return
            request = self._waiting.popleft()
            self._start(self._choose(nodes, request, now_s), request, now_s)

    def _choose(self, nodes: list[_Node], request: _Request, now_s: float) -> _Node:
        if self._rule is PlacementRule.RANDOM:
            return nodes[int(self._choices.integers(len(nodes)))]
        if self._rule is PlacementRule.LEAST_LOADED:
            least = min(len(node.running) for node in nodes)
            nodes = [node for node in nodes if len(node.running) == least]
            return nodes[int(self._choices.integers(len(nodes)))]
        setting = self._setting
        left = max(1.0, request.guess - request.decoded)
        best_step_s = setting.step_s + setting.request_step_s * (1 + min(len(node.running) for node in nodes))
        places = [
            Place(
                node.name,
                now_s - node.from_s,
                None if node.stays else self._hazard,
                left * setting.request_step_s * len(node.running),
            )
            for node in nodes
        ]
        return self._nodes[cheapest(places, [left * best_step_s], setting.interruption_s).name]

    def _start(self, node: _Node, request: _Request, now_s: float) -> None:
        self._advance(node, now_s)
        computed = self._setting.prompt_tokens + request.decoded
        prompt = computed * self._setting.prompt_token_s / self._setting.step_s  # as iterations
        first = node.iterations + prompt
        self._placed += 1
        heapq.heappush(node.running, (first + request.tokens - request.decoded, self._placed, first, request))
        self._expect(node)

    def _end_one(self, node: _Node, version: int) -> None:
        if node.version != version or node.gone:
            return
        now_s = self._queue.now
        self._advance(node, now_s)
        request = heapq.heappop(node.running)[3]
        self._latencies.append(now_s - request.arrived_s)
        self._expect(node)

    def _remove(self, name: str) -> None:
        node = self._nodes.pop(name)
        self._advance(node, self._queue.now)
        node.gone = True
        for _, _, first, request in sorted(node.running, key=lambda entry: entry[1]):
            request.decoded += max(0, math.floor(node.iterations - first))
            request.decoded = min(request.decoded, request.tokens - 1)
            self._interruptions += 1
            self._recomputed += self._setting.prompt_tokens + request.decoded
            self._waiting.append(request)

    def _advance(self, node: _Node, now_s: float) -> None:
        if node.running:
            node.iterations += (now_s - node.at_s) / self._step_s(node)
        node.at_s = now_s

    def _expect(self, node: _Node) -> None:
        node.version += 1
        if node.running:
            end_s = node.at_s + max(0.0, node.running[0][0] - node.iterations) * self._step_s(node)
            self._at(end_s, partial(self._end_one, node, node.version))

    def _step_s(self, node: _Node) -> float:
        return self._setting.step_s + self._setting.request_step_s * len(node.running)


def _requests(setting: PlacementSetting, from_s: float, until_s: float, seed: int) -> list[_Request]:
    rng = np.random.default_rng([seed, 0])
    count = int(rng.poisson(setting.rate_per_s * max(0.0, until_s - from_s)))
    arrivals = np.sort(rng.uniform(from_s, until_s, count))
    lengths = np.exp(rng.normal(math.log(setting.median_tokens), setting.spread, count))
    tokens = np.clip(np.rint(lengths), 1, setting.longest_tokens).astype(np.int64)
    guesses = tokens * np.exp(rng.normal(0.0, setting.length_error, count))
    return [
        _Request(float(at_s), int(length), float(guess))
        for at_s, length, guess in zip(arrivals, tokens, guesses, strict=True)
    ]
