"""Chooses the new pipeline that continues each request, by the state of each old pipeline.

Law: a pipeline is whole while every position of it with layers has a device; leaving devices count, as they can still send KV.
It is untouched while every position has a device that stays.

Law: a new configuration continues the D x B requests with most decoded tokens, then of the earlier pipeline (SpotServe, section
4.2), of each kind where phases are split; requests with incomplete KV are excluded.
Requests of an old pipeline stay together where one new pipeline has capacity for all. Each new pipeline continues one old one,
its *predecessor*: first pipelines that can run on, then those with most KV on staying devices; by the same number if possible.
Other requests go to pipelines that must stop anyway before they go to one that need not.
A pipeline runs on where P and M stay, all its devices stay, and its requests are exactly its predecessor's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spotwise.core.migration.deployment import Deployment, RunningRequest
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.shares import share_of


class OldPipelines:
    """The pipelines of a deployment, by number."""

    def __init__(self, before: Deployment, model: ModelShape) -> None:
        self._before = before
        self._model = model
        leaving = {instance.id for instance in before.instances if instance.is_leaving}
        self._held: dict[int, list[Position]] = defaultdict(list)
        self._staying: dict[int, list[Position]] = defaultdict(list)
        for device, position in before.positions.items():
            self._held[position.pipeline].append(position)
            if device.instance not in leaving:
                self._staying[position.pipeline].append(position)

    def is_whole(self, number: int) -> bool:
        """Return whether all of the KV of a pipeline is on some device."""
        config = self._before.config
        with_layers = sum(bool(self._layers(stage)) for stage in range(config.pipeline)) * config.tensor
        return sum(bool(self._layers(position.stage)) for position in self._held[number]) == with_layers

    def is_untouched(self, number: int) -> bool:
        """Return whether a pipeline has all its devices, and all of them stay."""
        return len(self._staying[number]) == self._before.config.pipeline_devices

    def untouched(self) -> list[int]:
        """Return the untouched pipelines."""
        return [number for number in range(self._before.config.pipelines) if self.is_untouched(number)]

    def requests(self, number: int) -> int:
        """Return how many requests a pipeline has."""
        return len(self._before.running.get(number, ()))

    def staying_kv_token_bytes(self, number: int) -> int:
        """Return the bytes of a token's KV that are on devices that stay."""
        tensor, kv = self._before.config.tensor, self._model.kv_layer_token
        return sum(
            len(self._layers(position.stage)) * kv.of(share_of(position.shard, tensor))
            for position in self._staying[number]
        )

    def is_for_prompts(self, number: int) -> bool:
        """Return whether a pipeline computes prompts only."""
        return number < self._before.config.prompt_data

    def ordinal(self, number: int) -> int:
        """Return a pipeline's number among its kind."""
        return number if self.is_for_prompts(number) else number - self._before.config.prompt_data

    def _layers(self, stage: int) -> range:
        return self._model.stage_layers(stage, self._before.config.pipeline)


