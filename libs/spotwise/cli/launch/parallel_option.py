"""`--parallel D,P,M`: how many workers, and of how many processes each."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.cli.errors import OptionError
from spotwise.core.parallel.config import ParallelConfig


@dataclass(frozen=True, slots=True)
class PoolShapes:
    """Configurations by pool; `None`: the pool has no workers."""

    prompt: ParallelConfig | None = None
    token: ParallelConfig | None = None
    mixed: ParallelConfig | None = None


def parse_parallel(text: str) -> PoolShapes:
    """Read `D,P,M` (workers of both phases), `D,P,M+D,P,M` (prompt and token pool) or `Dprompt+Dtoken,P,M` (of one shape).

    Raises:
        OptionError: another form, a 0, or a batch size.
    """
    parts = text.replace(" ", "").split("+")
    try:
        if len(parts) == 2 and all(part.count(",") == 2 for part in parts):
            prompt, token = map(ParallelConfig.parse, parts)
            return PoolShapes(prompt=prompt, token=token)
        config = ParallelConfig.parse(text)
        if text.count(",") != 2:
            raise ValueError(f"{text!r} names a batch size, which --max-num-seqs of workers is for")
    except ValueError as error:
        raise OptionError(
            f"--parallel: {error}; write for instance 1,2,3 (one worker of 2 stages of 3 shards), or 1,1,3+1,2,1 "
            "(a prompt and a token worker)"
        ) from error
    if not config.is_split:
        return PoolShapes(mixed=config)
    shape = (config.pipeline, config.tensor)
    return PoolShapes(prompt=ParallelConfig(config.prompt_data, *shape), token=ParallelConfig(config.data, *shape))
