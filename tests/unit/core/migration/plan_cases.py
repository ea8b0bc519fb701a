"""Changes to plan, drawn or written, and what a plan does byte by byte, worked out without the planner."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from spotwise.core.migration.deployment import Deployment, Device, DeviceMap, Instance, RunningRequest
from spotwise.core.migration.mapping.parts import Part
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.plan import MigrationPlan, Transfer
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_partition import LayerMatrix, ModelDimensions
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.shares import PartBytes
from tests.unit.core.migration.held_parts import HeldShare, kv_of, weights_of

#: A byte of a part: of weights its place; of KV its place in each token's KV of that layer.
Byte = tuple[Part, int]

NOW_S = 100.0
LINKS = Links(
    within_bytes_per_s=100.0, between_bytes_per_s=25.0, storage_bytes_per_s=10.0, transfer_s=0.125, groups_s=0.5
)


def shape(layers: int = 4, layer: int = 12, embedding: int = 0, head: int = 0, kv: int = 12) -> ModelShape:
    """Return a small model."""
    return ModelShape("small", layers, 8, layer, embedding, head, kv)


def cut_by_the_engine() -> ModelShape:
    """Return a small model of which each shard has whole panels, and the embedding."""
    matrices = (LayerMatrix(384, 1, False), LayerMatrix(80, 1, True))
    partition = ModelDimensions(4, 12, 12, 32, 32, 80, 200, 100, 0.25, matrices)
    return ModelShape("cut", 4, 80, 470, 20, 100, 24, 1, partition)


@dataclass(frozen=True)
class Case:
    """A change with its fleet and its links."""

    map: DeviceMap
    model: ModelShape
    links: Links = LINKS

    def deadline_s(self, device: Device) -> float | None:
        """Return the time at which a device goes, on the plan's clock."""
        instance = next(each for each in self.map.before.instances if each.id == device.instance)
        return None if instance.deadline_s is None else instance.deadline_s - NOW_S

    def held(self, device: Device) -> set[Byte]:
        """Return the parts that a device has when the plan starts."""
        before = self.map.before
        deadline_s = self.deadline_s(device)
        if device not in before.positions or (deadline_s is not None and deadline_s <= 0):
            return set()
        position = before.positions[device]
        return self._bytes(position, before.config, before.running.get(position.pipeline, ()))

    def needed(self, device: Device, recomputed: set[str]) -> set[Byte]:
        """Return the parts that a device must have in the end."""
        if device not in self.map.positions:
            return set()
        position = self.map.positions[device]
        running = [each for each in self.map.running.get(position.pipeline, ()) if each.id not in recomputed]
        return self._bytes(position, self.map.config, tuple(running))

    def weight(self, byte: Byte) -> int:
        """The real bytes per byte counted here: KV is cut token by token."""
        return 1 if byte[0].request is None else self.tokens()[byte[0].request]

    def tokens(self) -> dict[str, int]:
        """Tokens of requests."""
        return {each.id: each.tokens for those in self.map.before.running.values() for each in those}

    def sent(self, transfer: Transfer) -> set[Byte]:
        """Return the parts that a transfer carries."""
        part = transfer.part
        unit = self.model.kv_layer_token if part.request is not None else self._unit(part)
        parts = (
            [part._replace(layer=part.layer + more) for more in range(transfer.layers)]
            if part.layer is not None
            else [part]
        )
        places = range(unit.before(transfer.share.start), unit.before(transfer.share.end))
        return {(each, place) for each in parts for place in places}

    def devices(self) -> Iterator[Device]:
        """Return all devices."""
        for instance in self.map.before.instances:
            yield from instance.all_devices()

    def _unit(self, part: Part) -> PartBytes:
        return {"embedding": self.model.embedding, "layer": self.model.layer, "head": self.model.head}[part.kind]

    def _bytes(self, position: Position, config: ParallelConfig, running: tuple[RunningRequest, ...]) -> set[Byte]:
        found: set[Byte] = set()
        for held in weights_of(position, config, self.model):
            found |= _bytes_of(held)
        for request in running:
            for held in kv_of(position, config, self.model, request):
                found |= _bytes_of(held)
        return found


def _bytes_of(held: HeldShare) -> set[Byte]:
    return {(held.part, place) for place in held.places}


def ports_of(transfer: Transfer) -> list[tuple[str, object]]:
    """Return which links a transfer uses, by name."""
    if transfer.source is None:
        return [("storage", transfer.target.instance)]
    if transfer.source.instance == transfer.target.instance:
        return [("out", transfer.source), ("in", transfer.target)]
    return [("up", transfer.source.instance), ("down", transfer.target.instance)]


