"""Changes a sequence's logits before its token is drawn: logit bias, the tokens that its request and its grammar allow,
the stop-token mask of `min_new_tokens`, bad words, then repetition, frequency and presence penalties.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """Sampling input of one sequence.

    Attributes:
        sampling: its parameters.
        stop: its stop tokens, for `min_new_tokens`.
        tokens: prompt and output so far.
        prompt_length: prompt tokens among them.
        allowed: `[vocab_size]`, which tokens its grammar allows next; `None`: it has none.
    """

    sampling: SamplingParams
    stop: StopCriteria
    tokens: NDArray[np.int64]
    prompt_length: int
    allowed: NDArray[np.bool_] | None = None

    @property
    def output_index(self) -> int:
        """Index of the output token to draw."""
        return len(self.tokens) - self.prompt_length

    @property
    def takes_likeliest(self) -> bool:
        """Whether the most likely token is taken without a random draw."""
        return self.sampling.is_greedy or self.sampling.top_k == 1

    @property
    def filters(self) -> bool:
        """Whether `top_p`, `min_p` or `top_k` may exclude tokens from the draw."""
        sampling = self.sampling
        return sampling.top_p < 1.0 or sampling.min_p > 0.0 or sampling.top_k is not None

    @property
    def masks_stop_tokens(self) -> bool:
        """Whether `min_new_tokens` still forbids the stop tokens."""
        return self.output_index < self.stop.min_new_tokens and bool(self.stop.stop_token_ids)

    @property
    def changes_logits(self) -> bool:
        """Whether the model's logits are adjusted before sampling."""
        sampling = self.sampling
        restricts = sampling.allowed_token_ids or sampling.bad_words or self.masks_stop_tokens
        return sampling.has_penalties or self.allowed is not None or bool(sampling.logit_bias or restricts)

    def forbidden_ids(self) -> list[int]:
        """Return the tokens that would end a bad word."""
        output = self.tokens[self.prompt_length :]
        longest = max(map(len, self.sampling.bad_words), default=0)
        recent = tuple(output[max(0, len(output) - longest) :].tolist())
        return [word[-1] for word in self.sampling.bad_words if word and _ends_with(recent, word[:-1])]


def change_logits(logits: torch.Tensor, row: SamplingRow) -> None:
    """Apply to one row `[vocab_size]` in place what its parameters and its tokens so far require."""
    sampling = row.sampling
    if sampling.logit_bias:
        ids, biases = zip(*sampling.logit_bias, strict=True)
        logits.index_add_(0, _ids(ids, logits), torch.tensor(biases, dtype=logits.dtype, device=logits.device))
    _mask(logits, row)
    if sampling.repetition_penalty != 1.0:
        seen = _ids(np.unique(row.tokens), logits)
        values = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if row.output_index and (sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0):
        used, counts = np.unique(row.tokens[row.prompt_length :], return_counts=True)
        amounts = counts.astype(np.float32) * sampling.frequency_penalty + sampling.presence_penalty
        logits[_ids(used, logits)] -= torch.from_numpy(amounts).to(logits)


def _ends_with(tokens: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return len(end) <= len(tokens) and tokens[len(tokens) - len(end) :] == end


def _mask(logits: torch.Tensor, row: SamplingRow) -> None:
    if row.sampling.allowed_token_ids:
        allowed = _ids(row.sampling.allowed_token_ids, logits)
        values = logits[allowed]
        logits.fill_(-torch.inf)
        logits[allowed] = values
    if row.allowed is not None:
        logits.masked_fill_(torch.from_numpy(~row.allowed).to(logits.device), -torch.inf)
    if row.masks_stop_tokens:
        _forbid(logits, row.stop.stop_token_ids)
    if forbidden := row.forbidden_ids():
        _forbid(logits, forbidden)


def _forbid(logits: torch.Tensor, token_ids: Rows[int]) -> None:
    """Mask tokens, unless no other is left: what is to follow comes before what is to be avoided."""
    ids = _ids(token_ids, logits)
    values = logits[ids]
    logits[ids] = -torch.inf
    if not torch.isfinite(logits.max()):
        logits[ids] = values


def _ids(ids: Rows[int] | NDArray[np.int64], like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(ids, dtype=torch.int64, device=like.device)
