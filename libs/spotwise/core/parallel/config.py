"""Parallel configurations: (D, P, M, B), and with phases split (D_prompt, D_token, P, M, B).

Law: D pipelines of P stages of M shards take batches of up to B sequences (SpotServe, section 4.1). With phases split
(Splitwise), `prompt_data` of the pipelines compute prompts only and `data` decode only, with the same P and M.
Pipelines are numbered from 0, those for prompts first. `parse(str(config)) == config`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

_WRITTEN = re.compile(r"(?:(\d+)\+)?(\d+),(\d+),(\d+)(?:,(\d+))?")


class Position(NamedTuple):
    """A place for one device: pipeline d, stage p, shard m, each from 0."""

    pipeline: int
    stage: int
    shard: int


@dataclass(frozen=True, slots=True, order=True)
class ParallelConfig:
    """A configuration.

    Attributes:
        data: D, pipelines that serve both phases; where phases are split, decoding ones.
        pipeline, tensor, max_batch: P, stages of a pipeline; M, shards of a stage; B, sequences in a batch.
        prompt_data: D_prompt, pipelines for prompts only; 0 where phases are together.
    """

    data: int
    pipeline: int
    tensor: int
    max_batch: int = 1
    prompt_data: int = 0

    def __post_init__(self) -> None:
        if min(self.data, self.pipeline, self.tensor, self.max_batch) < 1 or self.prompt_data < 0:
            raise ValueError(f"every part of a configuration must be at least 1: {self}")

    @classmethod
    def parse(cls, written: str) -> ParallelConfig:
        """Read `D,P,M`, `D,P,M,B` or, with phases split, `Dprompt+Dtoken,P,M,B`; another form or a 0 raises `ValueError`."""
        match = _WRITTEN.fullmatch(written.replace(" ", ""))
        if match is None:
            raise ValueError(
                f"{written!r} is no configuration; write D,P,M or D,P,M,B (2,3,4 is 2 pipelines of 3 stages of 4 shards), "
                "with disaggregated phases Dprompt+Dtoken,P,M,B"
            )
        prompt, data, pipeline, tensor, batch = (int(part) if part else None for part in match.groups())
        assert data is not None and pipeline is not None and tensor is not None
        return cls(data, pipeline, tensor, 1 if batch is None else batch, prompt or 0)

    def __str__(self) -> str:
        prompt = f"{self.prompt_data}+" if self.prompt_data else ""
        return f"{prompt}{self.data},{self.pipeline},{self.tensor},{self.max_batch}"

    @property
    def is_split(self) -> bool:
        """Whether phases are split."""
        return self.prompt_data > 0

    @property
    def pipelines(self) -> int:
        """Pipelines of all kinds."""
        return self.prompt_data + self.data

    @property
    def shape(self) -> ParallelConfig:
        """The same pipelines, one of each kind: what stays the same where only their number changes."""
        return replace(self, data=1, prompt_data=int(self.is_split))

    @property
    def pipeline_devices(self) -> int:
        """Devices of one pipeline: P x M."""
        return self.pipeline * self.tensor

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.pipelines * self.pipeline_devices

    def positions(self) -> Iterator[Position]:
        """Yield every position, pipelines first, then stages, then shards."""
        for pipeline in range(self.pipelines):
            for stage in range(self.pipeline):
                for shard in range(self.tensor):
                    yield Position(pipeline, stage, shard)
