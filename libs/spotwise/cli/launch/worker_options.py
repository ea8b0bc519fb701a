"""Options of workers: `--parallel D,P,M`, and values that a worker's own settings check."""

from __future__ import annotations

from dataclasses import dataclass

import typer
from pydantic import ValidationError

from spotwise.cli.errors import OptionError
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.worker.scheduling.policies import served_policies
from spotwise.worker.settings import WorkerSettings


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


def policy_name(text: str) -> str:
    """Return `text` if it names a scheduling policy of live workers; raises `BadParameter` otherwise."""
    if text not in served_policies():
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, served_policies()))}.")
    return text


def require_worker_id(text: str, option: str) -> None:
    """Check that `text` is a valid worker id; raises `OptionError`, naming `option`, where it is not."""
    try:
        WorkerSettings.__pydantic_validator__.validate_assignment(WorkerSettings.model_construct(), "service_id", text)
    except ValidationError:
        raise OptionError(f"{option} {text!r} is no id; use letters, digits, '-' and '_'") from None
