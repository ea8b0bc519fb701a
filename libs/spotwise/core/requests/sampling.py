"""Sampling parameters, and the sampler's only source of randomness.

Law: the token at output index `i` depends on the logits, the parameters, the tokens so far and `counter_uniform(seed, i)` only.
So the sampler has no state, and any worker that holds the tokens can continue.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from spotwise.core.values import value

#: Temperatures below it count as 0: dividing by them leaves the range of float32, or only the likeliest token.
GREEDY_BELOW = 1e-5
#: How failures begin: of a sequence whose iteration raised an exception, which follows, for logs; of one that cannot go on by
#: its grammar, and of one that has more reported beside a token than a message holds. Of these two the request is at fault.
ENGINE_FAILS = "the engine fails with this request"
GRAMMAR_FAILS = "the grammar of the structured output cannot be followed"
TOO_LARGE = "the log-probabilities or the embedding of one token are too large for a message of the mesh"

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    """Finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def counter_uniform(seed: int, index: int) -> float:
    """Return the uniform number in [0, 1) of output token `index`; the same on every machine."""
    stream = _mix((seed + _GOLDEN) & _MASK)
    bits = _mix((stream + (index + 1) * _GOLDEN) & _MASK)
    return (bits >> 11) / float(1 << 53)


class Pooling(StrEnum):
    """How the hidden states of a prompt, as the model's head reads them, become one embedding."""

    LAST = "last"  #: that of the last token
    MEAN = "mean"  #: the mean of all tokens'


@value
class SamplingParams:
    """Sampling parameters of one sequence, with the OpenAI API's meanings and vLLM's extensions.

    Attributes:
        temperature: below `GREEDY_BELOW` it means greedy, as 0 does.
        top_p: nucleus mass in (0, 1].
        top_k: keep the k likeliest tokens; `None` keeps all.
        min_p: drop tokens less likely than `min_p` times the likeliest, in [0, 1].
        presence_penalty: subtracted once from the logit of every token already in the output; `frequency_penalty`: per use.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
        logit_bias: (token id, bias) pairs added to the logits.
        allowed_token_ids: tokens that may be drawn; none allows all.
        bad_words: sequences of tokens that the output shall not contain; where they would leave no token, they do not count.
        grammar: grammar of the output, as llguidance writes it down; empty allows any.
        logprobs, prompt_logprobs: likeliest alternatives to report per token; `None` reports nothing, 0 the token alone.
        pooling: pooling of the prompt's embedding, which comes with the first token; `None` reports none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str = ""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    pooling: Pooling | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken; no random number is then used."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether tokens so far change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def reads_whole_prompt(self) -> bool:
        """Whether something of every prompt token is reported: none of them may come from a prefix cache."""
        return self.prompt_logprobs is not None or self.pooling is Pooling.MEAN


@value
class TokenLogprobs:
    """Log-probabilities at one position, natural logarithm, of the model's own distribution (before any parameter): the
    actual token's, and those of the alternatives, likeliest first.
    """

    logprob: float
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()

    def first(self, alternatives: int) -> TokenLogprobs:
        """Return these with so many alternatives at most."""
        return TokenLogprobs(self.logprob, self.top_token_ids[:alternatives], self.top_logprobs[:alternatives])


class SampledToken(NamedTuple):
    """An iteration's token for one sequence; a tuple, since one is made for every token. `prompt_logprobs` comes with the first
    token, where requested: one entry a prompt token, `None` for the first; so does the prompt's `embedding`, float32, not
    normalised. With a `failure` the token is none and the sequence cannot continue, here or elsewhere; it might elsewhere where
    this engine `may_be_ill`.
    """

    sequence_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    failure: str | None = None
    embedding: tuple[float, ...] | None = None
    may_be_ill: bool = False
