"""A profile with round numbers, and where the published ones are."""

from __future__ import annotations

import json
import os
from pathlib import Path

from spotwise.core.parallel.layer_tables import LayerTables


def round_profile() -> dict[str, object]:
    """Return a document as the artifact's, of 10 layers padded to 12; milliseconds."""
    return {
        "name": "round",
        "layer_num": 10,
        "padded_layer_num": 12,
        "final_fix_factor": 2.0,
        "pp_init_comm": 8.0,
        "pp_incr_comm": 0.5,
        "max_tp": 2,
        "embed": [1.0, 2.0, 3.0],
        "tp-1": {
            "bsz-1": {"init": 40.0, "incr": 4.0},
            "bsz-2": {"init": 70.0, "incr": 5.0},
            "bsz-4": {"init": 130.0, "incr": 6.0},
        },
        "tp-2": {
            "bsz-1": {"init": 24.0, "incr": 2.0},
            "bsz-2": {"init": 40.0, "incr": 2.5},
            "bsz-4": {"init": 70.0, "incr": 3.0},
        },
        "tp-4": {"bsz-1": {"init": 20.0, "incr": 1.0}},
    }


def published(model: str) -> LayerTables:
    """Return the tables of `megatron_MODEL_profile.json` in the published data."""
    folder = Path(os.environ["SPOTWISE_DATA"]) / "spot-traces" / "spotserve" / "profiles"
    return LayerTables.from_profile(json.loads((folder / f"megatron_{model}_profile.json").read_text()))
