"""Samples tokens for a batch of sequences with different parameters.

Order: what changes logits (`logit_changes.py`), temperature, `min_p`, `top_k`, `top_p`, then one draw by inverse CDF with
`counter_uniform(seed, output_index)`: in vocabulary order where nothing is filtered, else by descending probability, ties by
id. A row's token does not depend on other rows; one whose logits have no finite maximum has none. On a CPU the native kernel
(`native/sampling.h`) does it in one call; the torch code here is its reference.

Prompts are scored in forwards of their own; the last prompt token stays in the iteration's forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.core.requests.sampling import SampledToken, SamplingParams, TokenLogprobs, counter_uniform
from spotwise.engine.forward.iteration import SequenceRow
from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.native.library import DRAW, Kernels
from spotwise.engine.sampling.grammar_following import GrammarError
from spotwise.engine.sampling.grammars import AllowedTokens
from spotwise.engine.sampling.logit_changes import SamplingRow, change_logits

# Most likely tokens to try before the whole vocabulary is sorted.
_TOP_TOKENS = 256
NOT_FINITE = (
    "the model gave numbers that are none (NaN or infinite): its weights are damaged, or too large for this dtype (float16 "
    "overflows where bfloat16 does not)"
)
NOTHING_ALLOWED = "no token may follow: what the request allows leaves none"

#: Tokens of prompts in one forward that scores them, at most: this bounds their logits in memory.
PROMPT_CHUNK_TOKENS = 256


def sample_sequences(
    logits: torch.Tensor,
    sequences: Rows[EngineSequence],
    kernels: Kernels | None,
    allowed: AllowedTokens | None = None,
) -> tuple[SampledToken, ...]:
    """Return the next token of each sequence, with the log-probabilities that it requests.

    Args:
        logits: as in `sample`.
        sequences: one sequence a row.
        kernels: draw the tokens, if given.
        allowed: tokens that each row's grammar allows; `None`: no sequence has one. A grammar that cannot be followed
            is a failure.

    A row whose logits are no numbers, here or in its scored prompt, or whose embedding is none, has a failure as well: the
    argmax of NaN is an index, which would be served as a token.
    """
    masks = allowed or [None] * len(sequences)
    rows = [
        SamplingRow(
            seq.sampling, seq.stop, seq.tokens, seq.prompt_length, None if isinstance(mask, GrammarError) else mask
        )
        for seq, mask in zip(sequences, masks, strict=True)
    ]
    tokens = sample(logits, rows, kernels)
    # What a row's parameters exclude may hide what is no number.
    unsure = [index for index, row in enumerate(rows) if row.changes_logits or tokens[index] is None]
    sound = dict(zip(unsure, have_finite_maximum(logits[unsure]), strict=True)) if unsure else {}
    token_ids = [token or 0 for token in tokens]
    logprobs = _requested_logprobs(logits, [seq.sampling for seq in sequences], token_ids)
    sampled = []
    for index, (sequence, mask) in enumerate(zip(sequences, masks, strict=True)):
        embedding = None if sequence.pooling is None else sequence.pooling.embedding()
        is_sound = sound.get(index, True) and not sequence.is_broken and all(map(math.isfinite, embedding or ()))
        failure = None if is_sound else NOT_FINITE
        if failure is None and isinstance(mask, GrammarError):
            failure = str(mask)
        elif failure is None and tokens[index] is None:
            failure = NOTHING_ALLOWED
        scores = None if sequence.prompt_logprobs is None else tuple(sequence.prompt_logprobs)
        name, token = sequence.sequence_id, token_ids[index]
        sampled.append(SampledToken(name, token, logprobs[index], scores, failure, embedding, not is_sound))
    return tuple(sampled)


def have_finite_maximum(logits: torch.Tensor) -> list[bool]:
    """Tell of each row of `[rows, vocab_size]` whether its largest is a number, and none is NaN."""
    finite: list[bool] = logits.amax(-1).isfinite().tolist()
    return finite


def sample(logits: torch.Tensor, rows: Rows[SamplingRow], kernels: Kernels | None = None) -> list[int | None]:
    """Return one token for each row of `logits` `[rows, vocab_size]`, drawn by `kernels` if given; `None` where there is none
    to draw, because a logit is NaN or the largest is infinite.
    """
    adjusted = logits.float()
    if any(row.changes_logits for row in rows):
        adjusted = adjusted.clone() if adjusted is logits else adjusted
        for row_logits, row in zip(adjusted, rows, strict=True):
            if row.changes_logits:
                change_logits(row_logits, row)
    if kernels is not None:
        return _pick_natively(adjusted, rows, kernels)
    finite = have_finite_maximum(adjusted)
    filtered = [index for index, row in enumerate(rows) if row.filters and not row.takes_likeliest]
    if len(filtered) == len(rows):
        return _sound(_draw(adjusted, rows), finite)
    tokens = _pick(adjusted, rows)
    if filtered:
        drawn = _draw(adjusted[filtered], [rows[index] for index in filtered])
        for index, token in zip(filtered, drawn, strict=True):
            tokens[index] = token
    return _sound(tokens, finite)


def _sound(tokens: Rows[int], finite: Rows[bool]) -> list[int | None]:
    return [token if is_finite else None for token, is_finite in zip(tokens, finite, strict=True)]


def _pick(logits: torch.Tensor, rows: Rows[SamplingRow]) -> list[int]:
    """Return each row's most likely token, or draw from the whole vocabulary, as its parameters require."""
    tokens = _token_list(logits.argmax(-1))
    for index, row in enumerate(rows):
        if not row.takes_likeliest:
            exact = logits[index].double()
            cumulative = ((exact - exact.max()) / row.sampling.temperature).exp().cumsum(0)
            wanted = cumulative[-1] * counter_uniform(row.sampling.seed, row.output_index)
            tokens[index] = int(torch.searchsorted(cumulative, wanted, right=True))
    return tokens


