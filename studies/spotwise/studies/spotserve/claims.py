"""The SpotServe paper's figures (abstract, sections 6.2 to 6.4), as printed or as constants of its artifact's plots; the plots
draw on-demand fleets 4.5 s lower in the mean and 9 s lower in P99, and bill 18 minutes for each."""

from __future__ import annotations

from collections.abc import Mapping

#: Mean and P99 latency in seconds, by model, segment and system.
LATENCY_S: Mapping[tuple[str, str, str], Mapping[str, float]] = {
    ("GPT-20B", "A_S", "Reparallelization"): {"mean": 32.0, "p99": 61.3},
    ("GPT-20B", "A_S", "Rerouting"): {"mean": 26.3, "p99": 51.0},
    ("GPT-20B", "A_S", "SpotServe"): {"mean": 23.5, "p99": 46.1},
    ("GPT-20B", "B_S", "Reparallelization"): {"mean": 27.1, "p99": 56.3},
    ("GPT-20B", "B_S", "Rerouting"): {"mean": 47.6, "p99": 99.1},
    ("GPT-20B", "B_S", "SpotServe"): {"mean": 23.3, "p99": 37.1},
    ("GPT-20B", "A_S+O", "Reparallelization"): {"mean": 32.7, "p99": 65.8},
    ("GPT-20B", "A_S+O", "Rerouting"): {"mean": 30.4, "p99": 50.7},
    ("GPT-20B", "A_S+O", "SpotServe"): {"mean": 23.4, "p99": 49.0},
    ("GPT-20B", "B_S+O", "Reparallelization"): {"mean": 31.9, "p99": 73.3},
    ("GPT-20B", "B_S+O", "Rerouting"): {"mean": 24.6, "p99": 43.2},
    ("GPT-20B", "B_S+O", "SpotServe"): {"mean": 20.7, "p99": 33.4},
    ("GPT-20B", "3 on-demand", "on-demand"): {"mean": 141.5, "p99": 253.3},
    ("GPT-20B", "4 on-demand", "on-demand"): {"mean": 98.0, "p99": 175.3},
    ("GPT-20B", "6 on-demand", "on-demand"): {"mean": 29.1, "p99": 43.5},
    ("GPT-20B", "8 on-demand", "on-demand"): {"mean": 24.6, "p99": 34.5},
}
#: P99 of another system over SpotServe's: minimum and maximum over the segments.
P99_OVER_SPOTSERVE: Mapping[tuple[str, str], tuple[float, float]] = {
    ("LLaMA-30B", "Reparallelization"): (1.34, 2.43),
    ("LLaMA-30B", "Rerouting"): (2.14, 9.13),
}
#: P99 without a part over P99 with it: of B_S without the controller; of A_S and B_S also without the planner.
WITHOUT_CONTROLLER_P99 = 2.79
WITHOUT_PLANNER_P99 = (1.4, 3.1)
#: Saved share of the cost of 8 on-demand instances, as the artifact bills B_S.
SPARED = 0.54
#: Share by which a close figure may differ from the paper's.
CLOSE = 0.15
