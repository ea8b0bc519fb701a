"""How long a batch takes on a configuration, and how many requests a second that makes.

Law: l_exe(S_out | S_in) = t(S_in) + S_out x t(1): a batch computes its prompts in one go and then one token of each sequence
at a time (SpotServe, section 2.1). A pipeline works on one batch, from its prompts to its last token, before it takes the
next; D of them give phi = D x B / l_exe (section 4.1). With phases apart (Splitwise) the pipelines for prompts give
D_prompt x B / t(S_in), those that decode D_token x B / (S_out x t(1)), and phi is the lesser of the two: nobody is done
before both are.

Invariants: seconds depend on P, M and B, not on how many pipelines there are; `execution_s` is `prompt_s` and as many
`step_s` as tokens, and with phases apart what of the hand-over between pipelines is waited for; throughput grows in proportion
to pipelines.
"""

from __future__ import annotations

from typing import Protocol

from spotwise.core.parallel.config import ParallelConfig


class ExecutionCost(Protocol):
    """Knows how long a full batch takes on one pipeline of a configuration.

    Every answer is infinite where it has no numbers for such a configuration: that one is not to be chosen.
    """

    def prompt_s(self, config: ParallelConfig, input_tokens: int) -> float:
        """Return the seconds of a full batch's prompts, with what a batch takes once."""

    def step_s(self, config: ParallelConfig) -> float:
        """Return the seconds of one token of each sequence of a full batch."""

    def execution_s(self, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
        """Return the seconds of a full batch from its start to its last token: l_exe."""


def throughput(cost: ExecutionCost, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
    """Return the requests a second that a configuration serves at most: phi.

    Raises:
        ValueError: a request has no tokens to compute or to decode.
    """
    if min(input_tokens, output_tokens) < 1:
        raise ValueError(f"a request has at least 1 token in and 1 out, not {input_tokens} and {output_tokens}")
    batch = config.max_batch
    if not config.is_split:
        return config.data * batch / cost.execution_s(config, input_tokens, output_tokens)
    prompts_per_s = config.prompt_data * batch / cost.prompt_s(config, input_tokens)
    return min(prompts_per_s, config.data * batch / (output_tokens * cost.step_s(config)))
