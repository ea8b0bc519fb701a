"""The workers' reports of their memory, and their summary over a storm; nothing is estimated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotwise.cli.bench.report import ReportRow, Target
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.status_table import MemberStatus

_EVERYTHING = Target(at_least=1.0)
_WITHIN = Target(at_most=1.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One worker's report at one moment; `resident_bytes` is its process's memory."""

    worker_id: str
    kv_blocks_total: int
    kv_blocks_free: int
    sequences: int
    resident_bytes: int

    @property
    def kv_blocks_used(self) -> int:
        """Blocks in use or reserved."""
        return self.kv_blocks_total - self.kv_blocks_free


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """One worker through a storm.

    Attributes:
        kv_blocks_total: its budget, before the storm.
        kv_blocks_peak: most blocks used in any sample.
        kv_blocks_free_after: after the storm.
        resident_before, resident_peak, resident_after: bytes.
        samples: their number during the storm.
    """

    worker_id: str
    kv_blocks_total: int
    kv_blocks_peak: int
    kv_blocks_free_after: int
    resident_before: int
    resident_peak: int
    resident_after: int
    samples: int


def read_samples(members: Iterable[MemberStatus]) -> list[Sample]:
    """The workers that answered, by id."""
    samples = []
    for status in members:
        load = status.member_now.load
        if status.engine is None or load is None:
            continue
        counted = load.waiting + load.waiting_for_kv + load.running + load.preempted + load.migrating
        samples.append(
            Sample(
                status.member.id,
                load.kv_blocks_total,
                load.kv_blocks_total - load.kv_blocks_used,  # what could be swapped is not free
                max(counted, status.engine.engine_sequences),
                status.engine.resident_bytes,
            )
        )
    return sorted(samples, key=lambda sample: sample.worker_id)


def held_by(samples: Iterable[Sample]) -> list[str]:
    """The ids of workers that still hold a block or a sequence."""
    return [sample.worker_id for sample in samples if sample.kv_blocks_used or sample.sequences]


def summarize(before: Sequence[Sample], during: Sequence[Sample], after: Sequence[Sample]) -> list[WorkerMemory]:
    """Summarize each worker of before the storm; raises `CommandError` where there was none, or one was lost."""
    if not before:
        raise CommandError("no worker of the mesh says how it does; look at it with `spotwise status`")
    at_end = {sample.worker_id: sample for sample in after}
    workers = []
    for first in before:
        last = at_end.get(first.worker_id)
        if last is None:
            raise CommandError(f"{first.worker_id} was lost in the storm; see its log")
        own = [sample for sample in during if sample.worker_id == first.worker_id]
        workers.append(
            WorkerMemory(
                first.worker_id,
                first.kv_blocks_total,
                max(sample.kv_blocks_used for sample in (first, *own, last)),
                last.kv_blocks_free,
                first.resident_bytes,
                max(sample.resident_bytes for sample in (first, *own, last)),
                last.resident_bytes,
                len(own),
            )
        )
    return workers


def memory_rows(workers: Iterable[WorkerMemory]) -> list[ReportRow]:
    """The report's rows: KV against its budget, and resident memory."""
    rows = []
    for worker in workers:
        total = worker.kv_blocks_total
        rows += [
            ReportRow(f"{worker.worker_id}: KV blocks used at the peak, of all", worker.kv_blocks_peak, total, _WITHIN),
            ReportRow(
                f"{worker.worker_id}: KV blocks free at the end, of all",
                worker.kv_blocks_free_after,
                total,
                _EVERYTHING,
            ),
            ReportRow(f"{worker.worker_id}: resident before, MiB", worker.resident_before / 2**20),
            ReportRow(f"{worker.worker_id}: resident at the peak, MiB", worker.resident_peak / 2**20),
            ReportRow(f"{worker.worker_id}: resident after, MiB", worker.resident_after / 2**20),
        ]
    return rows
