"""A heartbeat's figures of the requests that a worker holds, counted as they come, change and leave."""

from __future__ import annotations

from spotwise.simulator.world.held_request import HeldRequest, HeldStage


class HeldCounts:
    """Counts over requests by their stages; a request is removed before its stage changes, and added again after it.

    Attributes:
        pending_prompt_tokens: tokens of prompts that are not computed.
        remaining_tokens: tokens that requests which decode here may make at most.
        entry_blocks: blocks that waiting prompts need.
        prompts_in_place, prompts_to_hand_off: as in `WorkerLoad`, like the others.
    """

    def __init__(self) -> None:
        self.pending_prompt_tokens = self.remaining_tokens = self.entry_blocks = 0
        self.waiting = self.waiting_for_kv = self.migrating = 0
        self.prompts_in_place = self.prompts_to_hand_off = 0

    def add(self, held: HeldRequest) -> None:
        """Count a request in its stage."""
        self._change(held, 1)
        if held.stage is HeldStage.DECODING:
            self.remaining_tokens += held.may_make - held.made_before

    def remove(self, held: HeldRequest, made: int = 0) -> None:
        """Count a request no more; a decode has `made` tokens since it was added."""
        self._change(held, -1)
        if held.stage is HeldStage.DECODING:
            self.remaining_tokens -= held.may_make - held.made_before - made

    def _change(self, held: HeldRequest, by: int) -> None:
        stage = held.stage
        if stage is HeldStage.RESERVED:
            self.waiting_for_kv += by
            self.remaining_tokens += by * held.new_tokens
        elif stage is HeldStage.LEAVING:
            self.migrating += by
            self.prompts_to_hand_off += by
        elif stage is not HeldStage.DECODING:
            self.pending_prompt_tokens += by * held.prompt_tokens
            if stage is HeldStage.WAITING:
                self.waiting += by
                self.entry_blocks += by * held.blocks
            if held.target is None:
                self.prompts_in_place += by
                self.remaining_tokens += by * held.new_tokens
            else:
                self.prompts_to_hand_off += by
