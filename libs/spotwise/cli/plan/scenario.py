"""What a user says of a change: who stands where, who goes, who comes.

Law: instances are numbered from 0, `i0`, `i1` and so on; those that stand fill the old configuration in order, those that come
follow. Where it is not said how many come, as many come as the new configuration lacks.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.cli.errors import OptionError
from spotwise.core.migration.deployment import Deployment, Instance, RunningRequest
from spotwise.core.parallel.config import ParallelConfig


@dataclass(frozen=True, slots=True)
class Scenario:
    """A change.

    Attributes:
        before: what stands.
        config: what shall.
        joining: ids of instances that come for it.
        lost: ids of instances that went without notice.
        deadline_s: when those under notice go, from now; `None` where nobody does.
    """

    before: Deployment
    config: ParallelConfig
    joining: tuple[str, ...]
    lost: tuple[str, ...]
    deadline_s: float | None


def parse_config(written: str, option: str) -> ParallelConfig:
    """Read a configuration.

    Raises:
        OptionError: it is none.
    """
    try:
        return ParallelConfig.parse(written)
    except ValueError as error:
        raise OptionError(f"{option}: {error}") from error


def parse_numbers(written: str | None, option: str, below: int) -> list[int]:
    """Read numbers of instances.

    Raises:
        OptionError: one is no number, there is none of that number, or one is there twice.
    """
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
    """Read how many devices instances have: one number for all, or one for each, the last for all that follow.

    Raises:
        OptionError: one is no number from 1 to 8.
    """
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
        old, new: configurations.
        sizes: devices of instances, in order; the last of all that follow.
        leaving: numbers of instances under notice.
        lost: numbers of instances that went without notice.
        joining: instances that come; `None`: as many as are needed.
        grace_s: from now until those under notice go.
        requests: that each old pipeline decodes.
        tokens: of each of them that have KV.
        decoded: of these, tokens that it decoded; each further request of a pipeline has decoded one less.

    Raises:
        OptionError: a number is wrong, or what stays and comes is too little.
    """
    standing = _instances(0, old.devices, sizes)
    going = parse_numbers(leaving, "--leaving", len(standing))
    gone = parse_numbers(lost, "--lost", len(standing))
    if both := sorted(set(going) & set(gone)):
        raise OptionError(f"instance {both[0]} cannot be in --leaving and in --lost")
    stay = sum(standing[number].devices for number in range(len(standing)) if number not in {*going, *gone})
    coming = _joining(len(standing), new.devices - stay, sizes, joining)
    if (there := stay + sum(instance.devices for instance in coming)) < new.devices:
        raise OptionError(
            f"--to {new} needs {new.devices} devices, and {there} stay or come; "
            "raise --joining, or leave it out for as many instances as are needed"
        )
    whole = Deployment.in_order(old, tuple(standing), _running(old, requests, tokens, decoded))
    left = tuple(
        Instance(instance.id, instance.devices, grace_s if number in going else None)
        for number, instance in enumerate(standing)
        if number not in gone
    )
    ids = {instance.id for instance in left}
    positions = {device: position for device, position in whole.positions.items() if device.instance in ids}
    return Scenario(
        Deployment(old, left + tuple(coming), positions, whole.running),
        new,
        tuple(instance.id for instance in coming),
        tuple(standing[number].id for number in gone),
        grace_s if going else None,
    )


def _instances(first: int, devices: int, sizes: list[int]) -> list[Instance]:
    """Return as many instances as have that many devices."""
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
    """Return what decodes: in the token pipelines, where phases are apart."""
    return {
        pipeline: tuple(
            RunningRequest(f"r{pipeline}.{number}", tokens, max(0, decoded - number)) for number in range(requests)
        )
        for pipeline in range(config.prompt_data, config.pipelines)
        if requests
    }
