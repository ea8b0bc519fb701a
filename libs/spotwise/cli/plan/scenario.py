"""The change to plan, as the command's options describe it.
Instances are numbered from 0 (`i0`, `i1`, ...): the old ones fill the old configuration in order, joining ones follow.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.cli.errors import OptionError
from spotwise.core.migration.deployment import Deployment, Instance, RunningRequest
from spotwise.core.parallel.config import ParallelConfig


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


def scenario(
    old: ParallelConfig,
    new: ParallelConfig,
    sizes: list[int],
    leaving: str | None,
    lost: str | None,
    joining: int | None,
    grace_s: float,
    requests: int,
    tokens: int,
    decoded: int,
) -> Scenario:
    """Return the change that the options describe.

    Args:
        sizes: devices of instances, in order; the last of all further ones.
        leaving, lost: numbers of instances under notice, and of those lost without.
        joining: number of joining instances; `None`: as many as are needed.
        grace_s: seconds until those under notice are reclaimed.
        requests, tokens: decoding on each old pipeline, and each one's tokens with KV.
        decoded: tokens of these decoded by the first request of a pipeline; each further one has decoded one less.

    Raises:
        OptionError: a number is wrong, or too few devices stay and join.
    """
    old_instances = _instances(0, old.devices, sizes)
    leaving_numbers = parse_numbers(leaving, "--leaving", len(old_instances))
    lost_numbers = parse_numbers(lost, "--lost", len(old_instances))
    if both := sorted(set(leaving_numbers) & set(lost_numbers)):
        raise OptionError(f"instance {both[0]} cannot be in --leaving and in --lost")
    not_staying = {*leaving_numbers, *lost_numbers}
    stay = sum(instance.devices for number, instance in enumerate(old_instances) if number not in not_staying)
    joining_instances = _joining(len(old_instances), new.devices - stay, sizes, joining)
    if (available := stay + sum(instance.devices for instance in joining_instances)) < new.devices:
        raise OptionError(
            f"--to {new} needs {new.devices} devices, and {available} stay or come; "
            "raise --joining, or leave it out for as many instances as are needed"
        )
    whole = Deployment.in_order(old, tuple(old_instances), _running(old, requests, tokens, decoded))
    remaining = tuple(
        Instance(instance.id, instance.devices, grace_s if number in leaving_numbers else None)
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
        grace_s if leaving_numbers else None,
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
