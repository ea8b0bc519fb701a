"""Plans of changes that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from spotwise.core.migration.deployment import Deployment, Device, DeviceMap, Instance, RunningRequest
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.mapping.parts import PartKind
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.plan import MigrationPlan, PlanPolicy, paper_migration_s
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape

#: 100 bytes take 1 s within an instance, 4 s between, 20 s from storage.
LINKS = Links(within_bytes_per_s=100.0, between_bytes_per_s=25.0, storage_bytes_per_s=5.0)
MODEL = ModelShape("small", 4, 8, layer_bytes=100, embedding_bytes=0, head_bytes=0, kv_layer_token_bytes=5)


def change(
    old: str,
    new: str,
    instances: tuple[Instance, ...],
    running: Mapping[int, tuple[RunningRequest, ...]] | None = None,
    lost: tuple[int, ...] = (),
) -> DeviceMap:
    """Return the mapper's answer where instances stand in order, leaving ones too, and some positions are lost."""
    config = ParallelConfig.parse(old)
    devices = [device for instance in instances for device in instance.all_devices()]
    positions = {
        device: position
        for number, (device, position) in enumerate(zip(devices, config.positions(), strict=False))
        if number not in lost
    }
    return map_devices(Deployment(config, instances, positions, running or {}), ParallelConfig.parse(new), MODEL)


def planned(mapped: DeviceMap, links: Links = LINKS, now_s: float = 0.0, **policy: object) -> MigrationPlan:
    return plan_migration(mapped, MODEL, links, PlanPolicy(**policy), now_s)  # type: ignore[arg-type]


ONE_OF_TWO_LEAVES = (Instance("a", 1), Instance("b", 1, deadline_s=60.0), Instance("c", 1))


class TestReplacement:
    """Stages 0 and 1 are on a and b; b goes, c takes its place."""

    def test_kv_goes_first_and_then_layers_from_the_front(self) -> None:
        """10 tokens x 2 layers x 5 bytes of KV take 4 s, each layer 4 s more."""
        plan = planned(change("1,2,1,1", "1,2,1,1", ONE_OF_TWO_LEAVES, {0: (RunningRequest("r", 10),)}))
        sent = [(each.part.kind, each.part.layer, each.source, each.target, each.start_s) for each in plan.transfers]
        b, c = Device("b", 0), Device("c", 0)
        assert sent == [(PartKind.KV, 2, b, c, 0.0), (PartKind.LAYER, 2, b, c, 4.0), (PartKind.LAYER, 3, b, c, 8.0)]
        assert plan.kv_done_s == 4.0
        assert plan.stage_start_s == {(0, 0): 0.0, (0, 1): 12.0}
        assert (plan.moved_bytes, plan.storage_bytes, plan.kept_bytes, plan.naive_bytes) == (300, 0, 300, 400)
        assert paper_migration_s(plan) == pytest.approx(12.0)

    def test_a_later_stage_is_not_needed_before_those_in_front_have_had_their_time(self) -> None:
        """Stage 1 starts at 12 s, but its input comes 5 s after that of stage 0."""
        mapped = change("1,2,1,1", "1,2,1,1", ONE_OF_TWO_LEAVES, {0: (RunningRequest("r", 10),)})
        assert planned(mapped).longest_pause_s == 12.0
        assert planned(mapped, stage_s=5.0).longest_pause_s == 7.0
        assert planned(mapped, stage_s=50.0).longest_pause_s == 0.0
        assert planned(mapped, progressive=False, stage_s=5.0).longest_pause_s == 12.0

    def test_without_progress_every_stage_waits_for_the_last_byte(self) -> None:
        """Stage 0 has all it needs, and is stopped all the same."""
        plan = planned(change("1,2,1,1", "1,2,1,1", ONE_OF_TWO_LEAVES), progressive=False)
        assert plan.stage_start_s == {(0, 0): 8.0, (0, 1): 8.0}

    def test_nothing_moves_before_groups_are_built(self) -> None:
        """Fixed costs: once for groups, and for each transfer."""
        plan = planned(change("1,2,1,1", "1,2,1,1", ONE_OF_TWO_LEAVES), Links(100.0, 25.0, 5.0, 0.5, groups_s=3.0))
        assert [(each.start_s, each.end_s) for each in plan.transfers] == [(3.0, 7.5), (7.5, 12.0)]
        assert plan.stage_start_s[0, 0] == 3.0

    def test_a_restart_loads_all_and_computes_requests_again(self) -> None:
        """Each instance's storage brings 200 bytes in 40 s."""
        plan = planned(change("1,2,1,1", "1,2,1,1", ONE_OF_TWO_LEAVES, {0: (RunningRequest("r", 10),)}), restart=True)
        assert (plan.storage_bytes, plan.moved_bytes, plan.kept_bytes) == (400, 0, 0)
        assert plan.done_s == 40.0
        assert [each.id for each in plan.recomputed] == ["r"]


