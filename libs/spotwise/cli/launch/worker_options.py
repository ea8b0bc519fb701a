"""The options of `spotwise up` about workers: `--parallel D,P,M`, and values that a worker's own settings check."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import EngineKind, LaunchOptions, PoolSizes
from spotwise.cli.launch.options import GroupShape, WorkerPools
from spotwise.cli.option_groups import given_flags, one_of
from spotwise.cli.profile_files import read_profile
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.worker.policy import Scheduling
from spotwise.core.worker.scheduling.policies import served_policies
from spotwise.worker.settings import WorkerSettings


class PoolOptions(PoolSizes):
    """The options that say how many workers there are, and of how many processes."""

    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="D,P,M",
            help="D workers of both phases, each of P stages of M shards, instead of the three options above.",
        ),
    ] = None
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --parallel: processes that compute; those that no worker needs at first wait for a re-shape.",
        ),
    ] = None


def planned_pools(given: PoolOptions, *, is_bought: bool, nodes: int = 1) -> WorkerPools:
    """Return the workers of each pool; without any where the planner decides what serves, of devices that are bought.

    Args:
        nodes: NUMA nodes of the machine: where nothing is named, each of several has a worker, half of them of prompts.

    Raises:
        OptionError: options that do not go together.
    """
    named = {name: getattr(given, name) for name in PoolSizes.model_fields if name in given.model_fields_set}
    if is_bought:
        if given.parallel is not None or given.devices is not None or any(named.values()):
            raise OptionError("--fleet and --trace: the planner decides what serves; leave out workers and devices")
        return WorkerPools(prompt_workers=0, token_workers=0)
    if given.parallel is not None:
        if any(named.values()):
            raise OptionError("--parallel says how many workers there are; leave out --prompt-workers and its like")
        return parse_parallel(given.parallel)
    if given.devices is not None:
        raise OptionError("--devices: only workers of --parallel can be re-shaped; add for instance --parallel 1,1,1")
    if not named and nodes > 1:
        return WorkerPools(prompt_workers=nodes // 2, token_workers=nodes - nodes // 2)
    unnamed = 0 if given.mixed_workers else 1  # mixed workers do both phases
    return WorkerPools(**{"prompt_workers": unnamed, "token_workers": unnamed, **named})


def parse_parallel(text: str) -> WorkerPools:
    """Read `D,P,M` (workers of both phases), `D,P,M+D,P,M` (prompt and token pool) or `Dprompt+Dtoken,P,M` (of one shape).

    Raises:
        OptionError: another form, a 0, or a batch size.
    """
    parts = text.replace(" ", "").split("+")
    try:
        if len(parts) == 2 and all(part.count(",") == 2 for part in parts):
            prompt, token = map(ParallelConfig.parse, parts)
            return _split_pools(prompt.data, _shape(prompt), token.data, _shape(token))
        config = ParallelConfig.parse(text)
        if text.count(",") != 2:
            raise ValueError(f"{text!r} names a batch size, which --max-num-seqs of workers is for")
    except ValueError as error:
        raise OptionError(
            f"--parallel: {error}; write for instance 1,2,3 (one worker of 2 stages of 3 shards), or 1,1,3+1,2,1 "
            "(a prompt and a token worker)"
        ) from error
    if config.is_split:
        return _split_pools(config.prompt_data, _shape(config), config.data, _shape(config))
    return WorkerPools(prompt_workers=0, token_workers=0, mixed_workers=config.data, mixed_shape=_shape(config))


def _split_pools(prompts: int, prompt: GroupShape, tokens: int, token: GroupShape) -> WorkerPools:
    return WorkerPools(prompt_workers=prompts, token_workers=tokens, prompt_shape=prompt, token_shape=token)


def _shape(config: ParallelConfig) -> GroupShape:
    return GroupShape(stages=config.pipeline, shards=config.tensor)


def require_engine_options(launch: LaunchOptions, pools: WorkerPools) -> None:
    """Refuse options that the workers' engine or scheduling policy does not have; raises `OptionError`."""
    is_simulated = launch.engine is EngineKind.SIMULATED
    if not is_simulated and (flags := given_flags(launch, ("speed", "simulated_kv"))):
        raise OptionError(f"{', '.join(flags)}: only a simulated mesh has that option; add --engine simulated")
    has_queues = (launch.policy or os.environ.get("SPOTWISE_POLICY")) == Scheduling.MLFQ
    if launch.profile is not None and not has_queues and not is_simulated:
        raise OptionError("--profile: only mlfq and simulated workers use it; add --policy mlfq or --engine simulated")
    if launch.kv_host_bytes is not None and not has_queues and "SPOTWISE_WHEN_FULL" not in os.environ:
        raise OptionError("--kv-host: nothing is swapped; add --policy mlfq")
    if launch.profile is not None:
        costs = read_profile(launch.profile, "--profile")  # before anything starts; the workers read it again
        if is_simulated and costs.link is None and pools.prompt_workers + pools.token_workers:
            raise OptionError(
                f"--profile {launch.profile}: it has no cost of hand-offs; serve with mixed workers alone (--prompt-workers 0 "
                "--token-workers 0 --mixed-workers 2), or record a mesh that hands over with `spotwise profile`"
            )


def policy_option() -> Any:
    """Return the option of the workers' scheduling policy."""
    return typer.Option(
        parser=policy_name,
        metavar=f"<{'|'.join(served_policies())}>",
        help="Scheduling policy; mlfq: no short request waits behind a long one.",
    )


def policy_name(text: str) -> str:
    """Return `text` if it names a scheduling policy of live workers; raises `BadParameter` otherwise."""
    return one_of(text, served_policies())


def require_worker_id(text: str, option: str) -> None:
    """Check that `text` is a valid worker id; raises `OptionError`, naming `option`, where it is not."""
    try:
        WorkerSettings.__pydantic_validator__.validate_assignment(WorkerSettings.model_construct(), "service_id", text)
    except ValidationError:
        raise OptionError(f"{option} {text!r} is no id; use letters, digits, '-' and '_'") from None
