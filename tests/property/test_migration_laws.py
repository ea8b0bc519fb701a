"""Laws of every migration plan, from any configuration to any other, whichever machines leave or are lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from spotwise.core.migration.deployment import Device
from spotwise.core.migration.planning.plan import MigrationPlan, PlanPolicy, paper_migration_s
from spotwise.core.migration.planning.planner import plan_migration
from tests.unit.core.migration.plan_cases import NOW_S, Byte, Case, Replay, cases, ports_of, reordered

FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))
LIMITS = st.sampled_from([None, 200, 60, 25])


def plan_of(case: Case, limit_bytes: int | None = None, **policy: bool) -> MigrationPlan:
    if limit_bytes is not None and case.model.partition is not None:
        limit_bytes *= 64  # its pieces have whole panels
    chosen = PlanPolicy(buffer_bytes=limit_bytes, **policy)
    try:
        return plan_migration(case.map, case.model, case.links, chosen, NOW_S)
    except ValueError as error:
        # so few bytes are lost in the rounding of cuts
        assert "buffer_bytes" in str(error) and limit_bytes in (25, 64 * 25)
        reject()


@FEW
@given(cases(), LIMITS, st.booleans())
def test_every_byte_needed_is_there_or_sent_exactly_once_by_a_holder(
    case: Case, limit_bytes: int | None, restart: bool
) -> None:
    """Sources hold what they send, still or already; leaving ones until their deadline; storage has weights."""
    plan = plan_of(case, limit_bytes, restart=restart)
    recomputed = {each.id for each in plan.recomputed}
    held = {device: set() if restart else case.held(device) for device in case.devices()}
    came: dict[Device, dict[Byte, float]] = {device: {} for device in held}
    keeps = {device: held[device] & case.needed(device, recomputed) for device in held}
    for transfer in plan.transfers:
        sent = case.sent(transfer)
        assert transfer.byte_count == sum(case.weight(byte) for byte in sent) > 0
        if transfer.source is None:
            assert transfer.part.request is None
            assert not any(sent & keeps[device] for device in held)
        elif transfer.is_relayed:
            assert all(came[transfer.source][byte] <= transfer.start_s for byte in sent)
        else:
            assert sent <= held[transfer.source]
            deadline_s = case.deadline_s(transfer.source)
            assert deadline_s is None or transfer.end_s <= deadline_s
        assert not sent & came[transfer.target].keys()
        came[transfer.target].update(dict.fromkeys(sent, transfer.end_s))
    kept = 0
    for device in held:
        needed = case.needed(device, recomputed)
        assert came[device].keys() == needed - held[device]
        kept += sum(case.weight(byte) for byte in needed & held[device])
    assert plan.kept_bytes == kept
    assert plan.moved_bytes + plan.storage_bytes == sum(each.byte_count for each in plan.transfers)
    assert plan.storage_bytes == sum(each.byte_count for each in plan.transfers if each.source is None)


@FEW
@given(cases(), LIMITS)
def test_a_request_continues_with_all_its_kv_or_is_listed(case: Case, limit_bytes: int | None) -> None:
    """A request resumes with all its KV or is listed: listed if no machine holds its KV, not if staying machines do."""
    plan = plan_of(case, limit_bytes)
    recomputed = [each.id for each in plan.recomputed]
    everywhere, staying = set(), set()
    for device in case.devices():
        everywhere |= case.held(device)
        staying |= set() if case.deadline_s(device) is not None else case.held(device)
    for pipeline, requests in case.map.running.items():
        for request in requests:
            places = [device for device, position in case.map.positions.items() if position.pipeline == pipeline]
            kv = {byte for device in places for byte in case.needed(device, set()) if byte[0].request == request.id}
            if not kv <= everywhere:
                assert request.id in recomputed
            if kv <= staying:
                assert request.id not in recomputed
    moving_kv = [request.id for requests in case.map.running.values() for request in requests]
    assert len(recomputed) == len(set(recomputed))
    assert set(recomputed) <= set(moving_kv)


@FEW
@given(cases(), LIMITS, st.data())
def test_no_buffer_exceeds_the_limit_however_long_transfers_take(
    case: Case, limit_bytes: int | None, data: st.DataObject
) -> None:
    """The plan's order and its gates keep the limit, not its predicted times."""
    plan = plan_of(case, limit_bytes)
    predicted = Replay(case, plan, [each.end_s - each.start_s for each in plan.transfers]).run()
    assert predicted.starts_s == pytest.approx([each.start_s for each in plan.transfers])
    got = {each.target.instance for each in plan.transfers}
    assert plan.peak_buffer_bytes == {name: peak for name, peak in sorted(predicted.peaks.items()) if name in got}
    count = len(plan.transfers)
    seconds = data.draw(st.lists(st.sampled_from([0.01, 1.0, 30.0]), min_size=count, max_size=count))
    for replay in (predicted, Replay(case, plan, seconds).run()):
        if plan.policy.buffer_bytes is not None:
            assert max(replay.peaks.values(), default=0) <= plan.policy.buffer_bytes


