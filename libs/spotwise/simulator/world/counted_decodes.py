"""The decodes of one worker, which all make a token in each iteration.

A decode's tokens and blocks follow from the clock, which counts iterations, and from its tokens and blocks when it joined.
Growth is counted by the tokens that fill a part of the last block: in each iteration one such class of decodes begins a block.
"""

from __future__ import annotations

from heapq import heappop, heappush

from spotwise.simulator.world.held_request import HeldRequest


class CountedDecodes:
    """Decodes, from the moment at which they can run.

    Attributes:
        size: number of decodes, those included that join with the next run.
        context: tokens that they attend to in their next iteration, all together.
        clock: iterations that have ended.

    Args:
        block_size: tokens of a block; 0 where all blocks are had from the start.
    """

    def __init__(self, block_size: int) -> None:
        self.size = self.context = self.clock = 0
        self._block_size = block_size
        self._running = 0
        self._have_blocks = False  #: those that have joined, for their next iteration
        self._ends: list[tuple[int, int, HeldRequest]] = []  #: a heap of clocks, and who ends then
        self._joining: list[HeldRequest] = []
        self._by_rest = [0] * block_size  #: decodes that have run, by their tokens less the clock, modulo a block's

    def join(self, held: HeldRequest, *, runs: bool) -> None:
        """Add a decode: to what follows the running iteration, where one `runs`."""
        assert held.progress is not None
        held.began_at = self.clock + (runs and self._running > 0)
        left = held.output_tokens - held.progress.output_tokens
        heappush(self._ends, (held.began_at + left, held.number, held))
        self._joining.append(held)
        self.size += 1
        self.context += held.known_tokens

    def growth(self) -> int:
        """Count the blocks that the next run's first iteration needs."""
        size = self._block_size
        if not size:
            return 0
        # where a prompt was computed here, its first token may be the first of a block; one handed off has its block
        entering = [held for held in self._joining if held.known_tokens % size == 1 % size and not held.was_handed]
        return (0 if self._have_blocks else self._by_rest[(1 - self.clock) % size]) + len(entering)

    def begin(self, *, pauses: bool = False) -> list[HeldRequest]:
        """Begin a run with all, or one in which all pause; return those that have joined with it."""
        joining, self._joining = self._joining, []
        for held in joining:
            held.has_joined = True
            if self._block_size:
                self._by_rest[(held.known_tokens - held.began_at) % self._block_size] += 1
        self._running, self._have_blocks = 0 if pauses else self.size, True
        return joining

    def steps_within(self, free_blocks: int) -> int:
        """Return how many iterations these can run, until one ends or lacks a block; the first has its blocks."""
        size, steps = self._block_size, self._ends[0][0] - self.clock
        if not size or self.size * (steps // size + 1) <= free_blocks:
            return steps
        grown = 0
        for step in range(1, steps):
            grown += self._by_rest[(1 - self.clock - step) % size]
            if grown > free_blocks:
                return step
        return steps

    def pass_iterations(self, ended: int, *, begins_another: bool) -> int:
        """Count ended iterations; return the blocks that the iterations behind them took, of which the last begins only where
        said."""
        if not self._running:
            return 0
        grown, size = 0, self._block_size
        self._have_blocks = begins_another
        if size:
            for step in range(1, ended + begins_another):
                grown += self._by_rest[(1 - self.clock - step) % size]
        self.clock += ended
        self.context += ended * self._running
        return grown

    def take_finished(self) -> list[HeldRequest]:
        """Remove those that have all their tokens, in order of arrival, and return them."""
        finished, ends = [], self._ends
        while self._running and ends and ends[0][0] == self.clock:
            held = heappop(ends)[2]
            finished.append(held)
            self.size -= 1
            self.context -= self.known_tokens(held)
            if self._block_size:
                self._by_rest[(held.known_tokens - held.began_at) % self._block_size] -= 1
        return finished

    def known_tokens(self, held: HeldRequest) -> int:
        """Return a decode's tokens, those included whose KV is not computed."""
        return held.known_tokens + self.made_by(held)

    def made_by(self, held: HeldRequest) -> int:
        """Return how many tokens a decode has made since it joined."""
        return max(0, self.clock - held.began_at)

    def blocks_of(self, held: HeldRequest) -> int:
        """Return a decode's blocks."""
        if not self._block_size or not held.has_joined:
            return held.blocks
        tokens = self.known_tokens(held) - (not self._have_blocks)
        return max(held.blocks, -(-tokens // self._block_size))
