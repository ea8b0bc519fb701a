"""What holds of every device map."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from spotwise.core.migration.deployment import Deployment, Device, DeviceMap, Instance, RunningRequest
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape
from tests.unit.core.migration.held_parts import common_bytes, kv_of, weights_of

#: Deployments take longer to draw than to map.
EXAMPLES = 50
MODEL = ModelShape(
    "small", layers=5, hidden_size=8, layer_bytes=1001, embedding_bytes=300, head_bytes=200, kv_layer_token_bytes=24
)


@st.composite
def configs(draw: st.DrawFn, most_devices: int) -> ParallelConfig:
    """A configuration with no more than so many devices."""
    tensor = draw(st.integers(1, min(8, most_devices)))
    pipeline = draw(st.integers(1, min(6, most_devices // tensor)))
    pipelines = draw(st.integers(1, most_devices // tensor // pipeline))
    prompts = draw(st.integers(0, pipelines - 1)) if draw(st.booleans()) else 0
    return ParallelConfig(pipelines - prompts, pipeline, tensor, draw(st.integers(1, 4)), prompts)


@st.composite
def changes(draw: st.DrawFn) -> tuple[Deployment, ParallelConfig]:
    """A deployment and what it is to become: in any order on instances of any size, with losses, notices and newcomers."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    devices = [Device(f"i{number}", index) for number, size in enumerate(sizes) for index in range(size)]
    config = draw(configs(len(devices)))
    placed = draw(st.permutations(devices)) if draw(st.booleans()) else devices
    positions = dict(zip(placed, config.positions(), strict=False))
    if draw(st.booleans()):
        for device in draw(st.lists(st.sampled_from(devices), max_size=2)):
            positions.pop(device, None)
    newcomers = draw(st.lists(st.integers(1, 8), max_size=2))
    notices = draw(st.lists(st.sampled_from([None, None, 30.0]), min_size=len(sizes), max_size=len(sizes)))
    instances = [Instance(f"i{number}", size, notices[number]) for number, size in enumerate(sizes)]
    instances += [Instance(f"new{number}", size) for number, size in enumerate(newcomers)]
    staying = sum(instance.devices for instance in instances if not instance.is_leaving)
    assume(staying > 0)
    running: dict[int, tuple[RunningRequest, ...]] = {}
    for pipeline in range(config.pipelines):
        counts = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4)), max_size=config.max_batch))
        requests = [RunningRequest(f"{pipeline}.{n}", tokens + done, done) for n, (tokens, done) in enumerate(counts)]
        if requests:
            running[pipeline] = tuple(requests)
    again = config.devices <= staying and draw(st.booleans())
    after = replace(config, max_batch=draw(st.integers(1, 4))) if again else draw(configs(staying))
    return Deployment(config, tuple(draw(st.permutations(instances))), positions, running), after


def old_pipelines(mapped: DeviceMap) -> dict[str, int]:
    return {request.id: number for number, requests in mapped.before.running.items() for request in requests}


def reusable_bytes(mapped: DeviceMap, device: Device, new: Position) -> tuple[int, int]:
    """Return the bytes of weights and of KV that a device has of a position, part by part."""
    before = mapped.before
    old = before.positions.get(device)
    if old is None:
        return 0, 0
    weight_bytes = common_bytes(weights_of(old, before.config, MODEL), weights_of(new, mapped.config, MODEL))
    theirs = {request.id for request in before.running.get(old.pipeline, ())}
    kv_bytes = sum(
        common_bytes(kv_of(old, before.config, MODEL, request), kv_of(new, mapped.config, MODEL, request))
        for request in mapped.running.get(new.pipeline, ())
        if request.id in theirs
    )
    return weight_bytes, kv_bytes


def staying(deployment: Deployment) -> list[Device]:
    return [device for one in deployment.instances if not one.is_leaving for device in one.all_devices()]


