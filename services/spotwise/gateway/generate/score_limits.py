"""A bound on the log-probabilities of one answer: sequences times tokens times alternatives, known before anything is computed.

Each of the three has a bound of its own, and their product would still fill the memory of a gateway. A request whose own
bounds lead beyond is refused; one that gave no `max_tokens` has as many tokens as the log-probabilities leave room for. All
answers under way share a multiple of the bound, of which a caller has half at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from spotwise.core.access.quotas import UNBOUNDED_OUTPUT_TOKENS
from spotwise.gateway.schema.shared import GenerationRequest
from spotwise.http.body import overloaded
from spotwise.http.errors import bad_request

#: Answers of the largest size that may be under way.
_AT_ONCE = 8
#: Of each answer so many count for nothing: a crowd of large answers shall not keep out ordinary ones.
_FREE = 20_000


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """What an answer has log-probabilities of.

    Attributes:
        prompt_tokens: tokens of each prompt.
        choices: choices of each prompt.
        of_prompt_token: log-probabilities of a prompt's token, those of its alternatives included; 0 without any.
        of_new_token: log-probabilities of a token that the model generates.
    """

    prompt_tokens: Sequence[int]
    choices: int
    of_prompt_token: int
    of_new_token: int

    @classmethod
    def of(
        cls,
        request: GenerationRequest,
        prompt_tokens: Sequence[int],
        choices: int,
        logprobs: int | None,
        *,
        echoes: bool,
        score_only: bool,
    ) -> ScoredAnswer:
        """Return what the answer to a request has.

        Args:
            request: the checked parameters.
            prompt_tokens: tokens of each prompt.
            choices: choices of each prompt.
            logprobs: alternatives of each token of the text; `None` for no log-probabilities.
            echoes: the text begins with the prompt.
            score_only: the model generates nothing.
        """
        of_text = 0 if logprobs is None else 1 + logprobs
        of_prompt = 0 if request.prompt_logprobs is None else 1 + request.prompt_logprobs
        return cls(prompt_tokens, choices, of_prompt + of_text * echoes, 0 if score_only else of_text)

    @property
    def of_prompts(self) -> int:
        """Log-probabilities of all prompts."""
        return self.choices * sum(self.prompt_tokens) * self.of_prompt_token

    def with_new(self, new_tokens: Sequence[int]) -> int:
        """Return all log-probabilities, where the choices of each prompt have so many new tokens."""
        return self.of_prompts + self.choices * sum(new_tokens) * self.of_new_token

    def expected(self, new_tokens: Sequence[int], *, is_open: bool) -> int:
        """Return how many log-probabilities to expect, where the client may have left the number of tokens `is_open`."""
        return self.with_new([min(each, UNBOUNDED_OUTPUT_TOKENS) for each in new_tokens] if is_open else new_tokens)

    def fitted(self, new_tokens: Sequence[int], most: int) -> list[int]:
        """Return how many new tokens the choices of each prompt may have, one at least, for `most` log-probabilities in all."""
        if self.with_new(new_tokens) <= most:
            return list(new_tokens)
        sequences = self.choices * len(self.prompt_tokens)
        room = (most - self.of_prompts) // (sequences * self.of_new_token) if self.of_new_token else 0
        return [min(tokens, max(1, room)) for tokens in new_tokens]

    def require_at_most(
        self, most: int, new_tokens: Sequence[int], request: GenerationRequest, max_tokens: str
    ) -> None:
        """Refuse more than `most` log-probabilities.

        Raises:
            ApiError: 400; `max_tokens` is what the client calls that bound.
        """
        scores = self.with_new(new_tokens)
        if scores <= most:
            return
        lower = ["the number of alternatives"]
        lower += ["'n'"] if self.choices > 1 else []
        lower += ["the number of prompts"] if len(self.prompt_tokens) > 1 else []
        lower += ["the length of the prompt"] if self.of_prompt_token else []
        lower += [f"'{max_tokens}'"] if self.of_new_token else []
        message = (
            f"The answer may have {scores} log-probabilities, alternatives included; this server gives at most {most} in one "
            f"answer. Lower {', '.join(lower[:-1])} or {lower[-1]}."
        )
        param = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
        raise bad_request(message, param, "too_many_logprobs")


class ScoreRoom:
    """The log-probabilities of all answers that are written or sent.

    Args:
        most_of_one: the most log-probabilities of one answer.
    """

    def __init__(self, most_of_one: int) -> None:
        self._most = _AT_ONCE * most_of_one
        self._of_callers = Counter[str]()

    @contextmanager
    def taken(self, scope: str, scores: int) -> Iterator[None]:
        """Have room for an answer of a caller's for the length of a block.

        Raises:
            ApiError: 503, there is none.
        """
        counted = max(0, scores - _FREE)
        if counted and (
            self._of_callers.total() + counted > self._most or 2 * (self._of_callers[scope] + counted) > self._most
        ):
            raise overloaded("The server is writing too many answers with log-probabilities; try again later.")
        self._of_callers[scope] += counted
        try:
            yield
        finally:
            self._of_callers[scope] -= counted
            if not self._of_callers[scope]:
                del self._of_callers[scope]
