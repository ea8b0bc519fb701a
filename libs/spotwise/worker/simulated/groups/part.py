"""The parts of a model that a simulated device has: no weights, only the time that they take to load.

A device holds the layers and heads of the part that it loaded last. What a new part has beyond them takes as long as the
planner expects of storage, at any speed of the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import structlog

from spotwise.core.messages import groups as g
from spotwise.core.messages.members import DevicePlace
from spotwise.core.parallel.model_partition import LayerMatrix, ModelDimensions, ModelShare
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.planner.change_cost import STORAGE_BYTES_PER_S
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvShare
from spotwise.mesh.grpc.device_control import Report
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.groups.process import DeviceProcess
from spotwise.worker.simulated.kv import NUM_LAYERS

_log = structlog.get_logger(__name__)

_HIDDEN, _INNER, _VOCAB, _QUERY_HEADS, _KV_HEADS, _HEAD_DIM, _VALUE_BYTES = 2048, 5504, 32_000, 16, 8, 128, 2


def simulated_model(name: str, kv_bytes_per_token: int) -> ModelShape:
    """Return the shape of a model of 1.5 billion parameters (3 GB) that up to 8 shards can have, with a token's KV of the
    simulated worker's cost profile.
    """
    keys = _KV_HEADS * _HEAD_DIM
    widths = (_QUERY_HEADS * _HEAD_DIM, keys, keys, _HIDDEN, 2 * _INNER)
    matrices = (*(LayerMatrix(width, _HIDDEN, False) for width in widths), LayerMatrix(_HIDDEN, _INNER, True))
    layer_bytes = _VALUE_BYTES * sum(matrix.columns * matrix.inputs for matrix in matrices)
    outside_bytes = _VALUE_BYTES * _VOCAB * _HIDDEN
    dimensions = ModelDimensions(
        *(NUM_LAYERS, _QUERY_HEADS, _KV_HEADS, _HEAD_DIM, _HEAD_DIM, _HIDDEN, _INNER, _VOCAB),
        head_layers=outside_bytes / layer_bytes,
        matrices=matrices,
    )
    kv_layer_token_bytes = max(1, kv_bytes_per_token // NUM_LAYERS)
    return ModelShape(
        *(name, NUM_LAYERS, _HIDDEN, layer_bytes, outside_bytes, outside_bytes, kv_layer_token_bytes, _VALUE_BYTES),
        partition=dimensions,
    )


class SimulatedPart:
    """A part in groups of one leader; of the leader's device itself it is a `LeadersPart`. Every other member is there once its
    stream says so: only a lost stream breaks a group.
    """

    #: Always: there is no exchange that members have to join.
    is_complete = True
    #: No member: devices are lost by their streams alone.
    broken_by = None

    def __init__(self, parts: SimulatedParts) -> None:
        self.is_whole = False
        self._parts = parts

    async def load(self, form: g.FormGroup) -> g.LoadedWeights:
        """Take the time to load what the device does not hold; raises `MeshError` where the model cannot be cut so."""
        self.is_whole = False
        return await self._parts.load(self._parts.part_at(form))

    async def join(self, form: g.FormGroup) -> None:
        """Be in the group."""
        self.is_whole = True

    async def completed(self) -> bool:
        """Return whether the group is whole."""
        return self.is_whole

    def break_up(self) -> None:
        """Be in no group; idempotent."""
        self.is_whole = False

    async def leave(self) -> None:
        """Be in no group; idempotent."""
        self.is_whole = False

    def place(self, form: g.FormGroup) -> DevicePlace:
        """Describe the position, for status."""
        part = self._parts.part_at(form)
        layers, heads = (part.layers.start, part.layers.stop), (part.kv_heads.start, part.kv_heads.stop)
        return DevicePlace(form.epoch, form.stages, form.shards, form.stage, form.shard, layers, heads, "simulated")


class SimulatedParts:
    """`Parts` of one simulated device.

    Args:
        model: the model that it serves.
    """

    def __init__(self, model: ModelShape) -> None:
        self._model = model
        self._held: KvPart | None = None
        self._followed: set[asyncio.Task[None]] = set()

    async def shape(self) -> ModelShape:
        """Return the simulated model's."""
        return self._model

    def part_at(self, form: g.FormGroup) -> KvPart:
        """Return the layers and heads at a position; raises `MeshError` where the model cannot be cut so."""
        assert self._model.partition is not None
        try:
            share = ModelShare(self._model.partition, form.stage, form.stages, form.shard, form.shards)
        except ValueError as error:
            raise MeshError(f"the model cannot be served: {error}") from error
        return KvPart.of(share.layers, share.kv_heads)

    async def load(self, part: KvPart) -> g.LoadedWeights:
        """Hold a part, after the time that its missing weights take; return which weights it got."""
        kept = None if self._held is None else part.overlap(self._held)
        missing = part.size - (0 if kept is None else kept.size)
        weight_bytes = self._model.weight_bytes * missing / (NUM_LAYERS * _KV_HEADS)
        await asyncio.sleep(weight_bytes / STORAGE_BYTES_PER_S)
        self._held = part
        return g.LoadedWeights(read_bytes=round(weight_bytes))

    async def follow(
        self, device: DeviceProcess, leader_id: str, orders: AsyncIterator[g.GroupOrder], report: Report
    ) -> None:
        """Be in the groups of one leader until its orders end; they have no steps, which the leader simulates alone."""
        task = asyncio.current_task()
        assert task is not None  # the stream's
        self._followed.add(task)
        part = SimulatedPart(self)
        try:
            async for order in orders:
                match order:
                    case g.FormGroup():
                        await self._form(device, leader_id, part, order, report)
                    case g.DissolveGroup():
                        device.left(leader_id)
                        if order.for_good:
                            device.host.stop()
                        if order.is_last:
                            return  # which ends the stream: the leader waits for that
        finally:
            self._followed.discard(task)
            device.left(leader_id)

    async def _form(
        self, device: DeviceProcess, leader_id: str, part: SimulatedPart, form: g.FormGroup, report: Report
    ) -> None:
        device.left(leader_id)
        try:
            loaded = await part.load(form)
        except MeshError as error:
            _log.error("group_refused", epoch=form.epoch, reason=str(error))
            report(g.GroupRefused(form.epoch, str(error)))
            return
        device.entered(leader_id, part.place(form))
        # The leader moves the group's KV alone: no hand-off goes to this share.
        share = KvShare(device.host.id, device.host.member.incarnation, "", self.part_at(form))
        report(g.GroupJoined(form.epoch, loaded, "simulated", share))

    async def free(self, leader_id: str) -> None:
        """Nothing: a part takes no memory."""

    async def give_back(self) -> None:
        """Nothing: weights take no memory."""

    async def close(self) -> None:
        """End the streams of its leaders, as the end of a process would."""
        for task in tuple(self._followed):
            task.cancel()
