"""Settings of a worker, beside those of every service."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from spotwise.core.messages import Pool
from spotwise.mesh.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """One worker: its model, its memory, its place on the machine."""

    model_dir: Path = Field(description="Hugging Face folder of the model")
    model_name: str = Field("", description="name that clients ask for; the folder's name where empty")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    threads: int | None = Field(None, ge=1, description="compute threads; the library's choice where unset")
    cores: str = Field("", pattern=r"^(\d+(,\d+)*)?$", description="CPU cores to stay on, e.g. 0,1")
    kv_cache_bytes: int = Field(1 << 30, gt=0)
    kv_block_size: int = Field(16, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    max_prompt_tokens: int = Field(2048, ge=1, description="prompt tokens of one batch at most")
    pool: Pool | None = Field(None, description="home pool; by default the one the service is named after")
    transfer_port: int = Field(0, ge=0, le=65535, description="port of the KV listener; 0 takes a free one")
    push_timeout_s: float = Field(10.0, gt=0, description="a KV hand-off that takes longer has failed")

    @field_validator("model_dir")
    @classmethod
    def _is_model(cls, model_dir: Path) -> Path:
        if not (model_dir / "config.json").is_file():
            raise ValueError(f"{model_dir} is not a model folder: it has no config.json")
        return model_dir

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        return self.model_name or self.model_dir.name

    @property
    def core_ids(self) -> frozenset[int]:
        """Cores to stay on; empty for no preference."""
        return frozenset(int(core) for core in self.cores.split(",") if core)
