"""Tests of the mapper: which device gets which position."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from spotwise.core.migration.deployment import Deployment, Device, DeviceMap, Instance, RunningRequest
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.mapping.matching import most_gained
from spotwise.core.migration.mapping.parts import Reusable
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape

MODEL = ModelShape(
    "small", layers=8, hidden_size=8, layer_bytes=800, embedding_bytes=80, head_bytes=160, kv_layer_token_bytes=16
)


def fleet(*sizes: int, leaves: tuple[int, ...] = ()) -> tuple[Instance, ...]:
    return tuple(Instance(f"i{n}", size, 30.0 if n in leaves else None) for n, size in enumerate(sizes))


def deployed(
    written: str,
    *sizes: int,
    leaves: tuple[int, ...] = (),
    come: tuple[int, ...] = (),
    running: dict[int, list[RunningRequest]] | None = None,
) -> Deployment:
    """A deployment that filled instances of these sizes in order, before some had notice and others came."""
    config = ParallelConfig.parse(written)
    requests = {pipeline: tuple(of_one) for pipeline, of_one in (running or {}).items()}
    stood = Deployment.in_order(config, fleet(*sizes), requests)
    new = tuple(Instance(f"new{n}", size) for n, size in enumerate(come))
    return replace(stood, instances=fleet(*sizes, leaves=leaves) + new)


def after(before: Deployment, written: str) -> DeviceMap:
    return map_devices(before, ParallelConfig.parse(written), MODEL)


def of_instance(mapped: DeviceMap, instance: str) -> list[Position]:
    return sorted(position for device, position in mapped.positions.items() if device.instance == instance)


class TestPositions:
    """Each position is filled by the device that holds most of it."""

    def test_one_that_replaces_a_leaving_instance_gets_its_place(self) -> None:
        before = deployed("2,2,2", 2, 2, 2, 2, leaves=(1,), come=(2,))
        mapped = after(before, "2,2,2")
        staying = {device: place for device, place in before.positions.items() if device.instance != "i1"}
        assert staying.items() <= mapped.positions.items()
        assert of_instance(mapped, "new0") == [(0, 1, 0), (0, 1, 1)]
        assert mapped.running_on == {1: 1}
        assert mapped.kept_weight_bytes == MODEL.weight_bytes + 4 * 800 + 80

    def test_a_device_goes_where_its_kv_is_wanted(self) -> None:
        """Of two devices with the same weights, the one with the KV that continues gets the position."""
        before = deployed("2,1,1,1", 1, 1, running={0: [RunningRequest("a", 50, 1)], 1: [RunningRequest("b", 50, 9)]})
        mapped = after(before, "1,1,1,1")
        assert mapped.positions == {Device("i1", 0): Position(0, 0, 0)}
        assert (mapped.kept_weight_bytes, mapped.kept_kv_bytes) == (MODEL.weight_bytes, 50 * 8 * 16)
        assert [request.id for request in mapped.waiting] == ["a"]

    def test_halved_shards_stay_on_the_devices_that_hold_them(self) -> None:
        """From M = 1 to M = 2 and from two stages to one: each device keeps the half of its layers that it has."""
        before = deployed("1,2,1", 1, 1, come=(1, 1))
        mapped = after(before, "1,2,2")
        assert mapped.positions[Device("i0", 0)][:2] == (0, 0)
        assert mapped.positions[Device("i1", 0)][:2] == (0, 1)
        assert mapped.kept_weight_bytes == MODEL.weight_bytes // 2

    def test_the_embedding_and_the_head_count(self) -> None:
        """With eight stages of one layer on nine devices, the devices with embedding and head keep their positions."""
        before = deployed("1,1,1", 1, come=(1,) * 7)
        assert after(before, "1,8,1").positions[Device("i0", 0)] == Position(0, 7, 0)

    def test_tensor_groups_come_together_where_their_layers_are(self) -> None:
        """Eight shards become two times four: an instance that held a stage gets that stage twice."""
        before = deployed("1,2,8", 8, 8)
        mapped = after(before, "2,2,4")
        for number in range(2):
            assert {place[1] for place in of_instance(mapped, f"i{number}")} == {number}
        assert mapped.kept_weight_bytes == MODEL.weight_bytes

    def test_devices_of_a_tensor_group_are_seen_as_such_whatever_their_numbers(self) -> None:
        """Two stages on an instance, shard by shard in turn: it gets one half of each, and all its devices keep a layer."""
        stages = {"i0": (0, 2), "i1": (1, 3)}
        positions = {
            Device(name, 2 * shard + turn): Position(0, stage, shard)
            for name, of_one in stages.items()
            for turn, stage in enumerate(of_one)
            for shard in range(2)
        }
        before = Deployment(ParallelConfig(1, 4, 2), fleet(4, 4, 4, 4), positions)
        assert after(before, "1,8,2").kept_weight_bytes == 8 * 400 + MODEL.embedding_bytes + MODEL.head_bytes

    def test_a_tensor_group_that_must_be_cut_is_dealt_out(self) -> None:
        """Four shards each on two instances become eight over both: each device keeps half of what it has."""
        before = deployed("2,1,4", 4, 4)
        mapped = after(before, "1,1,8")
        assert mapped.kept_weight_bytes == MODEL.weight_bytes
        assert {place[2] % 2 for place in of_instance(mapped, "i0")} in ({0}, {1})

    def test_a_tensor_group_is_on_one_instance_before_more_is_kept(self) -> None:
        """Three hold a tensor group together; the one of two devices gets all of it."""
        mapped = after(deployed("1,1,2", 1, 1, come=(2,)), "1,1,2")
        assert of_instance(mapped, "new0") == [] and mapped.running_on == {0: 0}  # nothing happens to it: it runs on
        mapped = after(deployed("1,1,2", 1, 1, 1, leaves=(0,), come=(2,)), "1,1,2")
        assert of_instance(mapped, "new0") == [(0, 0, 0), (0, 0, 1)]

    def test_instances_of_all_sizes_serve_together(self) -> None:
        before = deployed("6,3,2", 1, 2, 3, 4, 5, 6, 7, 8)
        mapped = after(before, "3,6,2")
        assert sorted(mapped.positions.values()) == list(ParallelConfig(3, 6, 2).positions())

    def test_positions_are_given_in_order(self) -> None:
        mapped = after(deployed("2,2,2", 4, 4, 4, leaves=(0,)), "2,1,4")
        assert list(mapped.positions.values()) == list(ParallelConfig(2, 1, 4).positions())


class TestManyDevices:
    """Fleets small enough to compare with a flat matching."""

    @pytest.mark.parametrize(
        ("size", "old", "new"),
        [
            (4, "16,4,4,4", "13,4,4,4"),  # some instances leave
            (4, "16,4,4,4", "11,5,4,8"),  # other stages
            (4, "16,4,4,4", "7,4,8,8"),  # shards halved, each tensor group on two instances either way
            (8, "8,4,8,4", "14,4,4,4"),  # shards doubled: a stage twice on each instance
            (8, "64,1,4,2", "53,1,4,3"),
            (1, "8,8,4,4", "25,9,1,8"),  # no instance to keep together
            (2, "4+12,4,4,4", "6+8,4,4,6"),  # phases apart
        ],
    )
    def test_as_much_is_kept_as_by_a_flat_matching(self, size: int, old: str, new: str) -> None:
        count = 256 // size
        config = ParallelConfig.parse(old)
        running = {
            pipeline: [
                RunningRequest(f"{pipeline}.{n}", 50 + 7 * n + 3 * pipeline, 1 + n) for n in range(config.max_batch)
            ]
            for pipeline in range(config.prompt_data, config.pipelines)
        }
        before = deployed(old, *[size] * count, leaves=tuple(range(3, count, 16)), running=running)
        mapped = after(before, new)
        owner = {one.id: number for number, requests in before.running.items() for one in requests}
        tokens: Counter[tuple[int, int]] = Counter()
        for number, requests in mapped.running.items():
            for one in requests:
                tokens[owner[one.id], number] += one.tokens
        reusable = Reusable.between(config, mapped.config, MODEL, tokens)
        devices = [device for one in before.instances if not one.is_leaving for device in one.all_devices()]
        gains = reusable.gains([before.positions.get(device) for device in devices], list(mapped.config.positions()))
        assert mapped.kept_kv_bytes > 0
        assert mapped.kept_weight_bytes + mapped.kept_kv_bytes == most_gained(gains)


class TestIdle:
    """More devices than positions."""

    def test_those_with_least_to_use_again_are_idle(self) -> None:
        """Devices with the least to reuse are idle, though they came first."""
        before = replace(deployed("1,2,1", 1, 1), instances=(Instance("first", 1), *fleet(1, 1)))
        mapped = after(before, "1,2,1")
        assert sorted(device.instance for device in mapped.positions) == ["i0", "i1"]

    def test_of_equals_the_later_is_idle(self) -> None:
        before = Deployment(ParallelConfig(1, 1, 1), fleet(2, 2, 2, 2))
        mapped = after(before, "1,2,1")
        assert sorted(mapped.positions) == [Device("i0", 0), Device("i0", 1)]
        mapped = after(before, "3,1,1")
        assert sorted(mapped.positions) == [Device("i0", 0), Device("i0", 1), Device("i1", 0)]


class TestLeaving:
    """Instances with notice of their interruption."""

    def test_leaving_instances_get_nothing(self) -> None:
        mapped = after(deployed("1,1,2", 2, leaves=(0,), come=(2,)), "1,1,2")
        assert of_instance(mapped, "i0") == []
        assert mapped.kept_weight_bytes == 0
        assert mapped.running_on == {}

    def test_requests_continue_though_none_of_their_kv_stays(self) -> None:
        """A request continues though no device of its KV stays: the KV moves while there is time."""
        running = {0: [RunningRequest("a", 50, 1)]}
        mapped = after(deployed("1,1,2", 2, leaves=(0,), come=(2,), running=running), "1,1,2")
        assert mapped.running == {0: tuple(running[0])}
        assert mapped.kept_kv_bytes == 0

    def test_too_few_that_stay_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"needs 4 devices, and 2 stay .* choose a smaller configuration"):
            after(deployed("1,2,2", 2, 2, leaves=(1,)), "1,2,2")


class TestRunningOn:
    """Pipelines that nothing happens to."""

    def test_they_keep_their_devices_and_only_new_ones_load(self) -> None:
        running = {n: [RunningRequest(f"r{n}", 10, 1)] for n in range(2)}
        before = deployed("2,2,2,4", 4, 4, come=(4,), running=running)
        mapped = after(before, "3,2,2,4")
        assert mapped.running_on == {0: 0, 1: 1}
        assert before.positions.items() <= mapped.positions.items()
        assert mapped.kept_weight_bytes == 2 * MODEL.weight_bytes
        assert mapped.kept_kv_bytes == 2 * 10 * MODEL.kv_token_bytes

    def test_the_rest_of_their_instances_serves_others(self) -> None:
        """A pipeline of three on an instance of four leaves one device for the next."""
        before = deployed("1,3,1", 4, come=(2,))
        mapped = after(before, "2,3,1")
        assert mapped.running_on == {0: 0}
        assert [place[0] for place in of_instance(mapped, "i0")] == [0, 0, 0, 1]

    def test_they_keep_them_under_another_number_as_well(self) -> None:
        before = deployed("3,1,2,1", 2, 2, 2, leaves=(0,))
        mapped = after(before, "2,1,2,1")
        assert mapped.running_on == {0: 2, 1: 1}
        assert of_instance(mapped, "i2") == [(0, 0, 0), (0, 0, 1)]
