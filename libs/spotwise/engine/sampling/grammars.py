"""Masks over the vocabulary for structured output, computed by llguidance from a sequence's grammar.

A matcher follows the output tokens that a sequence knows here. So it is the same wherever the sequence continues: after a swap,
a hand-off, a move or another attempt it is rebuilt from these tokens. Masks are computed in a thread beside the forward pass.
Grammars are compiled in others, before their sequences are added: that takes a millisecond, for the worst grammars seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Rows
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.model.checkpoint import TOKENIZER_FILE
from spotwise.engine.sampling.fair_threads import FairThreads, leave_core
from spotwise.engine.sampling.grammar_following import DEAD_END, GrammarError, allowed_tokens, compiled, consume
from spotwise.engine.sampling.grammar_tokens import grammar_tokenizer

#: Grammars that are kept compiled: requests with the same schema follow one another.
_KEPT_GRAMMARS = 64
_COMPILING_THREADS = 2

#: By row, which tokens are allowed next, or why that is not known; `None`: its sequence has no grammar.
AllowedTokens = list[NDArray[np.bool_] | GrammarError | None]


class _Follower:
    """Follows one sequence, from a matcher at its start: it needs no other, whatever is kept compiled."""

    def __init__(self, start: Future[LLMatcher]) -> None:
        self._start = start
        self._matcher: LLMatcher | None = None
        self._consumed = 0

    def caught_up(self, sequence: EngineSequence) -> LLMatcher:
        """Return a matcher that has consumed the sequence's output tokens; raises `GrammarError` where one does not fit."""
        if self._matcher is None:
            self._matcher = self._start.result().deep_copy()
        output = sequence.tokens[sequence.prompt_length :]
        fresh = output[self._consumed :].tolist()
        self._consumed = len(output)
        consume(self._matcher, fresh)
        return self._matcher


class Grammars:
    """The grammars of an engine's sequences.

    Args:
        model_dir: folder with the model's `tokenizer.json`, which the first grammar reads.
        vocab_size: columns of the logits.
    """

    def __init__(self, model_dir: Path, vocab_size: int) -> None:
        self._file = model_dir / TOKENIZER_FILE
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars", initializer=leave_core)
        self._compiling = FairThreads(_COMPILING_THREADS, "grammar")
        self._matching = LLExecutor()
        self._opening = Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._followers: WeakKeyDictionary[EngineSequence, _Follower] = WeakKeyDictionary()
        self._lock = Lock()

    def compile(self, grammar: str, tenant: str) -> Future[LLMatcher]:
        """Return a matcher at its start, once it is compiled, to be copied; its error is a `GrammarError`.

        Grammars are kept: requests with the same schema follow one another.

        Args:
            grammar: llguidance's own JSON or Lark.
            tenant: tenants take turns.
        """
        with self._lock:
            future = self._compiled.get(grammar)
            if future is None:
                future = self._compiling.submit(tenant, partial(self._compile, grammar))
                self._compiled[grammar] = future
                while len(self._compiled) > _KEPT_GRAMMARS:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return future

    def begin(self, sequences: Rows[EngineSequence]) -> Future[AllowedTokens] | None:
        """Begin to compute what the sequences' grammars allow next, by their tokens, which must not change meanwhile; `None`:
        none has a grammar.
        """
        if not any(sequence.sampling.grammar for sequence in sequences):
            return None
        return self._thread.submit(self._allowed, sequences)

    def follow(self, sequence: EngineSequence, start: Future[LLMatcher]) -> None:
        """Follow a sequence from what `compile` returned, until it is dropped. Iterations with it wait for `start`."""
        self._followers[sequence] = _Follower(start)

    def _allowed(self, sequences: Rows[EngineSequence]) -> AllowedTokens:
        allowed: AllowedTokens = [None] * len(sequences)
        matchers: list[tuple[LLMatcher, int]] = []
        for index, sequence in enumerate(sequences):
            if sequence.sampling.grammar:
                try:
                    matchers.append((self._followers[sequence].caught_up(sequence), index))
                except GrammarError as error:
                    allowed[index] = error
        masks = allocate_token_bitmask(len(sequences), self._vocab_size)
        if matchers:
            fill_next_token_bitmask_par(self._matching, matchers, masks)
        for matcher, index in matchers:
            try:
                bits = allowed_tokens(matcher, masks[index], self._vocab_size)
                self._end_as_asked(bits, sequences[index].stop.stop_token_ids)
                allowed[index] = bits
            except GrammarError as error:
                allowed[index] = error
        return allowed

    def _end_as_asked(self, allowed: NDArray[np.bool_], stop_token_ids: Rows[int]) -> None:
        """Where the grammar may end, let it end by the sequence's own special stop tokens, if it has any."""
        assert self._tokenizer is not None
        ends = [token_id for token_id in stop_token_ids if self._tokenizer.is_special_token(token_id)]
        if ends:
            may_end = bool(allowed[self._tokenizer.eos_token])
            allowed[self._tokenizer.eos_tokens] = False
            allowed[ends] = may_end
            if not allowed.any():
                raise GrammarError(DEAD_END)

    def _compile(self, grammar: str) -> LLMatcher:
        return compiled(self._open(), grammar)

    def _open(self) -> LLTokenizer:
        with self._opening:
            if self._tokenizer is None:
                try:
                    self._tokenizer = grammar_tokenizer(self._file.read_text(encoding="utf-8"), self._vocab_size)
                except Exception as error:  # of a Rust library, whose errors have no common class
                    raise GrammarError(f"this worker has no usable {TOKENIZER_FILE}") from error
            return self._tokenizer
