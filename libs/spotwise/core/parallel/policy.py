"""What the optimizer is asked: how much is to be served, which configurations it may try, and what makes one better.

Law: a policy says what may be tried and how ties are decided; it knows nothing of machines or models. `Policy.spotserve` is
what the published code does: it minimises l_exe alone, lets P be a divisor of the padded number of layers, tries batches up to
4, and lets all instances that it holds serve where more of them change no latency (SpotServe, section 4.1 and artifact).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phases(StrEnum):
    """Where prompts are computed."""

    TOGETHER = "together"  #: on the pipelines that decode, as in SpotServe
    SPLIT = "split"  #: on pipelines of their own, as in Splitwise
    EITHER = "either"  #: whichever is better


class Latency(StrEnum):
    """What is to be least."""

    REQUEST = "request"  #: l_req: the wait and the execution
    EXECUTION = "execution"  #: l_exe alone, as in SpotServe's code


class Preference(StrEnum):
    """Who is chosen of those that are as fast."""

    FEWEST = "fewest"  #: with the fewest instances, then the cheapest
    CHEAPEST = "cheapest"  #: the cheapest, then with the fewest instances
    MOST = "most"  #: with the most instances, then the fastest: what is held serves, as in SpotServe's code


@dataclass(frozen=True, slots=True)
class ServiceDemand:
    """What is to be served.

    Attributes:
        arrival_rate: requests a second: alpha.
        arrival_cv: how unevenly they come: standard deviation of the gaps by their mean; 1 for a Poisson process.
        input_tokens: of a request, on average.
        output_tokens: of its answer, on average.
        execution_cv: how unevenly batches take their time; 0 where all requests are of one size.
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
    """What may be tried, and what is better.

    Attributes:
        batch_sizes: B to try.
        tensor_degrees: M to try; divisors of the model's heads.
        pipeline_degrees: P to try; those that leave a stage without layers have no finite seconds, and are passed over.
        latency: what is to be least.
        phases: where prompts are computed.
        preference: who is chosen of those that are as fast.
        latency_slack: of the least latency, by which another may be longer and still count as as fast.
        latency_target_s: latencies up to this count as as fast as well; `None`: only the least does.
        spare_instances: held beyond those that serve, for the next that is taken away.
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

    def __post_init__(self) -> None:
        degrees = (self.batch_sizes, self.tensor_degrees, self.pipeline_degrees)
        if any(not tried or min(tried) < 1 for tried in degrees):
            raise ValueError(
                "`batch_sizes`, `tensor_degrees` and `pipeline_degrees` each need one of at least 1 to try"
            )
        if min(self.latency_slack, self.latency_target_s or 0.0, self.spare_instances) < 0:
            raise ValueError("`latency_slack`, `latency_target_s` and `spare_instances` are at least 0")

    @classmethod
    def spotserve(cls, padded_layers: int, *, max_batch: int = 4, max_tensor: int = 8) -> Policy:
        """Return the policy of the published code for a model with so many layers, padding included."""
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
