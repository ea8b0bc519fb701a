"""Settings of a worker, beside those of every service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from spotwise.core.messages import Pool
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
    kv_cache_bytes: int = Field(1 << 30, gt=0)
    kv_block_size: int = Field(16, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    max_prompt_tokens: int = Field(2048, ge=1, description="prompt tokens of one batch at most")
    pool: Pool | None = Field(None, description="prompt, token or mixed; by default the one the service is named after")
    transfer_port: int = Field(0, ge=0, le=65535, description="port of the KV listener; 0 takes a free one")
    push_timeout_s: float = Field(10.0, gt=0, description="a KV hand-off that takes longer has failed")

    @property
    def core_ids(self) -> frozenset[int]:
        """Cores to stay on; empty for no preference."""
        return frozenset(int(core) for core in self.cores.split(",") if core)
