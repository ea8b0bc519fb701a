"""Settings of a worker, beside those of every service."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from spotwise.core.batching import BatchLimits
from spotwise.core.messages import Pool
from spotwise.mesh.settings import ModelServiceSettings


class WorkerSettings(ModelServiceSettings):
    """One worker: its model, its memory, its place on the machine."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    threads: int | None = Field(None, ge=1, description="compute threads; the library's choice where unset")
    cores: str = Field("", pattern=r"^(\d+(,\d+)*)?$", description="CPU cores to stay on, e.g. 0,1")
    niceness: int = Field(0, ge=0, le=19, description="how far the worker steps back for others on its cores")
    kv_cache_bytes: int = Field(1 << 30, gt=0)
    kv_block_size: int = Field(16, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    max_prompt_tokens: int = Field(2048, ge=1, description="prompt tokens of one batch at most")
    max_num_batched_tokens: int | None = Field(
        None, ge=1, description="tokens of one iteration at most, prompts are cut to fit; whole prompts where unset"
    )
    pool: Pool | None = Field(None, description="prompt, token or mixed; by default the one the service is named after")
    transfer_port: int = Field(0, ge=0, le=65535, description="port of the KV listener; 0 takes a free one")
    push_timeout_s: float = Field(10.0, gt=0, description="a KV hand-off that takes longer has failed")

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        self.batch_limits()
        return self

    def batch_limits(self) -> BatchLimits:
        """Return the bounds of one iteration.

        Raises:
            ValueError: they contradict one another.
        """
        return BatchLimits(self.max_num_seqs, self.max_prompt_tokens, self.max_num_batched_tokens)

    @property
    def core_ids(self) -> frozenset[int]:
        """Cores to stay on; empty for no preference."""
        return frozenset(int(core) for core in self.cores.split(",") if core)
