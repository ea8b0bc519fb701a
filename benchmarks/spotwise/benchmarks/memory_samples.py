"""What workers say of their memory, and what a storm's samples come to.

Law: nothing is estimated; every figure was reported by the worker itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotwise.cli.bench.report import ReportRow, Target
from spotwise.cli.errors import CommandError
from spotwise.cli.status import MemberStatus

_EVERYTHING = Target(at_least=1.0)
_WITHIN = Target(at_most=1.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One worker at one moment.

    Attributes:
        worker_id: whose word it is.
        kv_blocks_total, kv_blocks_free: its budget, and what is left of it.
        sequences: that it holds in any state.
        resident_bytes: memory of its process.
    """

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
        worker_id: its id.
        kv_blocks_total: its budget, before the storm.
        kv_blocks_peak: most blocks used in any sample.
        kv_blocks_free_after: when the storm was over.
        resident_before, resident_peak, resident_after: bytes.
        samples: how often it was asked during the storm.
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
    """The workers among the members, those that answered, by id."""
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
    """The workers that still hold a block or a sequence."""
    return [sample.worker_id for sample in samples if sample.kv_blocks_used or sample.sequences]


def summarize(before: Sequence[Sample], during: Sequence[Sample], after: Sequence[Sample]) -> list[WorkerMemory]:
    """Each worker that was there before the storm.

    Raises:
        CommandError: there was none, or one did not last.
    """
    if not before:
        raise CommandError("no worker of the mesh says how it does; look at it with `spotwise status`")
    at_end = {sample.worker_id: sample for sample in after}
    workers = []
    for first in before:
        last = at_end.get(first.worker_id)
        if last is None:
            raise CommandError(f"{first.worker_id} was lost in the storm; its log says why")
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
    """The rows of a report: KV against its budget, resident memory as it was."""
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
