"""The optimizer's inputs: the demand, the configurations to try, and the objective."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.parallel.model_shape import ModelShape


class Phases(StrEnum):
    """Where prompts are computed."""

    TOGETHER = "together"  #: on the pipelines that decode, as in SpotServe
    SPLIT = "split"  #: on pipelines of their own, as in Splitwise
    EITHER = "either"  #: whichever is better


class Latency(StrEnum):
    """The latency to minimise."""

    REQUEST = "request"  #: l_req: the wait and the execution
    EXECUTION = "execution"  #: l_exe alone, as in SpotServe's code


class Preference(StrEnum):
    """The choice among configurations of equal latency."""

    FEWEST = "fewest"  #: with the fewest instances, then the cheapest
    CHEAPEST = "cheapest"  #: the cheapest, then with the fewest instances
    MOST = "most"  #: with the most instances, then the fastest: what is held serves, as in SpotServe's code


@dataclass(frozen=True, slots=True)
class ServiceDemand:
    """The load: alpha in requests a second, mean tokens of a request, and coefficients of variation of the gaps between
    arrivals (1 for a Poisson process) and of a batch's seconds (0 where all requests are of one size).
    """

    arrival_rate: float
    arrival_cv: float = 1.0
    input_tokens: int = 512
    output_tokens: int = 128
    execution_cv: float = 0.0

    def __post_init__(self) -> None:
        if (
            min(self.arrival_rate, self.arrival_cv, self.execution_cv) < 0
            or min(self.input_tokens, self.output_tokens) < 1
        ):
            raise ValueError(f"rates are at least 0, and a request has at least 1 token in and 1 out: {self}")


@dataclass(frozen=True, slots=True)
class Policy:
    """The configurations to try, and the objective.

    Attributes:
        batch_sizes, tensor_degrees: values of B; values of M, divisors of the model's heads.
        pipeline_degrees: values of P; a degree that leaves a stage without layers is skipped.
        latency, preference: the one to minimise, and the choice among configurations of equal latency.
        latency_slack: share of the least latency within which another one is equal.
        latency_target_s: latencies up to this one are equal as well; `None` for no target.
        spare_instances: held beyond the serving ones.
        budget_per_h: dollars an hour that no mix exceeds; `None` for no limit.
    """

    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    tensor_degrees: tuple[int, ...] = (1, 2, 4, 8)
    pipeline_degrees: tuple[int, ...] = tuple(range(1, 65))
    latency: Latency = Latency.REQUEST
    phases: Phases = Phases.TOGETHER
    preference: Preference = Preference.FEWEST
    latency_slack: float = 0.01
    latency_target_s: float | None = None
    spare_instances: int = 2
    budget_per_h: float | None = None

    def __post_init__(self) -> None:
        degrees = (self.batch_sizes, self.tensor_degrees, self.pipeline_degrees)
        if any(not tried or min(tried) < 1 for tried in degrees):
            raise ValueError(
                "`batch_sizes`, `tensor_degrees` and `pipeline_degrees` each need one of at least 1 to try"
            )
        if min(self.latency_slack, self.latency_target_s or 0.0, self.spare_instances, self.budget_per_h or 0.0) < 0:
            raise ValueError("`latency_slack`, `latency_target_s`, `spare_instances` and `budget_per_h` are at least 0")

    @classmethod
    def of_model(cls, model: ModelShape, phases: Phases = Phases.TOGETHER) -> Policy:
        """Return the policy that tries each P and M that the model can have."""
        return cls(
            tensor_degrees=model.shard_degrees, pipeline_degrees=tuple(range(1, model.layers + 1)), phases=phases
        )

    @classmethod
    def spotserve(cls, padded_layers: int, *, max_batch: int = 4, max_tensor: int = 8) -> Policy:
        """Return the policy of the published code for a model with so many layers, padding included.
        It minimises l_exe alone, lets P be a divisor of the padded layers, and uses all instances that it holds where that
        changes no latency (SpotServe, section 4.1 and artifact).
        """
        return cls(
            batch_sizes=_powers_of_two(max_batch),
            tensor_degrees=_powers_of_two(max_tensor),
            pipeline_degrees=tuple(stages for stages in range(1, padded_layers + 1) if padded_layers % stages == 0),
            latency=Latency.EXECUTION,
            preference=Preference.MOST,
            latency_slack=0.0,
        )


def _powers_of_two(most: int) -> tuple[int, ...]:
    return tuple(1 << exponent for exponent in range(most.bit_length()))