class InheritedRequest(NamedTuple):
    """A request with its old pipeline and its index there."""

    old: int
    turn: int
    request: RunningRequest


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The requests and predecessors of the new pipelines.

    Attributes:
        running: requests by new pipeline, those of the predecessor first; pipelines without any are left out.
        waiting: requests without a pipeline, most decoded first.
        tokens: with KV that a new pipeline takes over from an old one, by (old, new).
        predecessors: the old pipeline of each new one; a new pipeline without one is left out.
        running_on: new pipelines that need not stop, and the old one that each is.
    """

    running: Mapping[int, tuple[RunningRequest, ...]]
    waiting: tuple[RunningRequest, ...]
    tokens: Mapping[tuple[int, int], int]
    predecessors: Mapping[int, int]
    running_on: Mapping[int, int]


@dataclass(slots=True)
class _SuccessorPipeline:
    number: int
    predecessor: int | None = None
    must_stop: bool = True
    entries: list[InheritedRequest] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(entry.request.tokens for entry in self.entries)


def inherit(before: Deployment, config: ParallelConfig, model: ModelShape) -> Inheritance:
    """Return which pipeline of a new configuration continues which requests."""
    old = OldPipelines(before, model)
    alike = (before.config.pipeline, before.config.tensor) == (config.pipeline, config.tensor)
    successors: list[_SuccessorPipeline] = []
    waiting: list[InheritedRequest] = []
    alive: list[InheritedRequest] = []
    for number in sorted(before.running):
        entries = [InheritedRequest(number, turn, request) for turn, request in enumerate(before.running[number])]
        (alive if old.is_whole(number) else waiting).extend(entries)
    for numbers, belongs in _kinds(config):
        claims = sorted((entry for entry in alive if belongs(entry.request)), key=_most_decoded)
        capacity = len(numbers) * config.max_batch
        waiting += claims[capacity:]
        successors += _fill(claims[:capacity], numbers, config, old, alike)
    if alike:
        _succeed_idle(successors, config, old)
    running_on = {
        successor.number: successor.predecessor
        for successor in successors
        if successor.predecessor is not None
        and alike
        and old.is_untouched(successor.predecessor)
        and _same_requests(successor, before)
    }
    tokens: dict[tuple[int, int], int] = defaultdict(int)
    for successor in successors:
        for entry in successor.entries:
            tokens[entry.old, successor.number] += entry.request.tokens
    return Inheritance(
        {
            successor.number: tuple(entry.request for entry in _in_order(successor))
            for successor in successors
            if successor.entries
        },
        tuple(entry.request for entry in sorted(waiting, key=_most_decoded)),
        dict(tokens),
        {successor.number: successor.predecessor for successor in successors if successor.predecessor is not None},
        running_on,
    )


def _kinds(config: ParallelConfig) -> list[tuple[range, Callable[[RunningRequest], bool]]]:
    if not config.is_split:
        return [(range(config.pipelines), lambda _: True)]
    return [
        (range(config.prompt_data), lambda request: request.decoded == 0),
        (range(config.prompt_data, config.pipelines), lambda request: request.decoded > 0),
    ]


def _most_decoded(entry: InheritedRequest) -> tuple[int, int, int]:
    return -entry.request.decoded, entry.old, entry.turn


def _in_order(successor: _SuccessorPipeline) -> list[InheritedRequest]:
    return sorted(successor.entries, key=lambda entry: (entry.old != successor.predecessor, entry.old, entry.turn))


def _same_requests(successor: _SuccessorPipeline, before: Deployment) -> bool:
    assert successor.predecessor is not None
    theirs = len(before.running.get(successor.predecessor, ()))
    return len(successor.entries) == theirs and all(entry.old == successor.predecessor for entry in successor.entries)


def _fill(
    kept: Sequence[InheritedRequest], numbers: range, config: ParallelConfig, old: OldPipelines, alike: bool
) -> list[_SuccessorPipeline]:
    parcels: dict[int, list[InheritedRequest]] = defaultdict(list)
    for entry in kept:
        parcels[entry.old].append(entry)

    def may_run_on(number: int) -> bool:
        whole = len(parcels[number]) == old.requests(number) <= config.max_batch
        return alike and old.is_untouched(number) and whole

    def rank(number: int) -> tuple[bool, int, int]:
        tokens = sum(entry.request.tokens for entry in parcels[number])
        return not may_run_on(number), -tokens * old.staying_kv_token_bytes(number), number

    ranked = sorted(parcels, key=rank)
    successors = {number: _SuccessorPipeline(number) for number in numbers}
    chosen = ranked[: len(numbers)]
    left: list[list[InheritedRequest]] = [parcels[number] for number in ranked[len(numbers) :]]
    for number, predecessor in _numbered(chosen, list(successors), numbers, config, old).items():
        successor = successors[number]
        successor.predecessor, successor.must_stop = predecessor, not may_run_on(predecessor)
        # Of more than a batch holds, those with most KV stay where it is.
        parcel = sorted(parcels[predecessor], key=lambda entry: (-entry.request.tokens, entry.turn))
        successor.entries = parcel[: config.max_batch]
        if parcel[config.max_batch :]:
            left.append(parcel[config.max_batch :])
    _share_out(left, list(successors.values()), config.max_batch)
    return list(successors.values())


def _numbered(
    chosen: Sequence[int], free: Sequence[int], numbers: range, config: ParallelConfig, old: OldPipelines
) -> dict[int, int]:
    """Return the old pipeline by new number: its own number among its kind if that is free, else the first free."""
    left = list(free)
    given: dict[int, int] = {}
    for number in chosen:
        own = numbers.start + old.ordinal(number) if config.is_split else number
        if own in left:
            given[own] = number
            left.remove(own)
    named = set(given.values())
    for number, new in zip((number for number in chosen if number not in named), left, strict=False):
        given[new] = number
    return given


def _share_out(
    parcels: Sequence[list[InheritedRequest]], successors: Sequence[_SuccessorPipeline], max_batch: int
) -> None:
    """Put parcels into successors: evenly if that cuts no more of them, else into the fullest that fits."""
    pieces = _placed(parcels, successors, max_batch, lambda spare, tokens: tokens)
    if len(pieces) > len(parcels):
        pieces = min(pieces, _placed(parcels, successors, max_batch, lambda spare, tokens: spare), key=len)
    by_number = {successor.number: successor for successor in successors}
    for number, piece in pieces:
        by_number[number].entries += piece


def _placed(
    parcels: Sequence[list[InheritedRequest]],
    successors: Sequence[_SuccessorPipeline],
    max_batch: int,
    prefer: Callable[[int, int], int],
) -> list[tuple[int, list[InheritedRequest]]]:
    spare = {successor.number: max_batch - len(successor.entries) for successor in successors}
    tokens = {successor.number: successor.tokens for successor in successors}
    stops = {successor.number: successor.must_stop for successor in successors}
    pieces: list[tuple[int, list[InheritedRequest]]] = []
    for parcel in sorted(parcels, key=lambda parcel: (-len(parcel), parcel[0].old)):
        left = parcel
        while left:
            fitting = [number for number in spare if spare[number] >= len(left)]
            if fitting:
                into = min(
                    fitting, key=lambda number: (not stops[number], prefer(spare[number], tokens[number]), number)
                )
            else:
                into = min(spare, key=lambda number: (-spare[number], not stops[number], number))
            piece, left = left[: spare[into]], left[spare[into] :]
            pieces.append((into, piece))
            spare[into] -= len(piece)
            tokens[into] += sum(entry.request.tokens for entry in piece)
            stops[into] = True
    return pieces


def _succeed_idle(successors: Sequence[_SuccessorPipeline], config: ParallelConfig, old: OldPipelines) -> None:
    """Give pipelines without a predecessor untouched ones without requests, of the same kind if there are any."""
    used = {successor.predecessor for successor in successors}
    idle = [number for number in old.untouched() if number not in used and not old.requests(number)]
    by_number = {successor.number: successor for successor in successors if successor.predecessor is None}
    for same_kind in (True, False):
        for numbers, _ in _kinds(config):
            free = [number for number in numbers if number in by_number]
            candidates = [
                number
                for number in idle
                if not same_kind or old.is_for_prompts(number) == _for_prompts(numbers, config)
            ]
            for number, predecessor in _numbered(candidates, free, numbers, config, old).items():
                by_number.pop(number).predecessor = predecessor
                idle.remove(predecessor)


def _for_prompts(numbers: range, config: ParallelConfig) -> bool:
    return config.is_split and numbers.start == 0
