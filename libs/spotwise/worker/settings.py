"""Settings of a worker, beside those of every service."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from spotwise.core.batching import BatchLimits
from spotwise.core.messages import Pool
from spotwise.core.worker.policy import Batching, Reserve, WorkerPolicy
from spotwise.core.worker.push_policy import KvPush
from spotwise.mesh.settings import ModelServiceSettings


class WorkerSettings(ModelServiceSettings):
    """One worker: its model, its memory, its place on the machine."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    threads: int | None = Field(None, ge=1, description="compute threads; the library's choice where unset")
    cores: str = Field("", pattern=r"^(\d+(,\d+)*)?$", description="CPU cores to stay on, e.g. 0,1")
    niceness: int = Field(
        0, ge=0, le=19, description="how far its computing steps back for others on its cores, as in nice(1)"
    )
    decode_graphs: bool = Field(True, description="decodes are recorded as CUDA graphs and replayed, on a GPU")
    shared_weights: Path | None = Field(
        None, description="folder where a machine's workers keep packed weights once; where unset each has its own copy"
    )
    kv_cache_bytes: int = Field(1 << 30, gt=0)
    kv_block_size: int = Field(16, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    max_prompt_tokens: int = Field(2048, ge=1, description="prompt tokens of one batch at most")
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="tokens of one iteration at most, decodes included; prompts are cut to fit, and run whole where unset",
    )
    reserve: Reserve = Field(
        Reserve.ON_DEMAND,
        description="blocks for tokens to come: on_demand (as they come, with preemption) or max_tokens (all at once)",
    )
    kv_watermark: float = Field(
        0.01, ge=0, lt=1, description="share of the blocks that a newcomer leaves free where others run; with on_demand"
    )
    max_preemptions: int = Field(3, ge=1, description="after so many a sequence comes back with all blocks and stays")
    prompts_first: bool = Field(
        True,
        description="prompts that wait for KV blocks take them from sequences that decode; with on_demand; "
        "false is strictly first come, first served",
    )
    preempt_after_ms: float = Field(
        1000.0, ge=0, description="how long a prompt waits for KV blocks before it takes them"
    )
    prefix_caching: bool = Field(True, description="prompts begin with the KV blocks that others computed already")
    batching: Batching = Field(
        Batching.ITERATION_LEVEL,
        description="iteration_level, or request_level to compare with: a batch runs to its end; needs reserve=max_tokens",
    )
    max_stall_ms: float = Field(
        60.0,
        ge=0,
        description="about how long a prompt may hold up those that decode beside it: it is cut accordingly; 0 for no bound",
    )
    pool: Pool | None = Field(None, description="prompt, token or mixed; by default the one the service is named after")
    transfer_port: int = Field(0, ge=0, le=65535, description="port of the KV listener; 0 takes a free one")
    push_timeout_s: float = Field(
        10.0, gt=0, description="a KV hand-off that takes longer once its prompt is computed has failed"
    )
    kv_push: KvPush = Field(
        KvPush.AUTO,
        description="when a prompt's KV leaves: serial (after its prefill), layerwise (during it), or auto (the cheaper)",
    )

    @model_validator(mode="after")
    def _policy_fits(self) -> Self:
        self.policy()
        return self

    def policy(self, context_parity: float = math.inf) -> WorkerPolicy:
        """Return how the worker batches and gives memory.

        Args:
            context_parity: of the model.

        Raises:
            ValueError: settings contradict one another.
        """
        limits = BatchLimits(self.max_num_seqs, self.max_prompt_tokens, self.max_num_batched_tokens)
        return WorkerPolicy(
            limits,
            self.reserve,
            self.kv_watermark,
            self.max_preemptions,
            self.prefix_caching,
            self.batching,
            self.max_stall_ms / 1000 or None,
            context_parity,
            prompts_first=self.prompts_first,
            preempt_after_s=self.preempt_after_ms / 1000,
            kv_push=self.kv_push,
        )

    @property
    def core_ids(self) -> frozenset[int]:
        """Cores to stay on; empty for no preference."""
        return frozenset(int(core) for core in self.cores.split(",") if core)