@FEW
@given(cases(), LIMITS)
def test_only_unneeded_bytes_are_freed(case: Case, limit_bytes: int | None) -> None:
    plan = plan_of(case, limit_bytes)
    for device in case.devices():
        if case.deadline_s(device) is None:
            # KV of requests that come too late is dropped with the rest, or stays for the pipeline that recomputes them
            late = {each.id for each in plan.recomputed}
            goes = {byte for byte in case.held(device) - case.needed(device, set()) if byte[0].request is None}
            freed = sum(each.byte_count for each in plan.freed if each.device == device and not each.is_kv)
            assert freed == sum(case.weight(byte) for byte in goes)
            kv = {byte for byte in case.held(device) if byte[0].request is not None and byte[0].request not in late}
            least = sum(case.weight(byte) for byte in kv - case.needed(device, set()))
            assert least <= sum(each.byte_count for each in plan.freed if each.device == device and each.is_kv)


@FEW
@given(cases(), LIMITS, st.booleans())
def test_a_stage_starts_when_its_layers_and_kv_are_there(
    case: Case, limit_bytes: int | None, progressive: bool
) -> None:
    """A stage starts exactly when its layers and KV are there, or, without the progressive policy, when everything is."""
    plan = plan_of(case, limit_bytes, progressive=progressive)
    ends_s: dict[tuple[int, int], float] = {}
    for transfer in plan.transfers:
        stage = case.map.positions[transfer.target][:2]
        ends_s[stage] = max(ends_s.get(stage, 0.0), transfer.end_s)
    for stage, start_s in plan.stage_start_s.items():
        due_s = ends_s.get(stage, case.links.groups_s) if progressive else plan.done_s
        assert start_s == pytest.approx(due_s)
    assert len(plan.stage_start_s) == case.map.config.pipelines * case.map.config.pipeline
    assert plan.longest_pause_s == max(plan.stage_start_s.values())
    assert plan.done_s == max(ends_s.values(), default=case.links.groups_s)


@FEW
@given(cases(), LIMITS)
def test_links_carry_one_transfer_at_a_time_and_kv_before_weights(case: Case, limit_bytes: int | None) -> None:
    """Transfers take the link's rate; a plan takes at least its busiest link's time, and at most all links in turn."""
    plan = plan_of(case, limit_bytes)
    lines: dict[tuple[str, object], list[tuple[float, float, bool]]] = {}
    for transfer in plan.transfers:
        rate = {
            "storage": case.links.storage_bytes_per_s,
            "out": case.links.within_bytes_per_s,
            "up": case.links.between_bytes_per_s,
        }[ports_of(transfer)[0][0]]
        seconds = case.links.transfer_s + transfer.byte_count / rate
        assert transfer.end_s - transfer.start_s == pytest.approx(seconds)
        for port in ports_of(transfer):
            lines.setdefault(port, []).append((transfer.start_s, transfer.end_s, transfer.part.request is None))
    busiest_s = 0.0
    for line in lines.values():
        assert line == sorted(line)
        assert all(one[1] <= other[0] and one[2] <= other[2] for one, other in pairwise(line))
        busiest_s = max(busiest_s, sum(end_s - start_s for start_s, end_s, _ in line))
    everything_s = sum(each.end_s - each.start_s for each in plan.transfers)
    assert case.links.groups_s + busiest_s <= plan.done_s + 1e-9
    assert plan.done_s <= case.links.groups_s + everything_s + 1e-9
    assert paper_migration_s(plan) <= case.links.groups_s + everything_s + 1e-9


@FEW
@given(cases(), LIMITS)
def test_the_order_of_a_mapping_changes_nothing(case: Case, limit_bytes: int | None) -> None:
    before = replace(case.map.before, positions=reordered(case.map.before.positions))
    same = replace(case, map=replace(case.map, before=before, positions=reordered(case.map.positions)))
    assert plan_of(case, limit_bytes) == plan_of(same, limit_bytes)


@FEW
@given(cases())
def test_a_restart_loads_everything_and_loses_all_kv(case: Case) -> None:
    plan = plan_of(case, restart=True)
    chosen = [request.id for pipeline in sorted(case.map.running) for request in case.map.running[pipeline]]
    assert [each.id for each in plan.recomputed] == chosen
    assert plan.kept_bytes == 0
    assert plan.moved_bytes + plan.storage_bytes == plan.naive_bytes
    assert plan_of(case).naive_bytes == plan.naive_bytes
    assert max(plan.peak_buffer_bytes.values(), default=0) == 0
