"""Fit the published profile and write the simulator's built-in costs.

python scripts/built_in_costs.py PROFILE.csv    rewrites libs/spotwise/simulator/costs/built_in_costs.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from spotwise.core.costs.cost_model import PiecewiseLinear
from spotwise.simulator.costs.hardware import LANGUAGE_MODELS
from spotwise.simulator.costs.machine_costs import A100, H100, DecodeModel, fit, fit_as_published, rows_of
from spotwise.simulator.costs.profile_fit import read_profile
from spotwise.simulator.costs.published_costs import InterpolatedTable

TARGET = Path(__file__).parents[1] / "libs/spotwise/simulator/costs/built_in_costs.json"


def number(value: float) -> float:
    """Five digits are more than the measurements have."""
    return float(f"{value:.5g}")


def table(function: PiecewiseLinear) -> dict[str, Any]:
    """A table as JSON has it."""
    return {"at": [int(argument) for argument in function.at], "seconds": [number(each) for each in function.seconds]}


def published_table(function: InterpolatedTable) -> dict[str, Any]:
    """The same with all digits: fewer would make other runs of the same requests."""
    return {"at": [int(argument) for argument in function.at], "seconds": list(function.seconds)}


def main() -> None:
    """Fit every model, GPU and decode model, and rewrite the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path)
    path = parser.parse_args().profile
    rows = read_profile(path)
    honest, published = [], []
    for model in LANGUAGE_MODELS.values():
        for gpu in (A100, H100):
            own = rows_of(rows, model, gpu, path)
            about = {"model": model.name, "gpu": gpu}
            cost = fit(own, model, gpu)
            fields = {
                "prompt": table(cost.prompt),
                "decode": table(cost.decode),
                "prompt_context_s": number(cost.prompt_context_s),
                "decode_context_s": number(cost.decode_context_s),
            }
            honest.append(about | {"decode_model": DecodeModel.HONEST.value, "cost": fields})
            for decode_model in (DecodeModel.PUBLISHED, DecodeModel.BY_BATCH):
                as_published = fit_as_published(own, decode_model)
                tables = {
                    "prompt": published_table(as_published.prompt),
                    "decode": published_table(as_published.decode),
                }
                fields = tables | {"mixed_factor": as_published.mixed_factor}
                published.append(about | {"decode_model": decode_model.value, "cost": fields})
    source = json.loads(TARGET.read_bytes())["source"]
    parts = {"costs": honest, "published_costs": published}
    lists = ",\n".join(
        f'  "{name}": [\n' + ",\n".join(f"    {json.dumps(each)}" for each in costs) + "\n  ]"
        for name, costs in parts.items()
    )
    TARGET.write_text(f'{{\n  "source": {json.dumps(source)},\n{lists}\n}}\n')


if __name__ == "__main__":
    main()