def _pick_natively(logits: torch.Tensor, rows: Rows[SamplingRow], kernels: Kernels) -> list[int | None]:
    """Do the work of `_pick` and `_draw` in one native call for all rows."""
    count, vocab_size = logits.shape
    logits = logits.contiguous()
    draws = np.array(
        [
            (
                0.0 if row.takes_likeliest else row.sampling.temperature,
                row.sampling.top_p,
                row.sampling.min_p,
                counter_uniform(row.sampling.seed, row.output_index),
                row.sampling.top_k or 0,
            )
            for row in rows
        ],
        dtype=DRAW,
    )
    tokens = np.empty(count, dtype=np.int64)
    kernels.pick(logits.data_ptr(), count, vocab_size, draws.ctypes.data, tokens.ctypes.data)
    return [None if token < 0 else token for token in tokens.tolist()]


def token_logprobs(logits: torch.Tensor, token_ids: Rows[int], num_top: Rows[int]) -> list[TokenLogprobs]:
    """Return log-probabilities of the model's own distribution.

    Args:
        logits: `[rows, vocab_size]`, as the model returned them.
        token_ids: token to score, by row.
        num_top: number of most likely tokens to report, by row.
    """
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
    most = min(max(num_top, default=0), logits.shape[-1])
    top_values, top_ids = (part.tolist() for part in logprobs.topk(most, dim=-1))
    return [
        TokenLogprobs(logprob, tuple(ids[:count]), tuple(values[:count]))
        for logprob, ids, values, count in zip(chosen, top_ids, top_values, num_top, strict=True)
    ]


def _requested_logprobs(
    logits: torch.Tensor, sampling: Rows[SamplingParams], token_ids: Rows[int]
) -> list[TokenLogprobs | None]:
    """Return log-probabilities for the rows whose parameters request them."""
    found: list[TokenLogprobs | None] = [None] * len(sampling)
    requesting = [index for index, parameters in enumerate(sampling) if parameters.logprobs is not None]
    if requesting:
        num_top = [sampling[index].logprobs or 0 for index in requesting]
        computed = token_logprobs(logits[requesting], [token_ids[index] for index in requesting], num_top)
        for index, logprobs in zip(requesting, computed, strict=True):
            found[index] = logprobs
    return found


