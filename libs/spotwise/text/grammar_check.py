"""Tries a grammar with a model's tokens, by the code of an engine: one that is wrong or too complex reaches no batch."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from llguidance import LLTokenizer

from spotwise.engine.sampling.grammar_following import trial_problem
from spotwise.mesh.process.long_work import begin_long_work
from spotwise.text.grammar_schemas import promises_problem
from spotwise.text.multiples import multiples_problem

#: Verdicts on grammars that are remembered: requests with the same schema follow one another.
_KEPT_VERDICTS = 256


class GrammarCheck:
    """Tries grammars with a model's tokens, on no event loop.

    Args:
        load: the model's tokens, on first use.
    """

    def __init__(self, load: Callable[[], LLTokenizer]) -> None:
        self._load = load
        self._loading, self._remembering = Lock(), Lock()
        self._tokenizer: LLTokenizer | None = None
        #: By the grammar's digest: grammars may be large.
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()

    def problem(self, grammar: str) -> str:
        """Return why a grammar cannot be followed; empty where it can.

        Raises:
            LongWorkError: it is not known, and may not be tried here.
        """
        digest = hashlib.blake2b(grammar.encode(), digest_size=32).digest()
        with self._remembering:
            if (known := self._verdicts.get(digest)) is not None:
                self._verdicts.move_to_end(digest)
                return known
        begin_long_work()
        found = self._problem(grammar)
        with self._remembering:
            self._verdicts[digest] = found
            if len(self._verdicts) > _KEPT_VERDICTS:
                self._verdicts.popitem(last=False)
        return found

    def _problem(self, grammar: str) -> str:
        if problem := multiples_problem(grammar) or promises_problem(grammar):
            return problem
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._load()
        return trial_problem(self._tokenizer, grammar)
