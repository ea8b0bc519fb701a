"""Execution time of a batch on a configuration, and the throughput that follows.

Law: l_exe(S_out | S_in) = t(S_in) + S_out x t(1): the prompts in one pass, then one token of each sequence at a time
(SpotServe, section 2.1). D pipelines, each with one batch at a time, give phi = D x B / l_exe (section 4.1).
With phases split (Splitwise), phi is the lesser of D_prompt x B / t(S_in) and D_token x B / (S_out x t(1)).
"""

from __future__ import annotations

from typing import Protocol

from spotwise.core.parallel.config import ParallelConfig


class ExecutionCost(Protocol):
    """Seconds of a full batch on one pipeline of a configuration; infinite without measurements, so that it is not chosen."""

    def prompt_s(self, config: ParallelConfig, input_tokens: int) -> float:
        """Return the seconds of a full batch's prompts, one-time costs of the batch included."""

    def step_s(self, config: ParallelConfig) -> float:
        """Return the seconds of one token of each sequence of a full batch."""

    def execution_s(self, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
        """Return l_exe, the seconds of a full batch from its start to its last token, an awaited KV transfer included."""


def throughput(cost: ExecutionCost, config: ParallelConfig, input_tokens: int, output_tokens: int) -> float:
    """Return phi, the most requests a second that a configuration serves.
    A request without tokens to compute or to decode raises `ValueError`.
    """
    if min(input_tokens, output_tokens) < 1:
        raise ValueError(f"a request has at least 1 token in and 1 out, not {input_tokens} and {output_tokens}")
    batch = config.max_batch
    if not config.is_split:
        return config.data * batch / cost.execution_s(config, input_tokens, output_tokens)
    prompts_per_s = config.prompt_data * batch / cost.prompt_s(config, input_tokens)
    return min(prompts_per_s, config.data * batch / (output_tokens * cost.step_s(config)))