def _draw(logits: torch.Tensor, rows: Rows[SamplingRow]) -> list[int]:
    """Draw a token for each row of the adjusted `logits`."""
    temperatures = torch.tensor([row.sampling.temperature for row in rows], dtype=torch.float64)
    uniforms = np.array([counter_uniform(row.sampling.seed, row.output_index) for row in rows])
    vocab_size = logits.shape[-1]
    top_logits, top_ids = _likeliest(logits, min(_TOP_TOKENS, vocab_size))
    # Weights are relative to the most likely token's, so that no temperature overflows.
    distances = (logits.double() - top_logits[:, :1]) / temperatures.to(logits.device).unsqueeze(1)
    totals = distances.exp().sum(-1).cpu().numpy()
    choices = _choose(_weights(top_logits, temperatures), totals, rows, uniforms, vocab_size)
    chosen = torch.from_numpy(choices.clip(min=0)).to(top_ids.device).unsqueeze(1)
    tokens = top_ids.gather(1, chosen).squeeze(1).tolist()
    if top_ids.shape[1] < vocab_size:  # tokens as likely as the last one may be missing here
        choices[(top_logits.gather(1, chosen) == top_logits[:, -1:]).squeeze(1).cpu().numpy()] = -1
    for index in np.flatnonzero(choices < 0).tolist():  # the most likely tokens did not decide
        sorted_logits, sorted_ids = logits[index].sort(descending=True, stable=True)
        weights = _weights(sorted_logits.unsqueeze(0), temperatures[index : index + 1])
        choice = _choose(weights, totals[index : index + 1], [rows[index]], uniforms[index : index + 1], vocab_size)
        tokens[index] = int(sorted_ids[choice[0]])
    return tokens


def _likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest logits of each row and their ids, descending; equal ones in the order of their ids."""
    ids = logits.topk(count, dim=-1).indices.sort(-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _weights(sorted_logits: torch.Tensor, temperatures: torch.Tensor) -> NDArray[np.float64]:
    """Return unnormalized probabilities `[rows, tokens]`, relative to the first of each row."""
    exact = sorted_logits.double().cpu()
    weights: NDArray[np.float64] = ((exact - exact[:, :1]) / temperatures.unsqueeze(1)).exp().numpy()
    return weights


def _choose(
    weights: NDArray[np.float64],
    totals: NDArray[np.float64],
    rows: Rows[SamplingRow],
    uniforms: NDArray[np.float64],
    vocab_size: int,
) -> NDArray[np.int64]:
    """Filter and draw by inverse CDF.

    Args:
        weights: `[rows, tokens]` descending, of the most likely tokens or of all.
        totals: `[rows]` sums of weights over the whole vocabulary.
        rows: the sequences.
        uniforms: `[rows]` in [0, 1).
        vocab_size: tokens in the vocabulary.

    Returns:
        `[rows]` index of the token in sorted order; negative where these tokens do not decide.
    """
    num_tokens = weights.shape[1]
    complete = num_tokens == vocab_size
    cumulative = weights.cumsum(axis=1)
    min_p = np.array([row.sampling.min_p for row in rows])
    least = np.maximum(min_p, np.nextafter(0.0, 1.0))  # tokens of weight zero cannot be drawn
    top_k = np.array([min(row.sampling.top_k or vocab_size, vocab_size) for row in rows])
    top_p = np.array([row.sampling.top_p for row in rows])
    kept = np.minimum((weights >= least[:, None]).sum(axis=1), np.minimum(top_k, num_tokens))
    # The mass that min_p and top_k keep is known if their cut lies among these tokens, or if they exclude nothing.
    ends_here = (kept < num_tokens) | (top_k == num_tokens) | complete
    leaves_all = (min_p == 0.0) & (top_k == vocab_size)
    mass = np.where(ends_here, _at(cumulative, kept - 1), totals)
    # The token that crosses top_p is kept.
    nucleus = (cumulative < (top_p * mass)[:, None]).sum(axis=1) + 1
    narrows = (top_p < 1.0) & (nucleus <= kept)
    kept = np.where(narrows, nucleus, kept)
    mass = np.where(narrows, _at(cumulative, kept - 1), mass)
    choice = (cumulative <= (uniforms * mass)[:, None]).sum(axis=1)
    # The mass of a nucleus that reaches beyond these tokens is unknown, too.
    decided = ends_here | (leaves_all & np.where(top_p < 1.0, narrows, choice < num_tokens))
    return np.where(decided, np.minimum(choice, kept - 1), np.int64(-1))


def _at(cumulative: NDArray[np.float64], index: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.take_along_axis(cumulative, index[:, None], axis=1)[:, 0]


def _token_list(token_ids: torch.Tensor) -> list[int]:
    tokens: list[int] = token_ids.tolist()
    return tokens


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
