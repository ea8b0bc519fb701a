"""The change to plan, as the command's options describe it.
Instances are numbered from 0 (`i0`, `i1`, ...): the old ones fill the old configuration in order, joining ones follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.option_groups import OptionGroup
from spotwise.core.migration.deployment import Deployment, Instance, RunningRequest
from spotwise.core.parallel.config import ParallelConfig


class ScenarioOptions(OptionGroup):
    """The options that say which instances there are, and what they compute."""

    model: Annotated[
        str, typer.Option(help="gpt-20b, opt-6.7b, llama-30b, bloom-176b, llama2-70b, or a model's folder.")
    ] = "gpt-20b"
    devices: Annotated[
        str, typer.Option(help="Devices of an instance, 1 to 8; for several 8,4: the last for all others.")
    ] = "4"
    leaving: Annotated[str | None, typer.Option(help="Numbers of instances under notice, like 0,3.")] = None
    grace: Annotated[float, typer.Option(min=0, help="Seconds until these instances end.")] = 30.0
    lost: Annotated[str | None, typer.Option(help="Numbers of instances lost without notice.")] = None
    joining: Annotated[
        int | None, typer.Option(min=0, help="Instances that join; by default as many as are needed.")
    ] = None
    requests: Annotated[
        int | None, typer.Option(min=0, help="Requests that each old pipeline decodes; by default its batch.")
    ] = None
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each request that have KV.")] = 576
    decoded: Annotated[int, typer.Option(min=0, help="Decoded tokens among --tokens.")] = 64

    def require_consistent(self) -> None:
        """Raise `OptionError` where options do not go together."""
        if "grace" in self.model_fields_set and self.leaving is None:
            raise OptionError(
                f"--grace {self.grace:g}: no instance is under notice; say which with --leaving, or leave it out"
            )
        if "decoded" in self.model_fields_set and self.decoded > self.tokens:
            raise OptionError(
                f"--decoded {self.decoded}: a request has {self.tokens} tokens (--tokens), decoded ones among them"
            )

    def requests_of(self, old: ParallelConfig) -> int:
        """Return the requests of each old pipeline; raises `OptionError` where it does not take so many."""
        if self.requests is not None and self.requests > old.max_batch:
            raise OptionError(
                f"--requests {self.requests}: a pipeline of --from {old} takes {old.max_batch}; write D,P,M,B"
            )
        return old.max_batch if self.requests is None else self.requests


@dataclass(frozen=True, slots=True)
class Scenario:
    """A change: ids of instances that join and are lost; `deadline_s` of those under notice, from now, `None` without any."""

    before: Deployment
    config: ParallelConfig
    joining: tuple[str, ...]
    lost: tuple[str, ...]
    deadline_s: float | None


def parse_config(written: str, option: str) -> ParallelConfig:
    """Read a configuration; a malformed one raises `OptionError`."""
    try:
        return ParallelConfig.parse(written)
    except ValueError as error:
        raise OptionError(f"{option}: {error}") from error


def parse_numbers(written: str | None, option: str, below: int) -> list[int]:
    """Read numbers of instances; a malformed, unknown or repeated one raises `OptionError`."""
    if written is None:
        return []
    try:
        numbers = [int(part.strip().removeprefix("i")) for part in written.split(",")]
    except ValueError:
        raise OptionError(f"{option} {written!r}: write numbers of instances, like 0,3") from None
    if unknown := [number for number in numbers if not 0 <= number < below]:
        raise OptionError(
            f"{option} {written!r}: there is no instance {unknown[0]}; they are numbered 0 to {below - 1}"
        )
    if len(set(numbers)) < len(numbers):
        raise OptionError(f"{option} {written!r}: an instance is there twice")
    return sorted(numbers)


def parse_sizes(written: str, option: str) -> list[int]:
    """Read devices of instances, the last number for all further ones; one that is not from 1 to 8 raises `OptionError`."""
    try:
        sizes = [int(part) for part in written.split(",")]
    except ValueError:
        sizes = [0]
    if any(not 1 <= size <= 8 for size in sizes):
        raise OptionError(f"{option} {written!r}: an instance has 1 to 8 devices; write 4, or 8,4,4")
    return sizes


def scenario(old: ParallelConfig, new: ParallelConfig, given: ScenarioOptions) -> Scenario:
    """Return the change that the options describe: of each old pipeline, its first request has decoded `--decoded` tokens, and
    each further one has decoded one less. Raises `OptionError` where a number is wrong, or too few devices stay and join.
    """
    sizes = parse_sizes(given.devices, "--devices")
    old_instances = _instances(0, old.devices, sizes)
    leaving_numbers = parse_numbers(given.leaving, "--leaving", len(old_instances))
    lost_numbers = parse_numbers(given.lost, "--lost", len(old_instances))
    if both := sorted(set(leaving_numbers) & set(lost_numbers)):
        raise OptionError(f"instance {both[0]} cannot be in --leaving and in --lost")
    not_staying = {*leaving_numbers, *lost_numbers}
    stay = sum(instance.devices for number, instance in enumerate(old_instances) if number not in not_staying)
    joining_instances = _joining(len(old_instances), new.devices - stay, sizes, given.joining)
    if (available := stay + sum(instance.devices for instance in joining_instances)) < new.devices:
        raise OptionError(
            f"--to {new} needs {new.devices} devices, and {available} stay or come; "
            "raise --joining, or leave it out for as many instances as are needed"
        )
    running = _running(old, given.requests_of(old), given.tokens, min(given.decoded, given.tokens))
    whole = Deployment.in_order(old, tuple(old_instances), running)
    remaining = tuple(
        Instance(instance.id, instance.devices, given.grace if number in leaving_numbers else None)
        for number, instance in enumerate(old_instances)
        if number not in lost_numbers
    )
    ids = {instance.id for instance in remaining}
    positions = {device: position for device, position in whole.positions.items() if device.instance in ids}
    return Scenario(
        Deployment(old, remaining + tuple(joining_instances), positions, whole.running),
        new,
        tuple(instance.id for instance in joining_instances),
        tuple(old_instances[number].id for number in lost_numbers),
        given.grace if leaving_numbers else None,
    )


def _instances(first: int, devices: int, sizes: list[int]) -> list[Instance]:
    instances: list[Instance] = []
    while devices > 0:
        number = first + len(instances)
        instances.append(Instance(f"i{number}", sizes[min(number, len(sizes) - 1)]))
        devices -= instances[-1].devices
    return instances


def _joining(first: int, lacking: int, sizes: list[int], joining: int | None) -> list[Instance]:
    if joining is None:
        return _instances(first, lacking, sizes)
    return [Instance(f"i{first + n}", sizes[min(first + n, len(sizes) - 1)]) for n in range(joining)]


def _running(config: ParallelConfig, requests: int, tokens: int, decoded: int) -> dict[int, tuple[RunningRequest, ...]]:
    return {
        pipeline: tuple(
            RunningRequest(f"r{pipeline}.{number}", tokens, max(0, decoded - number)) for number in range(requests)
        )
        for pipeline in range(config.prompt_data, config.pipelines)
        if requests
    }
