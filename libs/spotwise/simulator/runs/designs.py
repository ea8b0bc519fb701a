"""The clusters that the Splitwise paper compares (tables IV and V, figures 16 to 18, section 6): prices per GPU-hour and power
of a DGX as given there. A GPU sends its KV shard over its own 200 (A100) or 400 Gbit/s (H100), eight a machine. A capped
machine's GPUs draw half, the machine 70 %."""

from __future__ import annotations

from collections.abc import Mapping

from spotwise.simulator.costs.hardware import GIB
from spotwise.simulator.runs.clusters import Design, Hardware, Split

_GPUS = 8
_DGX_MEMORY_BYTES = _GPUS * 80 * GIB
_A100_POWER = 24.8
_H100_POWER = 44.0
_CAPPED_POWER = 30.8

DGX_A100 = Hardware("dgx-a100", "a100-80gb", _DGX_MEMORY_BYTES, _GPUS * 25e9, _GPUS * 2.21, 1.0)
DGX_H100 = Hardware("dgx-h100", "h100-80gb", _DGX_MEMORY_BYTES, _GPUS * 50e9, _GPUS * 4.76, _H100_POWER / _A100_POWER)
#: The cap slows prompts only, so capped machines serve tokens.
DGX_H100_CAPPED = Hardware(
    "dgx-h100-capped", "h100-80gb-pcap", _DGX_MEMORY_BYTES, _GPUS * 50e9, _GPUS * 4.76, _CAPPED_POWER / _A100_POWER
)

#: By name.
PAPER_MACHINES = {hardware.name: hardware for hardware in (DGX_A100, DGX_H100, DGX_H100_CAPPED)}

BASELINE_A100 = Design("Baseline-A100", DGX_A100)
BASELINE_H100 = Design("Baseline-H100", DGX_H100)
SPLITWISE_AA = Design("Splitwise-AA", DGX_A100, DGX_A100)
SPLITWISE_HH = Design("Splitwise-HH", DGX_H100, DGX_H100)
SPLITWISE_HA = Design("Splitwise-HA", DGX_H100, DGX_A100)
SPLITWISE_HHCAP = Design("Splitwise-HHcap", DGX_H100, DGX_H100_CAPPED)

DESIGNS = {
    design.name: design
    for design in (BASELINE_A100, BASELINE_H100, SPLITWISE_AA, SPLITWISE_HH, SPLITWISE_HA, SPLITWISE_HHCAP)
}

#: The paper's clusters: splits by design, by their common budget and the workload they were made for.
PAPER_SPLITS: Mapping[tuple[str, str], Mapping[str, Split]] = {
    ("iso-power", "conv"): {
        BASELINE_A100.name: Split(70),
        BASELINE_H100.name: Split(40),
        SPLITWISE_AA.name: Split(45, 25),
        SPLITWISE_HH.name: Split(25, 15),
        SPLITWISE_HA.name: Split(25, 26),
        SPLITWISE_HHCAP.name: Split(25, 21),
    },
    ("iso-power", "code"): {
        BASELINE_A100.name: Split(70),
        BASELINE_H100.name: Split(40),
        SPLITWISE_AA.name: Split(55, 15),
        SPLITWISE_HH.name: Split(35, 5),
        SPLITWISE_HA.name: Split(35, 8),
        SPLITWISE_HHCAP.name: Split(35, 7),
    },
    ("iso-cost", "conv"): {
        BASELINE_A100.name: Split(86),
        BASELINE_H100.name: Split(40),
        SPLITWISE_AA.name: Split(51, 35),
        SPLITWISE_HH.name: Split(25, 15),
        SPLITWISE_HA.name: Split(30, 21),
        SPLITWISE_HHCAP.name: Split(30, 10),
    },
}
