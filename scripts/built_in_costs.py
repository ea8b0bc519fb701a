"""Fit the published profile and write what comes along with the simulator.

    python scripts/built_in_costs.py PROFILE.csv    rewrites libs/spotwise/simulator/costs/built_in_costs.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from spotwise.core.cost_model import PiecewiseLinear
from spotwise.simulator.costs.hardware import LANGUAGE_MODELS
from spotwise.simulator.costs.machine_costs import A100, H100, DecodeModel, fit, rows_of
from spotwise.simulator.costs.profiles import read_profile

TARGET = Path(__file__).parents[1] / "libs/spotwise/simulator/costs/built_in_costs.py"

HEAD = '''"""What iterations cost on a DGX-A100 and a DGX-H100, for those who have no profile.

Written by scripts/built_in_costs.py; the numbers are fits (`profile_fit.py`) of the profile that was published with the paper's
simulator (Patel et al., "Splitwise", ISCA 2024; data CC-BY): BLOOM-176B and Llama2-70B in half precision on eight GPUs.
"""

from __future__ import annotations

from spotwise.core.cost_model import PiecewiseLinear, TableIterationCost

#: By language model, GPU and model of time.
BUILT_IN: dict[tuple[str, str, str], TableIterationCost] = {
'''


def number(value: float) -> str:
    """Five digits are more than the measurements have."""
    return repr(float(f"{value:.5g}"))


def table(name: str, function: PiecewiseLinear) -> str:
    """A table as it stands in the source."""
    at = ", ".join(f"{argument:g}" for argument in function.at)
    seconds = ", ".join(map(number, function.seconds))
    return f"{name}=PiecewiseLinear(({at}), ({seconds})),"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path)
    path = parser.parse_args().profile
    rows = read_profile(path)
    entries = []
    for model in LANGUAGE_MODELS.values():
        for gpu in (A100, H100):
            own = rows_of(rows, model, gpu, path)
            for decode_model in DecodeModel:
                cost = fit(own, model, gpu, decode_model)
                entries.append(
                    f'("{model.name}", "{gpu}", "{decode_model.value}"): TableIterationCost('
                    f"{table('prompt', cost.prompt)} {table('decode', cost.decode)}"
                    f"prompt_context_s={number(cost.prompt_context_s)}, decode_context_s={number(cost.decode_context_s)},"
                    f"mixed_factor={cost.mixed_factor}),"
                )
    TARGET.write_text(HEAD + "\n".join(entries) + "\n}\n")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(TARGET)], check=True)


if __name__ == "__main__":
    main()
