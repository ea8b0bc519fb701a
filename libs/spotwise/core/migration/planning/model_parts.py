"""The pieces of weights and KV that must move: holders, receivers, and holders that can free them.

Law: each layer, the embedding, the head and each continued request's KV are cut wherever a share of the old or the new
configuration begins or ends, so that a device holds and needs all or nothing of a piece.
A request whose KV is incomplete is recomputed, and none of its KV moves.
A piece without receivers is freed at once by holders that do not need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from spotwise.core.migration.deployment import Device, DeviceMap, RunningRequest
from spotwise.core.migration.mapping.parts import Part, PartKind, common_layers
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.shares import WHOLE_SHARE, PartBytes, Share, share_of


class NumberedDevices:
    """All devices of a change, by number, for fast planning; a device with a position whose instance is not listed raises
    `ValueError`.

    Law: instances are numbered in the order in which they joined, devices by instance and index; mappings' order does not
    count. A device whose instance has passed its deadline holds nothing.

    Attributes:
        instance_of: the number of each device's instance.
        left_s: seconds for which each instance under notice can still send.
        before, after: the device that still holds each position's data, and the device that gets it.
    """

    def __init__(self, device_map: DeviceMap, now_s: float) -> None:
        listed = device_map.before.instances
        self.devices = [device for instance in listed for device in instance.all_devices()]
        self.instances = [instance.id for instance in listed]
        self.instance_of = [number for number, instance in enumerate(listed) for _ in range(instance.devices)]
        self.left_s = {
            number: max(0.0, instance.deadline_s - now_s)
            for number, instance in enumerate(listed)
            if instance.deadline_s is not None
        }
        self._numbers = {device: number for number, device in enumerate(self.devices)}
        self.after = self._by_position(device_map.positions)
        self.before = {
            position: device
            for position, device in self._by_position(device_map.before.positions).items()
            if self.left_s.get(self.instance_of[device], 1.0) > 0
        }

    def is_leaving(self, device: int) -> bool:
        """Whether a device's instance is under notice."""
        return self.instance_of[device] in self.left_s

    def sends_until_s(self, source: int | None) -> float:
        """Return until when a source can send, from now: infinite for storage and devices that stay."""
        return math.inf if source is None else self.left_s.get(self.instance_of[source], math.inf)

    def _by_position(self, positions: Mapping[Device, Position]) -> dict[Position, int]:
        if strangers := [device for device in positions if device not in self._numbers]:
            raise ValueError(f"{strangers[0]} has a position; list its instance in `before.instances`")
        return {position: self._numbers[device] for device, position in positions.items()}


class Piece(NamedTuple):
    """A share of a part that is held and needed as one; devices by number.

    Attributes:
        part, layers: the part (KV: of the first of its layers), and the number of layers from there on; 1 for weights.
        unit: what the share is cut from: a whole part of weights; a token's KV in a layer.
        units: how many of those: 1 of weights; tokens x layers of KV.
        needers: how many devices need it.
        receivers: devices that need it and do not hold it.
        leavers: devices that hold it, do not need it, and stay: they can free its memory.
    """

    part: Part
    layers: int
    share: Share
    unit: PartBytes
    units: int
    holders: tuple[int, ...]
    needers: int
    receivers: tuple[int, ...]
    leavers: tuple[int, ...]
    byte_count: int

    def cut(self, number: int, count: int) -> Piece:
        """Return one of `count` equal cuts of it, from 0; adjacent cuts meet, to the byte."""
        if count == 1:
            return self
        start, width = self.share.start, (self.share.end - self.share.start) / count
        share = Share(start + width * number, start + width * (number + 1))
        return self._replace(share=share, byte_count=self.units * self.unit.of(share))


@dataclass(frozen=True, slots=True)
class MovingKv:
    """A continued request, its new pipeline, and all pieces of its KV that are held or needed."""

    request: RunningRequest
    pipeline: int
    pieces: tuple[Piece, ...]


