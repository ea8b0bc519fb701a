"""Work of a worker that counts in groups, as a role takes it over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.core.worker.sequences.held_work import HeldWork
from spotwise.simulator.world.counted_decodes import CountedDecodes
from spotwise.simulator.world.held_request import HeldRequest, HeldStage
from spotwise.simulator.world.machine_worker import Site


@dataclass(frozen=True, slots=True)
class AggregateWork:
    """All that a worker holds.

    Attributes:
        held: in order of arrival.
        group: group of the decodes among them.
        began_s: start of the iteration that runs; `None` where none does.
        decodes_run: in that iteration; else they pause.
        is_noted: `learned.budget` knows of that iteration.
        last_token_s: time of the last token of the decodes that have run here.
        used_blocks: blocks of all; `peak_blocks`: the most so far.
        learned: what outlasts them; without sequences.
    """

    site: Site
    held: Sequence[HeldRequest]
    group: CountedDecodes
    began_s: float | None
    decodes_run: bool
    is_noted: bool
    last_token_s: float
    used_blocks: int
    peak_blocks: int
    learned: HeldWork

    def blocks_of(self, held: HeldRequest) -> int:
        """Return the blocks that a request has now."""
        if held.stage is HeldStage.WAITING:
            return 0
        return self.group.blocks_of(held)

    def runs(self, held: HeldRequest) -> bool:
        """Whether the running iteration computes tokens of it."""
        decodes = held.stage is HeldStage.DECODING and held.has_joined and self.decodes_run
        return self.began_s is not None and (held.stage is HeldStage.COMPUTED or decodes)
