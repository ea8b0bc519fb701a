"""Plans a migration: the source and order of every transfer, and when each stage may start.

Law: KV moves first, a dying instance's before the rest; then weights from the front of the model, in an order that keeps every
receive buffer within a limit (`buffer_order.py`), from the cheapest live holder (`transfers.py`), scheduled by `schedule.py`.
A stage may start when its own weights and KV have arrived (progressive migration, SpotServe, Miao et al., 2024, section 4.2),
or when everything has; pipelines that run on never stop.
A request with incomplete KV, or whose KV cannot be sent in time, is recomputed; weights without a holder come from storage.
A pipeline's pause is the delay of its first output: stage p is needed `p x stage_s` after the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spotwise.core.migration.deployment import DeviceMap, RunningRequest
from spotwise.core.migration.planning.buffer_order import Cut, Flow, MemoryRegions, gates, order_loads
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.model_parts import (
    NumberedDevices,
    kv_computed_again,
    kv_given_up,
    kv_parts,
    weight_parts,
)
from spotwise.core.migration.planning.plan import Freed, MigrationPlan, PlanPolicy, Transfer
from spotwise.core.migration.planning.schedule import Schedule
from spotwise.core.migration.planning.transfers import (
    SourceChoice,
    TransferUnit,
    flow_of,
    given_up_at_once,
    kv_loads,
    weight_loads,
)
from spotwise.core.parallel.model_shape import ModelShape


def plan_migration(
    device_map: DeviceMap, model: ModelShape, links: Links, policy: PlanPolicy | None = None, now_s: float = 0.0
) -> MigrationPlan:
    """Return the plan from a deployment to the positions that the mapper chose.

    Args:
        policy: progressive without a limit of buffers if left out; a policy that restarts is the baseline: all from storage.
        now_s: when the plan starts, on the clock of the instances' deadlines.

    Raises:
        ValueError: a device with a position has no listed instance, or `buffer_bytes` is too small for any order.
    """
    policy = policy or PlanPolicy()
    if policy.restart:
        before = replace(device_map.before, positions={}, running={})
        device_map = replace(device_map, before=before, running_on={})
    return _Planning(device_map, model, links, policy, now_s).plan()


class _Planning:
    def __init__(
        self, device_map: DeviceMap, model: ModelShape, links: Links, policy: PlanPolicy, now_s: float
    ) -> None:
        self._map, self._model, self._links, self._policy = device_map, model, links, policy
        self._devices = devices = NumberedDevices(device_map, now_s)
        choice = SourceChoice(devices, links, shares_reads=policy.shares_reads and not policy.restart)
        self._moving_kv, self._lost = kv_parts(device_map, model, devices)
        self._parts = weight_parts(device_map, model, devices)
        kv, urgent_kv = kv_loads(choice, self._moving_kv, devices)
        weights, urgent_weights = weight_loads(choice, self._parts, devices)
        self._loads: list[TransferUnit] = kv + weights
        self._flows: dict[Cut, Flow] = {}
        self._freed_first = given_up_at_once(self._parts, region=0)
        for device, num_bytes in kv_given_up(device_map, model, devices, self._moving_kv).items():
            self._freed_first[2 * device + 1] = num_bytes
        whole = [self._flow(Cut(number)) for number in range(len(self._loads))]
        again = kv_computed_again(self._lost, device_map.config, model, devices)
        kept_free = {2 * device + 1: num_bytes for device, num_bytes in again.items()}
        owners = {
            region: devices.instance_of[region // 2]
            for changes in (self._freed_first, *(each for flow in whole for each in flow))
            for region in changes
        }
        self._regions = MemoryRegions.at_start(owners, whole, self._freed_first, kept_free)
        regions, limit_bytes = self._regions.copy(), policy.buffer_bytes
        self._steps = order_loads(range(len(kv)), self._flow, regions, limit_bytes, urgent_kv)
        self._steps += order_loads(range(len(kv), len(self._loads)), self._flow, regions, limit_bytes, urgent_weights)
        moves = [self._flow(cut) for cut in self._steps]
        waits_for = [] if limit_bytes is None else gates(moves, self._regions.copy(), limit_bytes)
        self._schedule = Schedule(self._loads, self._steps, waits_for, devices, links)

    def _flow(self, cut: Cut) -> Flow:
        flow = self._flows.get(cut)
        if flow is None:
            flow = self._flows[cut] = flow_of(self._loads[cut.load], cut)
        return flow

    def plan(self) -> MigrationPlan:
        devices, timed = self._devices.devices, self._schedule.timed
        transfers = tuple(
            Transfer(
                each.step,
                each.move.piece.part,
                each.move.piece.layers,
                each.move.piece.share,
                each.move.piece.byte_count,
                None if each.move.source is None else devices[each.move.source],
                devices[each.move.target],
                each.move.is_relayed,
                each.after_step,
                each.start_s,
                each.end_s,
            )
            for each in timed
        )
        must_stop = any(pipeline not in self._map.running_on for pipeline in range(self._map.config.pipelines))
        done_s = max((each.end_s for each in timed), default=self._links.groups_s if must_stop else 0.0)
        kv_s = [each.end_s for each in timed if each.move.piece.part.request is not None]
        stage_start_s = self._stage_start_s(done_s)
        return MigrationPlan(
            self._map.before.config,
            self._map.config,
            self._policy,
            self._links,
            transfers,
            tuple(self._freed()),
            stage_start_s,
            self._pause_s(stage_start_s),
            max(kv_s, default=0.0),
            done_s,
            sum(each.byte_count for each in transfers if each.source is not None),
            sum(each.byte_count for each in transfers if each.source is None),
            self._kept_bytes(),
            self._map.config.pipelines * self._model.group_bytes(self._map.config.tensor),
            self._peaks(),
            self._recomputed(),
        )

    def _stage_start_s(self, done_s: float) -> dict[tuple[int, int], float]:
        start_s = {
            (pipeline, stage): 0.0 if pipeline in self._map.running_on else self._links.groups_s
            for pipeline in range(self._map.config.pipelines)
            for stage in range(self._map.config.pipeline)
        }
        stage_of = {device: position[:2] for position, device in self._devices.after.items()}
        for each in self._schedule.timed:
            stage = stage_of[each.move.target]
            start_s[stage] = max(start_s[stage], each.end_s)
        if not self._policy.progressive:
            start_s = {stage: 0.0 if stage[0] in self._map.running_on else done_s for stage in start_s}
        return start_s

    def _pause_s(self, stage_start_s: Mapping[tuple[int, int], float]) -> dict[int, float]:
        pause_s = dict.fromkeys(range(self._map.config.pipelines), 0.0)
        for (pipeline, stage), start_s in stage_start_s.items():
            pause_s[pipeline] = max(pause_s[pipeline], start_s - stage * self._policy.stage_s)
        return pause_s

    def _freed(self) -> list[Freed]:
        devices, instance_of = self._devices.devices, self._devices.instance_of
        freed = [
            Freed(None, devices[region // 2], num_bytes, region % 2 == 1, 0.0)
            for region, num_bytes in sorted(self._freed_first.items())
            if num_bytes
        ]
        for step, cut in enumerate(self._steps):
            for region, num_bytes in self._flow(cut).freed.items():
                if num_bytes:
                    at_s = self._schedule.freed_s(instance_of[region // 2], step)
                    freed.append(Freed(step, devices[region // 2], num_bytes, region % 2 == 1, at_s))
        return freed

    def _peaks(self) -> dict[str, int]:
        """Return the largest buffers, as predicted: a transfer takes its region's bytes when it starts."""
        regions = self._regions.copy()
        events: list[tuple[float, bool, int, int]] = []
        for each in self._schedule.timed:
            piece = each.move.piece
            events.append(
                (each.start_s, True, 2 * each.move.target + (piece.part.request is not None), piece.byte_count)
            )
        for step, cut in enumerate(self._steps):
            for region, num_bytes in self._flow(cut).freed.items():
                at_s = self._schedule.freed_s(self._devices.instance_of[region // 2], step)
                events.append((at_s, False, region, num_bytes))
        receivers = sorted({self._devices.instance_of[each.move.target] for each in self._schedule.timed})
        peaks = dict.fromkeys(receivers, 0)
        for _, comes, region, num_bytes in sorted(events):
            if comes:
                regions.receive({region: num_bytes})
                instance = self._devices.instance_of[region // 2]
                peaks[instance] = max(peaks[instance], regions.buffer[instance])
            else:
                regions.free({region: num_bytes})
        return {self._devices.instances[instance]: peak for instance, peak in peaks.items()}

    def _dropped(self) -> set[str]:
        loads = [self._loads[number] for number in sorted(self._schedule.dropped)]
        return {load.moving_kv.request.id for load in loads if load.moving_kv is not None}

    def _kept_bytes(self) -> int:
        dropped = self._dropped()
        kept_kv = [each.pieces for each in self._moving_kv if each.request.id not in dropped]
        return sum(
            (piece.needers - len(piece.receivers)) * piece.byte_count
            for pieces in (*self._parts, *kept_kv)
            for piece in pieces
        )

    def _recomputed(self) -> tuple[RunningRequest, ...]:
        dropped = self._dropped() | {request.id for request, _ in self._lost}
        return tuple(
            request
            for pipeline in sorted(self._map.running)
            for request in self._map.running[pipeline]
            if request.id in dropped
        )