class Outline(NamedTuple):
    """A share as two stages cut it, of any part: its holders, needers and leavers."""

    share: Share
    holders: tuple[int, ...]
    needers: int
    receivers: tuple[int, ...]
    leavers: tuple[int, ...]


class Outlines:
    """The shares of what is in one old and one new stage."""

    def __init__(self, device_map: DeviceMap, devices: NumberedDevices) -> None:
        self._old, self._new, self._devices = device_map.before.config, device_map.config, devices
        old_bounds = [Fraction(shard, self._old.tensor) for shard in range(self._old.tensor + 1)]
        new_bounds = [Fraction(shard, self._new.tensor) for shard in range(self._new.tensor + 1)]
        bounds = sorted({*old_bounds, *new_bounds})
        self._cut = [
            (Share(start, end), _shard_at(start, self._old), _shard_at(start, self._new))
            for start, end in pairwise(bounds)
        ]
        self._whole = [(WHOLE_SHARE, range(self._old.tensor), range(self._new.tensor))]

    def between(
        self, old_stage: int, new_stage: int, old_pipelines: range, new_pipelines: range, *, is_whole: bool = False
    ) -> list[Outline]:
        """Return the shares that stages of some old and some new pipelines have, in order; one where every shard `is_whole`."""
        outlines = []
        before, after = self._devices.before, self._devices.after
        for share, old_shards, new_shards in self._whole if is_whole else self._cut:
            held = [
                before.get(Position(pipeline, old_stage, shard)) for pipeline in old_pipelines for shard in old_shards
            ]
            needed = [
                after.get(Position(pipeline, new_stage, shard)) for pipeline in new_pipelines for shard in new_shards
            ]
            holders = tuple(device for device in held if device is not None)
            needers = tuple(device for device in needed if device is not None)
            outlines.append(
                Outline(
                    share,
                    holders,
                    len(needers),
                    tuple(device for device in needers if device not in holders),
                    tuple(
                        device for device in holders if device not in needers and not self._devices.is_leaving(device)
                    ),
                )
            )
        return outlines


def weight_parts(device_map: DeviceMap, model: ModelShape, devices: NumberedDevices) -> list[tuple[Piece, ...]]:
    """Return the pieces of the embedding, of each layer and of the head, in the order of the model."""
    old, new = device_map.before.config, device_map.config
    outlines = Outlines(device_map, devices)
    known: dict[tuple[int, int, bool], list[Outline]] = {}

    def pieces(part: Part, unit: PartBytes, old_stage: int, new_stage: int) -> tuple[Piece, ...]:
        run = old_stage, new_stage, unit.is_whole
        if run not in known:
            pipelines = range(old.pipelines), range(new.pipelines)
            known[run] = outlines.between(old_stage, new_stage, *pipelines, is_whole=unit.is_whole)
        return tuple(Piece(part, 1, each.share, unit, 1, *each[1:], unit.of(each.share)) for each in known[run])

    old_stage, new_stage = _stage_of(old, model), _stage_of(new, model)
    parts = [pieces(Part(PartKind.EMBEDDING), model.embedding, 0, 0)]
    for layer in range(model.layers):
        parts.append(pieces(Part(PartKind.LAYER, layer), model.layer, old_stage[layer], new_stage[layer]))
    parts.append(pieces(Part(PartKind.HEAD), model.head, old_stage[-1], new_stage[-1]))
    return parts


