"""Log-probabilities of prompts, in forwards of at most `PROMPT_CHUNK_TOKENS` tokens.

They bound the logits in memory to `PROMPT_CHUNK_TOKENS * vocab_size`. The last prompt token stays in the iteration's forward.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from itertools import islice

import torch

from spotwise.engine.forward.iteration import SequenceRow
from spotwise.engine.sampling.sampler import have_finite_maximum, token_logprobs

PROMPT_CHUNK_TOKENS = 256


def split_prompt_scoring(rows: Rows[SequenceRow]) -> tuple[list[list[SequenceRow]], list[SequenceRow]]:
    """Split the rows into forwards that score prompts, in order, and the rows of the iteration's own forward."""
    forwards: list[list[SequenceRow]] = []
    free_tokens = 0
    remaining: list[SequenceRow] = []
    for row, sequence in rows:
        first, end = row.first_position, row.first_position + row.num_tokens
        scored_end = min(end, sequence.prompt_length - 1) if sequence.prompt_logprobs is not None else first
        while first < scored_end:
            if free_tokens == 0:
                forwards.append([])
                free_tokens = PROMPT_CHUNK_TOKENS
            taken = min(free_tokens, scored_end - first)
            forwards[-1].append((row._replace(first_position=first, num_tokens=taken), sequence))
            first += taken
            free_tokens -= taken
        if first < end:
            remaining.append((row._replace(first_position=first, num_tokens=end - first), sequence))
    return forwards, remaining


def note_prompt_logprobs(logits: torch.Tensor, rows: Rows[SequenceRow]) -> None:
    """Store in each sequence the log-probability of each following token; `logits` are `[tokens of all rows, vocab_size]`."""
    following: list[int] = []
    num_top: list[int] = []
    for row, sequence in rows:
        first = row.first_position + 1
        following += sequence.tokens[first : first + row.num_tokens].tolist()
        num_top += [sequence.sampling.prompt_logprobs or 0] * row.num_tokens
    found = iter(token_logprobs(logits, following, num_top))
    finite = iter(have_finite_maximum(logits))
    for row, sequence in rows:
        if not all(list(islice(finite, row.num_tokens))):
            sequence.is_broken = True
        if sequence.prompt_logprobs is not None:
            first = row.first_position + 1
            sequence.prompt_logprobs[first : first + row.num_tokens] = [next(found) for _ in range(row.num_tokens)]