def is_untouched(deployment: Deployment, pipeline: int) -> bool:
    there = staying(deployment)
    devices = [device for device, position in deployment.positions.items() if position.pipeline == pipeline]
    return len(devices) == deployment.config.pipeline_devices and all(device in there for device in devices)


@settings(max_examples=EXAMPLES)
@given(changes())
def test_every_position_has_one_device_that_stays_and_what_is_kept_is_what_it_holds_of_it(
    change: tuple[Deployment, ParallelConfig],
) -> None:
    """No device has two positions; kept bytes are counted part by part, layer by layer, request by request."""
    mapped = map_devices(*change, MODEL)
    assert list(mapped.positions.values()) == list(change[1].positions())
    assert set(mapped.positions) <= set(staying(change[0]))
    kept = [reusable_bytes(mapped, device, position) for device, position in mapped.positions.items()]
    assert mapped.kept_weight_bytes == sum(weight_bytes for weight_bytes, _ in kept)
    assert mapped.kept_kv_bytes == sum(kv_bytes for _, kv_bytes in kept)


@settings(max_examples=EXAMPLES)
@given(changes())
def test_two_levels_keep_no_more_than_a_flat_matching_and_as_much_without_tensor_groups(
    change: tuple[Deployment, ParallelConfig],
) -> None:
    """The difference is the cost of keeping tensor groups on an instance; pipelines that run on cost nothing."""
    mapped = map_devices(*change, MODEL)
    places = list(mapped.config.positions())
    gains = np.array(
        [[sum(reusable_bytes(mapped, device, place)) for place in places] for device in staying(change[0])]
    )
    flat = int(gains[linear_sum_assignment(gains, maximize=True)].sum())
    kept = mapped.kept_weight_bytes + mapped.kept_kv_bytes
    assert kept <= flat
    if mapped.config.tensor == 1:
        assert kept == flat