class TestNotice:
    """A leaving instance sends until its deadline."""

    def test_what_it_cannot_send_in_time_comes_from_storage(self) -> None:
        """One layer in 6 s; the other is loaded at once, beside it."""
        instances = (Instance("a", 1), Instance("b", 1, deadline_s=106.0), Instance("c", 1))
        plan = planned(change("1,2,1,1", "1,2,1,1", instances), now_s=100.0)
        assert [(each.part.layer, each.source and each.source.instance) for each in plan.transfers] == [
            (2, "b"),
            (3, None),
        ]
        assert plan.done_s == 20.0

    def test_kv_that_comes_too_late_is_computed_again_and_leaves_its_time_to_others(self) -> None:
        """In 7 s the KV of the most decoded request is moved (6 s); the other's would end after 12 s and is recomputed."""
        instances = (Instance("a", 1), Instance("b", 1, deadline_s=7.0), Instance("c", 1))
        running = {0: (RunningRequest("young", 15, decoded=1), RunningRequest("old", 15, decoded=9))}
        plan = planned(change("1,2,1,2", "1,2,1,2", instances, running))
        assert [each.id for each in plan.recomputed] == ["young"]
        assert {each.part.request for each in plan.transfers if each.part.kind == PartKind.KV} == {"old"}
        assert plan.kv_done_s == 6.0

    def test_one_whose_deadline_is_over_holds_nothing(self) -> None:
        """An instance past its deadline holds nothing, as if it had been lost."""
        mapped = change("1,2,1,1", "1,2,1,1", ONE_OF_TWO_LEAVES, {0: (RunningRequest("r", 10),)})
        plan = planned(mapped, now_s=60.0)
        assert {each.source for each in plan.transfers} == {None}
        assert [each.id for each in plan.recomputed] == ["r"]

    def test_a_dying_instances_data_goes_before_that_of_others(self) -> None:
        """Two pipelines of one stage become one of two: c gets layers from b, which stays, after KV from a, which goes."""
        instances = (Instance("a", 1, deadline_s=500.0), Instance("b", 1), Instance("c", 1), Instance("d", 1))
        running = {0: (RunningRequest("dying", 4, 1),), 1: (RunningRequest("safe", 40, 9),)}
        config = ParallelConfig.parse("2,1,1,1")
        before = Deployment(
            config, instances, dict(zip((Device("a", 0), Device("b", 0)), config.positions(), strict=True)), running
        )
        new = ParallelConfig.parse("2,1,1,1")
        to = dict(zip((Device("c", 0), Device("d", 0)), new.positions(), strict=True))
        mapped = DeviceMap(before, new, to, running, (), 0, 0, {})
        kv = [each.part.request for each in planned(mapped).transfers if each.part.kind == PartKind.KV]
        assert kv == ["dying", "safe"]
        steps = {each.part.request: each.step for each in planned(mapped).transfers}
        assert steps["dying"] < steps["safe"] < steps[None]


