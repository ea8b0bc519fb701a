"""Fit the published profile and write the simulator's built-in costs.

python scripts/built_in_costs.py PROFILE.csv    rewrites libs/spotwise/simulator/costs/built_in_costs.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from spotwise.core.cost_model import PiecewiseLinear
from spotwise.simulator.costs.hardware import LANGUAGE_MODELS
from spotwise.simulator.costs.machine_costs import A100, H100, DecodeModel, fit, rows_of
from spotwise.simulator.costs.profiles import read_profile

TARGET = Path(__file__).parents[1] / "libs/spotwise/simulator/costs/built_in_costs.json"


def number(value: float) -> float:
    """Five digits are more than the measurements have."""
    return float(f"{value:.5g}")


def table(function: PiecewiseLinear) -> dict[str, Any]:
    """A table as JSON has it."""
    return {"at": [int(argument) for argument in function.at], "seconds": [number(each) for each in function.seconds]}


def main() -> None:
    """Fit every model, GPU and decode model, and rewrite the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path)
    path = parser.parse_args().profile
    rows = read_profile(path)
    costs = []
    for model in LANGUAGE_MODELS.values():
        for gpu in (A100, H100):
            own = rows_of(rows, model, gpu, path)
            for decode_model in DecodeModel:
                cost = fit(own, model, gpu, decode_model)
                fields = {
                    "prompt": table(cost.prompt),
                    "decode": table(cost.decode),
                    "prompt_context_s": number(cost.prompt_context_s),
                    "decode_context_s": number(cost.decode_context_s),
                    "mixed_factor": cost.mixed_factor,
                }
                costs.append({"model": model.name, "gpu": gpu, "decode_model": decode_model.value, "cost": fields})
    source = json.loads(TARGET.read_bytes())["source"]
    lines = ",\n".join(f"    {json.dumps(each)}" for each in costs)
    TARGET.write_text(f'{{\n  "source": {json.dumps(source)},\n  "costs": [\n{lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
