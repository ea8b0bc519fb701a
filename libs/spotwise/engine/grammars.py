"""What a grammar allows next, as masks over the vocabulary: structured output by llguidance.

A matcher follows the output tokens that a sequence knows here. So it is the same wherever the sequence goes on: after a swap, a
hand-off, a move or another attempt it is made anew from these tokens. Masks are computed in a thread beside the forward pass;
compiling takes a millisecond, for the worst grammars seconds, in which the batch waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Rows
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from spotwise.engine.sequences import EngineSequence

TOKENIZER_FILE = "tokenizer.json"
#: Grammars that are kept compiled: requests with the same schema follow one another.
_KEPT_GRAMMARS = 64
#: llguidance's own; what went wrong is said without the text so far.
_LIMITS = LLParserLimits(verbose_errors=False)


class GrammarError(Exception):
    """A sequence's grammar cannot be followed: it is none, too complex, or its tokens do not fit it."""


#: By row, which tokens are allowed next, or why that is not known; `None`: its sequence has no grammar.
AllowedTokens = list[NDArray[np.bool_] | GrammarError | None]


class _Follower:
    """Follows one sequence."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self._consumed = 0

    def catch_up(self, sequence: EngineSequence) -> None:
        """Consume the output tokens that are new; raises `GrammarError` where one does not fit."""
        output = sequence.tokens[sequence.prompt_length :]
        fresh = output[self._consumed :].tolist()
        self._consumed = len(output)
        # After its end only further ends are drawn, of sequences that ignore them.
        if fresh and not self.matcher.is_stopped():
            self.matcher.consume_tokens(fresh)
        self.check()

    def check(self) -> None:
        """Raise `GrammarError` where it has lost its way."""
        if self.matcher.is_error():
            raise GrammarError(f"the grammar cannot be followed: {self.matcher.get_error()}")


class Grammars:
    """The grammars of an engine's sequences.

    Args:
        model_dir: folder with the model's `tokenizer.json`, which the first grammar reads.
        vocab_size: of the logits.
    """

    def __init__(self, model_dir: Path, vocab_size: int) -> None:
        self._file = model_dir / TOKENIZER_FILE
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._tokenizer: LLTokenizer | None = None
        self._matching: LLExecutor | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._followers: WeakKeyDictionary[EngineSequence, _Follower] = WeakKeyDictionary()

    def prepare(self, sequence: EngineSequence) -> None:
        """Compile a sequence's grammar, if it has one, before its first mask is needed."""
        if sequence.sampling.grammar:
            self._thread.submit(self._follower, sequence)

    def begin(self, sequences: Rows[EngineSequence]) -> Future[AllowedTokens] | None:
        """Begin to compute what the sequences' grammars allow next, by their tokens, which must not change meanwhile; `None`:
        none has a grammar.
        """
        if not any(sequence.sampling.grammar for sequence in sequences):
            return None
        return self._thread.submit(self._allowed, sequences)

    def _allowed(self, sequences: Rows[EngineSequence]) -> AllowedTokens:
        allowed: AllowedTokens = [None] * len(sequences)
        followers: dict[int, _Follower] = {}
        for index, sequence in enumerate(sequences):
            if sequence.sampling.grammar:
                try:
                    followers[index] = self._follower(sequence)
                    followers[index].catch_up(sequence)
                except GrammarError as error:
                    allowed[index] = error
        masks = allocate_token_bitmask(len(sequences), self._vocab_size)
        matchers = [(follower.matcher, index) for index, follower in followers.items() if allowed[index] is None]
        if matchers:
            assert self._matching is not None
            fill_next_token_bitmask_par(self._matching, matchers, masks)
        for _, index in matchers:
            try:
                followers[index].check()
            except GrammarError as error:
                allowed[index] = error
                continue
            bits = np.unpackbits(masks[index].view(np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)
            self._end_as_asked(bits, sequences[index].stop.stop_token_ids)
            allowed[index] = bits
        return allowed

    def _end_as_asked(self, allowed: NDArray[np.bool_], stop_token_ids: Rows[int]) -> None:
        """Where the grammar may end, let it end by the sequence's own special stop tokens, if it has any."""
        assert self._tokenizer is not None
        ends = [token_id for token_id in stop_token_ids if self._tokenizer.is_special_token(token_id)]
        if ends:
            may_end = bool(allowed[self._tokenizer.eos_token])
            allowed[self._tokenizer.eos_tokens] = False
            allowed[ends] = may_end

    def _follower(self, sequence: EngineSequence) -> _Follower:
        follower = self._followers.get(sequence)
        if follower is None:
            follower = self._followers[sequence] = _Follower(self._matcher(sequence.sampling.grammar))
        return follower

    def _matcher(self, grammar: str) -> LLMatcher:
        """Return a matcher at its start."""
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiled[grammar] = LLMatcher(self._open(), grammar, log_level=0, limits=_LIMITS)
            while len(self._compiled) > _KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        if compiled.is_error():
            raise GrammarError(f"the grammar cannot be compiled: {compiled.get_error()}")
        return compiled.deep_copy()

    def _open(self) -> LLTokenizer:
        if self._tokenizer is None:
            try:
                self._tokenizer = LLTokenizer(str(self._file), n_vocab=self._vocab_size)
            except Exception as error:  # of a Rust library, whose errors have no common class
                raise GrammarError(f"no tokenizer for grammars at {self._file}: {error}") from error
            self._matching = LLExecutor()
        return self._tokenizer