class TestLoss:
    """Machines that went without notice."""

    def test_weights_that_no_device_holds_come_from_storage_and_lost_kv_is_recomputed(self) -> None:
        """Stage 1 is lost; stage 0 keeps its weights, and KV of half the layers is of no use."""
        instances = (Instance("a", 1), Instance("b", 1), Instance("c", 1))
        mapped = change("1,2,1,1", "1,2,1,1", instances, {0: (RunningRequest("r", 10),)}, lost=(1,))
        plan = planned(mapped)
        assert [(each.part.layer, each.source) for each in plan.transfers] == [(2, None), (3, None)]
        assert [each.id for each in (*plan.recomputed, *mapped.waiting)] == ["r"]
        assert plan.kept_bytes == 200

    def test_two_newcomers_share_one_read_from_storage(self) -> None:
        """Each reads two of the four layers in 40 s, and gets the others over the network meanwhile, the last in 4 s more; each
        for itself reads 400 bytes in 80 s. A restart shares nothing."""
        instances = (Instance("a", 1), Instance("b", 1), Instance("c", 1))
        mapped = change("1,1,1,1", "2,1,1,1", instances, lost=(0,))
        mapped = replace(
            mapped,
            positions={Device("b", 0): Position(0, 0, 0), Device("c", 0): Position(1, 0, 0)},
        )
        shared, each = planned(mapped), planned(mapped, shares_reads=False)
        assert (shared.storage_bytes, shared.moved_bytes, shared.done_s) == (400, 400, 44.0)
        assert (each.storage_bytes, each.moved_bytes, each.done_s) == (800, 0, 80.0)
        assert {read.target.instance: read.part.layer for read in shared.transfers if read.source is None} == {
            "b": 2,
            "c": 3,
        }
        assert planned(mapped, restart=True).storage_bytes == 800

    def test_a_lost_shard_without_a_byte_of_kv_costs_nothing(self) -> None:
        """One byte is not cut in two: the second shard has all of it."""
        model = replace(MODEL, kv_layer_token_bytes=1)
        instances = (Instance("a", 1, deadline_s=0.0), Instance("b", 1))
        request = RunningRequest("r", 10)
        mapped = DeviceMap(
            Deployment(
                ParallelConfig.parse("1,1,2"),
                instances,
                {Device("a", 0): Position(0, 0, 0), Device("b", 0): Position(0, 0, 1)},
                {0: (request,)},
            ),
            ParallelConfig.parse("1,1,1"),
            {Device("b", 0): Position(0, 0, 0)},
            {0: (request,)},
            (),
            0,
            0,
            {},
        )
        assert plan_migration(mapped, model, LINKS).recomputed == ()
        assert plan_migration(mapped, replace(model, kv_layer_token_bytes=2), LINKS).recomputed == (request,)

    def test_weights_of_a_lost_stage_come_from_another_pipeline(self) -> None:
        """A live replica is nearer than storage."""
        instances = tuple(Instance(name, 1) for name in "abcde")
        plan = planned(change("2,2,1,1", "2,2,1,1", instances, lost=(3,)))
        assert {(each.source, each.part.layer) for each in plan.transfers} == {
            (Device("b", 0), 2),
            (Device("b", 0), 3),
        }


