"""A worker's settings, and the role's that follow from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.membership.confirmation import CONFIRM_EVERY_S
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.core.worker.policy import Batching, Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.policies import queues_for
from spotwise.worker.compute_threads import ComputeThreads
from spotwise.worker.groups.settings import DeviceSettings
from spotwise.worker.settings import WorkerSettings
from spotwise.worker.simulated.settings import SimulatedWorkerSettings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, WorkerPolicy(BatchLimits(), max_stall_s=0.06)),
        ({"max_stall_ms": 0}, WorkerPolicy(BatchLimits())),
        ({"decodes_pause": True, "max_stall_ms": 0}, WorkerPolicy(BatchLimits(decodes_pause=True))),
    ],
    ids=["none", "no bound of a stall", "decodes pause"],
)
def test_without_settings_a_worker_has_the_default_policy(
    model_dir: Path, settings: dict[str, Any], expected: WorkerPolicy
) -> None:
    """Iteration-level batches, blocks on demand, prefixes reused; prompts are chunked for the decodes beside them, unless
    `max_stall_ms` is 0. No setting lets a prompt exceed `max_prompt_tokens`. Hand-offs leave in the cheaper way.
    """
    assert WorkerSettings(model_dir=model_dir, **settings).worker_policy() == replace(
        expected,
        limits=replace(expected.limits, cuts_prompts=True),
        kv_push=ConfiguredPushMode.AUTO,
        confirm_every_s=CONFIRM_EVERY_S,
    )


@pytest.mark.parametrize("group", [{"stages": 2}, {"shards": 2}, {"reshapable": True}])
def test_workers_of_several_processes_serve_no_adapters(model_dir: Path, group: dict[str, Any]) -> None:
    assert WorkerSettings(model_dir=model_dir, adapters="law=/a").adapter_folders == (("law", Path("/a")),)
    with pytest.raises(ValidationError, match="SPOTWISE_ADAPTERS"):
        WorkerSettings(model_dir=model_dir, adapters="law=/a", **group)
    with pytest.raises(ValidationError, match="SPOTWISE_ADAPTERS"):
        DeviceSettings(model_dir=model_dir, adapters="law=/a")
    with pytest.raises(ValidationError, match="SPOTWISE_ADAPTERS"):
        SimulatedWorkerSettings(model_dir=model_dir, adapters="law=/a")


def test_every_policy_can_be_set(model_dir: Path) -> None:
    settings = WorkerSettings(
        model_dir=model_dir,
        max_num_seqs=8,
        max_prompt_tokens=512,
        max_num_batched_tokens=64,
        reserve="max_tokens",  # type: ignore[arg-type]
        kv_watermark=0.05,
        max_preemptions=2,
        prefix_caching=False,
        batching="request_level",  # type: ignore[arg-type]
        max_stall_ms=80,
        prompts_first=False,
        preempt_after_ms=250,
        kv_push="layerwise",  # type: ignore[arg-type]
    )
    limits = BatchLimits(8, 512, 64, cuts_prompts=True)
    expected = WorkerPolicy(
        limits,
        Reserve.MAX_TOKENS,
        0.05,
        2,
        False,
        Batching.REQUEST_LEVEL,
        0.08,
        prompts_first=False,
        preempt_after_s=0.25,
        kv_push=ConfiguredPushMode.LAYERWISE,
        confirm_every_s=CONFIRM_EVERY_S,
    )
    assert settings.worker_policy() == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_batched_tokens": 100}, "max_num_batched_tokens is 100 and max_num_seqs 256"),
        ({"batching": "request_level"}, "needs reserve=max_tokens"),
        ({"decodes_pause": True}, "decodes_pause needs max_stall_s=None"),
        ({"decodes_pause": True, "max_num_batched_tokens": 512}, "decodes_pause needs whole prompts"),
        ({"policy": "srpt"}, "SPOTWISE_POLICY=srpt needs the length of every answer"),
        ({"when_full": "reactive", "kv_host_bytes": 0}, "SPOTWISE_KV_HOST_BYTES=0 allows none"),
        ({"kv_host_bytes": 1 << 30}, "SPOTWISE_POLICY=fcfs and SPOTWISE_WHEN_FULL=recompute; reactive and proactive"),
        ({"policy": "mlfq", "when_full": "defer", "kv_host_bytes": 1}, "SPOTWISE_WHEN_FULL=defer"),
        ({"policy": "mlfq", "profile": "/no/profile.json"}, "SPOTWISE_PROFILE: /no/profile.json is no cost profile"),
        ({"policy": "mlfq", "batching": "request_level", "reserve": "max_tokens"}, "needs scheduling=fcfs"),
    ],
)
def test_settings_that_contradict_one_another_end_the_start(
    model_dir: Path, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        WorkerSettings(model_dir=model_dir, **settings)  # type: ignore[arg-type]


def test_queues_charge_by_a_profile_and_swap_before_they_must(model_dir: Path) -> None:
    cost = LinearIterationCost(0.01, 1e-4, 0.0, 1e-3, 0.0)
    plain = WorkerSettings(model_dir=model_dir, policy="mlfq")  # type: ignore[arg-type]
    policy = plain.worker_policy(cost=cost)
    assert (policy.scheduling, policy.cost, policy.mlfq) == (Scheduling.MLFQ, cost, queues_for(cost))
    assert policy.swap == SwapPolicy(WhenFull.PROACTIVE, 2, 2)
    reported = WorkerSettings(
        model_dir=model_dir,
        policy="mlfq",  # type: ignore[arg-type]
        starve_limit_ms=250,
        quantum_ratio=4,
        when_full="reactive",  # type: ignore[arg-type]
        kv_host_bytes=1 << 20,
        spare_slots=5,
        burst_queues=0,
    )
    policy = reported.worker_policy(cost=cost)
    assert policy.mlfq == queues_for(cost, 4.0, 0.25)
    assert policy.swap == SwapPolicy(WhenFull.REACTIVE, 5, 0)
    assert reported.host_bytes(1 << 40, 1 << 30) == 1 << 20


def test_queues_without_a_cost_are_no_policy(model_dir: Path) -> None:
    with pytest.raises(ValueError, match="a cost to charge service by"):
        WorkerSettings(model_dir=model_dir, policy="mlfq").worker_policy()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "when_full", "host_bytes"),
    [
        ({}, WhenFull.RECOMPUTE, 0),
        ({"policy": "priority"}, WhenFull.RECOMPUTE, 0),
        ({"policy": "mlfq", "kv_host_bytes": 0}, WhenFull.RECOMPUTE, 0),
        ({"policy": "mlfq", "when_full": "recompute"}, WhenFull.RECOMPUTE, 0),
        ({"policy": "mlfq", "when_full": "defer"}, WhenFull.DEFER, 0),
        ({"policy": "priority", "when_full": "proactive"}, WhenFull.PROACTIVE, 1 << 33),
        ({"policy": "mlfq", "local_workers": 4}, WhenFull.PROACTIVE, 1 << 31),
        ({"when_full": "reactive", "kv_host_bytes": 5}, WhenFull.REACTIVE, 5),
    ],
)
def test_the_kv_push_follows_from_the_settings(
    model_dir: Path, settings: dict[str, object], when_full: WhenFull, host_bytes: int
) -> None:
    """Memory of the host is taken where KV is swapped, and there only: an eighth of what is free, no less than the cache."""
    made = WorkerSettings(model_dir=model_dir, **settings)  # type: ignore[arg-type]
    assert made.worker_policy(cost=LinearIterationCost(1, 0, 0, 0, 0)).swap.when_full is when_full
    assert made.host_bytes(1 << 36, 1 << 30) == host_bytes
    assert made.host_bytes(0, 1 << 35) == (
        host_bytes if made.kv_host_bytes is not None else (1 << 35) * bool(host_bytes)
    )


def test_cores_are_a_list_as_the_kernel_writes_it(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order, which threads that are pinned follow."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    settings = WorkerSettings(model_dir=model_dir, cores="4-6,0", threads=3, pin_threads=True, niceness=2)
    assert settings.core_ids == (4, 5, 6, 0)
    assert settings.compute_threads == ComputeThreads(2, (4, 5, 6))
    shared = WorkerSettings(model_dir=model_dir, cores="4-6,0", threads=3)
    assert shared.compute_threads == WorkerSettings(model_dir=model_dir).compute_threads == ComputeThreads()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cores": "0;1"}, "no list of CPUs; write for instance 0-3,8"),
        ({"cores": "3-1"}, "no range of CPUs"),
        ({"cores": "0,0"}, "twice"),
        ({"cores": "6-9"}, "may use the cores 0-7, not 8-9"),
        ({"pin_threads": True}, "SPOTWISE_PIN_THREADS.*set both"),
        ({"pin_threads": True, "threads": 2}, "SPOTWISE_THREADS is 2, and SPOTWISE_CORES names 0"),
        ({"pin_threads": True, "cores": "0-3"}, "SPOTWISE_THREADS is None"),
        ({"pin_threads": True, "threads": 5, "cores": "0-3"}, "is 5, and SPOTWISE_CORES names 4"),
    ],
)
def test_cores_that_are_not_there_or_too_few_are_refused(
    model_dir: Path, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    with pytest.raises(ValidationError, match=message):
        WorkerSettings(model_dir=model_dir, **settings)
