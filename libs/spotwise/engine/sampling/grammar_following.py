"""Compiles a grammar and follows it token by token: the gateway checks a grammar with the code that an engine follows it with.

Errors have messages of our own: llguidance's hold its inner state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from spotwise.core.requests.sampling import GRAMMAR_FAILS
from spotwise.engine.sampling.fair_threads import with_deep_stack

#: llguidance's own; what went wrong is said without the text so far.
_LIMITS = LLParserLimits(verbose_errors=False)
#: Of a processor, for one grammar.
MAX_COMPILE_CPU_S = 10.0
#: Of a processor, for all trials of one grammar: as much as an engine could spend on its masks.
MAX_TRIAL_CPU_S = 5.0
#: Tokens of each trial of a grammar. Automata grow while they are used, and meet their limits some way into a text.
_TRIAL_TOKENS = 256

TOO_COMPLEX = "it is too complex: use fewer or smaller repetitions, alternatives and bounds"
DEAD_END = "it leads to a place where no token of this model fits"
TOO_SLOW = f"it takes more than {MAX_COMPILE_CPU_S:g} s to compile: use smaller numbers, fewer alternatives and bounds"
SLOW_TO_FOLLOW = "it takes too long to follow: use fewer rules that begin with one another, and smaller ones"
_NOT_ITS_TOKENS = "the tokens so far do not fit it"

#: What llguidance's errors hold where one of its limits was met.
_LIMITS_MET = ("too many", "too complex", "toocomplex", "too large", "too big", "size limit", "fuel", "items; max is")


class GrammarError(ValueError):
    """A grammar cannot be followed; the message is for the client.

    Attributes:
        why: what is wrong, without the words that all such messages begin with.
        is_dead_end: no token fits here, and others may be elsewhere.
    """

    def __init__(self, why: str, *, is_dead_end: bool = False) -> None:
        super().__init__(f"{GRAMMAR_FAILS}: {why}")
        self.why = why
        self.is_dead_end = is_dead_end


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher at its start.

    Raises:
        GrammarError: it is no grammar, too complex, or takes too long.
    """

    def compile_it() -> tuple[LLMatcher, float]:
        began_s = time.thread_time()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
        return matcher, time.thread_time() - began_s

    # It recurses along chains of rules and references, of which a small grammar has thousands.
    matcher, cpu_s = with_deep_stack(compile_it)
    if matcher.is_error():
        said = _cleaned(matcher.get_error())
        raise GrammarError(TOO_COMPLEX if _meets_limit(said) else said)
    if cpu_s > MAX_COMPILE_CPU_S:
        raise GrammarError(TOO_SLOW)
    return matcher


def check(matcher: LLMatcher) -> None:
    """Raise `GrammarError` where a matcher has lost its way, in a mask or with a token."""
    if not matcher.is_error():
        return
    said = matcher.get_error()
    if _meets_limit(said) or _meets_limit(str(matcher.stop_reason())):
        raise GrammarError(TOO_COMPLEX)
    if "NoExtension" in said:
        raise GrammarError(DEAD_END, is_dead_end=True)
    raise GrammarError(_NOT_ITS_TOKENS)


def consume(matcher: LLMatcher, token_ids: Sequence[int]) -> None:
    """Go on by tokens; raises `GrammarError` where one does not fit."""
    # After its end only further ends are drawn, of sequences that ignore them.
    if token_ids and not matcher.is_stopped():
        matcher.consume_tokens(list(token_ids))
    check(matcher)


def allowed_tokens(matcher: LLMatcher, mask: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    """Return which tokens a computed mask allows, `[vocab_size]`; raises `GrammarError` where there is none."""
    check(matcher)
    bits = np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little").view(np.bool_)
    if not bits.any():
        raise GrammarError(DEAD_END, is_dead_end=True)
    return bits


def trial_problem(tokenizer: LLTokenizer, grammar: str) -> str:
    """Return why a grammar cannot be followed, empty where it can as far as a few texts show.

    Each text takes the first, a middle or the last of the tokens that fit. One that meets a limit is enough to refuse a
    grammar; dead ends may be rare, and all texts must run into one.
    """
    picks: tuple[Callable[[int, int], int], ...] = (
        lambda count, step: count - 1,
        lambda count, step: 0,
        lambda count, step: (count * (2 * step + 1) // 7) % count,
    )
    dead_ends = 0
    try:
        start = compiled(tokenizer, grammar)
        ends_s = time.thread_time() + MAX_TRIAL_CPU_S
        for pick in picks:
            try:
                _try_one(start.deep_copy(), tokenizer, pick, ends_s)
            except GrammarError as error:
                if not error.is_dead_end:
                    raise
                dead_ends += 1
    except GrammarError as error:
        return error.why
    return DEAD_END if dead_ends == len(picks) else ""


def _try_one(matcher: LLMatcher, tokenizer: LLTokenizer, pick: Callable[[int, int], int], ends_s: float) -> None:
    for step in range(_TRIAL_TOKENS):
        if time.thread_time() > ends_s:
            raise GrammarError(SLOW_TO_FOLLOW)
        allowed = allowed_tokens(matcher, np.frombuffer(matcher.compute_bitmask(), np.int32), tokenizer.vocab_size)
        allowed[tokenizer.eos_tokens] = False
        fitting = allowed.nonzero()[0]
        if not len(fitting):
            return
        consume(matcher, (int(fitting[pick(len(fitting), step)]),))


def _meets_limit(said: str) -> bool:
    return any(words in said.lower() for words in _LIMITS_MET)


def _cleaned(said: str) -> str:
    return said.replace("<non-verbose/>", "").strip()
