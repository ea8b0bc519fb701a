"""Hashes of a prompt's blocks, its content in a trace. Two prompts begin alike as far as their hashes are equal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """A prompt's blocks, from its first token on.

    Attributes:
        hashes: one a block, each 0 or above; equal hashes are equal blocks behind equal ones. The last block may be a part.
        block_tokens: tokens of a block.
    """

    hashes: tuple[int, ...]
    block_tokens: int

    def token_ids(self, prompt_tokens: int, number: int) -> tuple[int, ...]:
        """Return a prompt whose tokens are above 0 and alike where blocks are; those behind the last block belong to no other
        request's, which has another `number`."""
        ids: list[int] = []
        for block in self.hashes:
            ids.extend([block + 1] * self.block_tokens)
        missing = prompt_tokens - len(ids)
        return tuple(ids[:prompt_tokens]) if missing <= 0 else (*ids, *[-1 - number] * missing)


#: Of a prompt whose content is not known: it has nothing in common with another.
NO_BLOCKS = PromptBlocks((), 1)