@settings(max_examples=EXAMPLES)
@given(changes())
def test_tensor_groups_are_whole_where_all_can_be(change: tuple[Deployment, ParallelConfig]) -> None:
    """A tensor group lies on one instance where every group can, pipelines that continue unchanged apart."""
    mapped = map_devices(*change, MODEL)
    tensor = mapped.config.tensor
    taken = Counter(
        device.instance for device, place in mapped.positions.items() if place.pipeline in mapped.running_on
    )
    free = [one.devices - taken[one.id] for one in change[0].instances if not one.is_leaving]
    groups = (mapped.config.pipelines - len(mapped.running_on)) * mapped.config.pipeline
    if sum(count // tensor for count in free) < groups:
        return
    owners: dict[tuple[int, int], set[str]] = {}
    for device, place in mapped.positions.items():
        if place.pipeline not in mapped.running_on:
            owners.setdefault((place.pipeline, place.stage), set()).add(device.instance)
    assert all(len(instances) == 1 for instances in owners.values())


@settings(max_examples=EXAMPLES)
@given(changes())
def test_the_most_decoded_requests_continue(change: tuple[Deployment, ParallelConfig]) -> None:
    """As many requests continue as fit, of each kind; those that wait have decoded less, or have lost KV."""
    before, config = change
    mapped = map_devices(before, config, MODEL)
    goes_on = [request for requests in mapped.running.values() for request in requests]
    everybody = [request for requests in before.running.values() for request in requests]
    assert sorted([*goes_on, *mapped.waiting], key=lambda one: one.id) == sorted(everybody, key=lambda one: one.id)
    assert all(1 <= len(requests) <= config.max_batch for requests in mapped.running.values())
    assert [one.decoded for one in mapped.waiting] == sorted((one.decoded for one in mapped.waiting), reverse=True)
    old = old_pipelines(mapped)
    each = -(-MODEL.layers // before.config.pipeline)
    filled = Counter(place.pipeline for place in before.positions.values() if place.stage * each < MODEL.layers)
    with_layers = -(-MODEL.layers // each) * before.config.tensor
    whole = {number for number, count in filled.items() if count == with_layers}
    assert all(old[one.id] in whole for one in goes_on)
    could = [one for one in mapped.waiting if old[one.id] in whole]
    if config.is_split:
        prompts = [one for number in range(config.prompt_data) for one in mapped.running.get(number, ())]
        decoding = [one for one in goes_on if one not in prompts]
        assert all(one.decoded == 0 for one in prompts)
        assert all(one.decoded > 0 for one in decoding)
        kinds = [(prompts, [one for one in could if one.decoded == 0], config.prompt_data)]
        kinds.append((decoding, [one for one in could if one.decoded > 0], config.data))
    else:
        kinds = [(goes_on, could, config.data)]
    for kept, left, pipelines in kinds:
        if left:
            assert len(kept) == pipelines * config.max_batch
            assert min(one.decoded for one in kept) >= max(one.decoded for one in left)


@settings(max_examples=EXAMPLES)
@given(changes())
def test_a_pipeline_that_runs_on_has_the_same_devices_and_requests(change: tuple[Deployment, ParallelConfig]) -> None:
    before, config = change
    mapped = map_devices(before, config, MODEL)
    assert len(set(mapped.running_on.values())) == len(mapped.running_on)
    for new, old in mapped.running_on.items():
        assert (config.pipeline, config.tensor) == (before.config.pipeline, before.config.tensor)
        assert is_untouched(before, old)
        theirs = {place[1:]: device for device, place in before.positions.items() if place.pipeline == old}
        assert theirs == {place[1:]: device for device, place in mapped.positions.items() if place.pipeline == new}
        assert mapped.running.get(new, ()) == before.running.get(old, ())


@settings(max_examples=EXAMPLES)
@given(changes(), st.integers(0, 2))
def test_untouched_pipelines_run_on_where_there_are_as_many_and_as_large(
    change: tuple[Deployment, ParallelConfig], added: int
) -> None:
    """Phases together; batches no smaller; whatever happens to the other pipelines, their requests find room beside them."""
    before, _ = change
    assume(not before.config.is_split)
    config = replace(before.config, data=before.config.data + added)
    assume(config.devices <= len(staying(before)))
    mapped = map_devices(before, config, MODEL)
    untouched = [number for number in range(before.config.pipelines) if is_untouched(before, number)]
    assert sorted(mapped.running_on.values()) == untouched


@settings(max_examples=EXAMPLES)
@given(changes())
def test_requests_of_a_pipeline_stay_together_where_nothing_else_must_share(
    change: tuple[Deployment, ParallelConfig],
) -> None:
    """With as many pipelines and as large batches as before, phases together, the requests of a pipeline stay together."""
    before, config = change
    assume(not before.config.is_split and not config.is_split)
    assume(config.data >= before.config.data and config.max_batch >= before.config.max_batch)
    mapped = map_devices(before, config, MODEL)
    old = old_pipelines(mapped)
    went: dict[int, set[int]] = {}
    for number, requests in mapped.running.items():
        for request in requests:
            went.setdefault(old[request.id], set()).add(number)
    assert all(len(numbers) == 1 for numbers in went.values())


@settings(max_examples=EXAMPLES)
@given(changes(), st.randoms(use_true_random=False))
def test_the_order_of_mappings_changes_nothing(change: tuple[Deployment, ParallelConfig], random: object) -> None:
    before, config = change
    positions, running = list(before.positions.items()), list(before.running.items())
    random.shuffle(positions)  # type: ignore[attr-defined]
    random.shuffle(running)  # type: ignore[attr-defined]
    shuffled = replace(before, positions=dict(positions), running=dict(running))
    one, other = map_devices(before, config, MODEL), map_devices(shuffled, config, MODEL)
    assert one == other
    assert list(one.positions) == list(other.positions)
    assert list(one.running) == list(other.running)