def kv_parts(
    device_map: DeviceMap, model: ModelShape, devices: NumberedDevices
) -> tuple[list[MovingKv], list[tuple[RunningRequest, int]]]:
    """Return the requests whose KV is complete, and the others with their new pipeline."""
    old, new = device_map.before.config, device_map.config
    old_pipeline = {request.id: number for number, each in device_map.before.running.items() for request in each}
    outlines = Outlines(device_map, devices)
    known: dict[tuple[int, int], list[tuple[range, Outline]]] = {}
    moving_kv: list[MovingKv] = []
    lost: list[tuple[RunningRequest, int]] = []
    for pipeline in sorted(device_map.running):
        for request in device_map.running[pipeline]:
            if request.id not in old_pipeline:
                lost.append((request, pipeline))
                continue
            pair = old_pipeline[request.id], pipeline
            if pair not in known:
                known[pair] = _kv_outlines(pair, outlines, old, new, model)
            if any(each.needers and not each.holders for _, each in known[pair]):
                lost.append((request, pipeline))
                continue
            moving_kv.append(MovingKv(request, pipeline, tuple(_kv_pieces(request, model, known[pair]))))
    return moving_kv, lost


def kv_given_up(
    device_map: DeviceMap, model: ModelShape, devices: NumberedDevices, moving_kv: Sequence[MovingKv]
) -> dict[int, int]:
    """Return, by device that stays, the bytes of KV of requests that do not continue, or not with it."""
    kept = {each.request.id for each in moving_kv}
    tokens = {
        pipeline: sum(request.tokens for request in requests if request.id not in kept)
        for pipeline, requests in device_map.before.running.items()
    }
    freed = _kv_bytes(tokens, device_map.before.config, model, devices.before)
    return {device: num_bytes for device, num_bytes in freed.items() if not devices.is_leaving(device)}


def kv_computed_again(
    lost: Sequence[tuple[RunningRequest, int]], config: ParallelConfig, model: ModelShape, devices: NumberedDevices
) -> dict[int, int]:
    """Return, by device, the bytes of KV that recomputed requests will have there."""
    tokens: dict[int, int] = {}
    for request, pipeline in lost:
        tokens[pipeline] = tokens.get(pipeline, 0) + request.tokens
    return _kv_bytes(tokens, config, model, devices.after)


def _kv_bytes(
    tokens: Mapping[int, int], config: ParallelConfig, model: ModelShape, devices_at: Mapping[Position, int]
) -> dict[int, int]:
    found = {}
    for pipeline in sorted(tokens):
        for stage in range(config.pipeline):
            for shard in range(config.tensor):
                device = devices_at.get(Position(pipeline, stage, shard))
                if device is not None:
                    num_bytes = tokens[pipeline] * model.kv_layer_token.of(share_of(shard, config.tensor))
                    found[device] = num_bytes * len(model.stage_layers(stage, config.pipeline))
    return found


def _kv_outlines(
    pair: tuple[int, int], outlines: Outlines, old: ParallelConfig, new: ParallelConfig, model: ModelShape
) -> list[tuple[range, Outline]]:
    was, becomes = (range(pipeline, pipeline + 1) for pipeline in pair)
    found = []
    for old_stage in range(old.pipeline):
        for new_stage in range(new.pipeline):
            if layers := common_layers(old_stage, old, new_stage, new, model):
                between = outlines.between(old_stage, new_stage, was, becomes)
                # A share without a byte in it needs no holder.
                found += [(layers, each) for each in between if model.kv_layer_token.of(each.share)]
    return found


def _kv_pieces(request: RunningRequest, model: ModelShape, run: list[tuple[range, Outline]]) -> list[Piece]:
    pieces = []
    for layers, each in run:
        units, unit = request.tokens * len(layers), model.kv_layer_token
        part = Part(PartKind.KV, layers.start, request.id)
        num_bytes = units * unit.of(each.share)
        pieces.append(Piece(part, len(layers), each.share, unit, units, *each[1:], num_bytes))
    return pieces


def _stage_of(config: ParallelConfig, model: ModelShape) -> list[int]:
    return [stage for stage in range(config.pipeline) for _ in model.stage_layers(stage, config.pipeline)]


def _shard_at(start: Fraction, config: ParallelConfig) -> range:
    shard = int(start * config.tensor)
    return range(shard, shard + 1)