@dataclass
class Replay:
    """Carries a plan out by its law, each transfer taking a given time.

    Attributes:
        ends_s: of each transfer.
        peaks: the largest buffers met, by instance.
    """

    case: Case
    plan: MigrationPlan
    seconds: list[float]
    ends_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=dict)

    def run(self) -> Replay:
        """Go through the plan, then look how full memory was."""
        recomputed = {each.id for each in self.plan.recomputed}
        gives_up = {
            device: self.case.held(device) - self.case.needed(device, recomputed) for device in self.case.devices()
        }
        free_s: dict[tuple[str, object], float] = {}
        arrived_s: dict[tuple[int, Device, object], float] = {}
        sent: dict[str, list[tuple[int, float]]] = {}  # by instance, out of memory that it gives up

        def freed_s(instance: str, step: int | None) -> float:
            if step is None:
                return 0.0
            return max((end_s for number, end_s in sent.get(instance, []) if number <= step), default=0.0)

        for transfer, seconds in zip(self.plan.transfers, self.seconds, strict=True):
            start_s = max([self.plan.links.groups_s, *(free_s.get(port, 0.0) for port in ports_of(transfer))])
            start_s = max(start_s, freed_s(transfer.target.instance, transfer.after_step))
            if transfer.is_relayed:
                assert transfer.source is not None
                start_s = max(start_s, arrived_s[transfer.step, transfer.source, (transfer.part, transfer.share)])
            end_s = start_s + seconds
            self.starts_s.append(start_s)
            self.ends_s.append(end_s)
            for port in ports_of(transfer):
                free_s[port] = end_s
            arrived_s[transfer.step, transfer.target, (transfer.part, transfer.share)] = end_s
            if transfer.source is not None and self.case.sent(transfer) & gives_up[transfer.source]:
                sent.setdefault(transfer.source.instance, []).append((transfer.step, end_s))
        self._fill(freed_s)
        return self

    def _fill(self, freed_s: object) -> None:
        assert callable(freed_s)
        # every request that resumes has its memory, whether its KV moves or not
        spare: dict[tuple[Device, bool], int] = {}
        for device in self.case.devices():
            held, needed = self.case.held(device), self.case.needed(device, set())
            for is_kv in (False, True):
                before, after = (self._total(those, is_kv) for those in (held, needed))
                spare[device, is_kv] = max(0, after - before)
        events: list[tuple[float, int, Device, bool]] = []
        for freed in self.plan.freed:
            events.append((freed_s(freed.device.instance, freed.step), freed.byte_count, freed.device, freed.is_kv))
        for transfer, start_s in zip(self.plan.transfers, self.starts_s, strict=True):
            events.append((start_s, -transfer.byte_count, transfer.target, transfer.part.request is not None))
        for _, change, device, is_kv in sorted(events, key=lambda event: (event[0], event[1] < 0)):
            spare[device, is_kv] += change
            used = sum(max(0, -left) for (each, _), left in spare.items() if each.instance == device.instance)
            self.peaks[device.instance] = max(self.peaks.get(device.instance, 0), used)

    def _total(self, those: set[Byte], is_kv: bool) -> int:
        return sum(self.case.weight(byte) for byte in those if (byte[0].request is not None) == is_kv)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a change from any configuration to any other, with lost and leaving machines, and any map of devices; of a model
    cut as in the papers or as the engine cuts it.
    """
    papers = shape(
        draw(st.integers(1, 6)),
        draw(st.integers(1, 60)),
        draw(st.integers(0, 30)),
        draw(st.integers(0, 30)),
        draw(st.integers(1, 30)),
    )
    model = draw(st.sampled_from([papers, papers, cut_by_the_engine()]))
    degrees = st.integers(1, 3)
    old = ParallelConfig(
        draw(degrees), draw(degrees), draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.sampled_from([0, 0, 1]))
    )
    new = ParallelConfig(
        draw(degrees), draw(degrees), draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.sampled_from([0, 0, 1]))
    )
    instances: list[Instance] = []
    while sum(each.devices for each in instances) < old.devices or _staying(instances) < new.devices:
        leaves = draw(st.sampled_from([False, False, True]))
        # soon enough that some of its data cannot make it; or over already
        deadline_s = NOW_S + draw(st.sampled_from([-1.0, 1.0, 2.5, 5.0, 500.0])) if leaves else None
        instances.append(Instance(f"i{len(instances)}", draw(st.integers(1, 4)), deadline_s))
    devices = [device for instance in instances for device in instance.all_devices()]
    shuffled = random.Random(draw(st.integers(0, 1 << 16)))
    stood = shuffled.sample(devices, old.devices)
    positions = dict(zip(stood, old.positions(), strict=True))
    for lost in shuffled.sample(stood, draw(st.integers(0, min(2, len(stood))))):
        positions.pop(lost, None)
    running: dict[int, tuple[RunningRequest, ...]] = {}
    for pipeline in range(old.pipelines):
        running[pipeline] = tuple(
            RunningRequest(f"r{pipeline}.{number}", shuffled.randint(1, 5), shuffled.randint(0, 4))
            for number in range(draw(st.integers(0, 2)))
        )
    before = Deployment(old, tuple(instances), positions, running)
    leaving = {instance.id for instance in instances if instance.is_leaving}
    able = [device for device in shuffled.sample(devices, len(devices)) if device.instance not in leaving]
    requested = [each for those in running.values() for each in those]
    shuffled.shuffle(requested)
    places = [pipeline for pipeline in range(new.pipelines) for _ in range(new.max_batch)]
    goes_on: dict[int, tuple[RunningRequest, ...]] = {}
    for pipeline, request in zip(places, requested, strict=False):
        goes_on[pipeline] = (*goes_on.get(pipeline, ()), request)
    waiting = tuple(requested[len(places) :])
    mapped = DeviceMap(before, new, dict(zip(able, new.positions(), strict=False)), goes_on, waiting, 0, 0, {})
    return Case(mapped, model)


def _staying(instances: list[Instance]) -> int:
    return sum(each.devices for each in instances if not each.is_leaving)


def reordered(mapping: Mapping[Device, Position]) -> dict[Device, Position]:
    """Return the same mapping, filled from its end."""
    return dict(reversed(list(mapping.items())))