class TestShapes:
    """Plans from any degrees to any other."""

    def test_unequal_tensor_degrees_cut_at_the_holders_bounds(self) -> None:
        """From 2 shards to 3, the middle third comes half from each old shard."""
        instances = (Instance("a", 2, deadline_s=600.0), Instance("b", 3))
        plan = planned(change("1,1,2,1", "1,1,3,1", instances))
        layer = [
            (each.target.number, str(each.share.start), str(each.share.end), each.source and each.source.number)
            for each in plan.transfers
            if each.part.layer == 0
        ]
        assert sorted(layer) == [(0, "0", "1/3", 0), (1, "1/2", "2/3", 1), (1, "1/3", "1/2", 0), (2, "2/3", "1", 1)]

    def test_pipelines_that_run_on_never_stop(self) -> None:
        """When a pipeline is added, the serving one continues, whatever the links' speed."""
        instances = tuple(Instance(name, 1) for name in "abcd")
        mapped = change("1,2,1,1", "2,2,1,1", instances, {0: (RunningRequest("r", 10),)})
        for progressive in (True, False):
            plan = planned(mapped, Links(100.0, 25.0, 5.0, groups_s=9.0), progressive=progressive)
            (runs_on,) = mapped.running_on
            assert [plan.stage_start_s[runs_on, stage] for stage in (0, 1)] == [0.0, 0.0]
            assert plan.pause_s[runs_on] == 0.0
            assert plan.pause_s[1 - runs_on] > 9.0

    def test_prompt_pipelines_get_weights_and_no_kv(self) -> None:
        instances = tuple(Instance(name, 1) for name in "abc")
        mapped = change("1,1,1,1", "1+1,1,1,1", instances[:2], {0: (RunningRequest("r", 10),)})
        plan = planned(mapped)
        decodes_at = next(device for device, position in mapped.positions.items() if position.pipeline == 1)
        assert {each.target for each in plan.transfers if each.part.kind == PartKind.KV} <= {decodes_at}
        assert sum(each.byte_count for each in plan.transfers if each.part.kind == PartKind.LAYER) == 400

    @pytest.mark.parametrize(("old", "new"), [("2,2,2,2", "1,3,2,2"), ("1,4,2,2", "2,2,1,2"), ("2,1,4,2", "1,3,2,4")])
    def test_what_is_kept_is_what_the_mapper_kept(self, old: str, new: str) -> None:
        instances = (*(Instance(f"i{number}", 4) for number in range(3)), Instance("z", 2, deadline_s=1e6))
        running = {0: (RunningRequest("r", 10, 3), RunningRequest("s", 7, 5))}
        mapped = change(old, new, instances, running)
        assert planned(mapped).kept_bytes == mapped.kept_weight_bytes + mapped.kept_kv_bytes

    def test_where_nothing_changes_nothing_moves(self) -> None:
        plan = planned(change("1,2,1,1", "1,2,1,1", (Instance("a", 2),)))
        assert plan.transfers == () and plan.done_s == plan.longest_pause_s == 0.0


class TestBuffers:
    """Two devices swap what they hold."""

    SWAPPED = DeviceMap(
        Deployment.in_order(ParallelConfig(1, 2, 1), (Instance("a", 1), Instance("b", 1))),
        ParallelConfig(1, 2, 1),
        dict(zip((Device("b", 0), Device("a", 0)), ParallelConfig(1, 2, 1).positions(), strict=True)),
        {},
        (),
        0,
        0,
        {},
    )

    def test_a_limit_turns_the_order_around(self) -> None:
        """Both layers of stage 0 at b first could take 200 bytes, were the other way slow; layer 1 goes last."""
        free, bound = planned(self.SWAPPED), planned(self.SWAPPED, buffer_bytes=100)
        assert [each.step for each in sorted(free.transfers, key=lambda each: each.part.layer or 0)] == [0, 1, 2, 3]
        assert [each.part.layer for each in sorted(bound.transfers, key=lambda each: each.step)] == [0, 2, 3, 1]
        assert {each.after_step for each in free.transfers} == {None}
        # a takes its second layer when it has sent its first; b takes its second when it has sent one, in step 1
        assert [each.after_step for each in sorted(bound.transfers, key=lambda each: each.step)] == [None, None, 0, 1]

    def test_a_limit_below_a_layer_cuts_it(self) -> None:
        plan = planned(self.SWAPPED, buffer_bytes=25)
        assert max(plan.peak_buffer_bytes.values()) == 25
        assert len({each.share for each in plan.transfers if each.part.layer == 0}) >= 4


def test_a_device_of_no_listed_instance_is_refused() -> None:
    mapped = change("1,2,1,1", "1,2,1,1", ONE_OF_TWO_LEAVES)
    positions = {**mapped.positions, Device("stranger", 0): next(iter(mapped.positions.values()))}
    with pytest.raises(ValueError, match=r"stranger.*before\.instances"):
        planned(DeviceMap(mapped.before, mapped.config, positions, {}, (), 0, 0, {}))
