"""Fetches or converts the model named by SPOTWISE_MODEL into the volume /models, and points /models/current at it."""

import os
import sys
from pathlib import Path

from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.model_store import resolve_model

VOLUME = Path("/models")


def say(stage: str, done: int, total: int) -> None:
    """Tell each stage once, at its end: this is a log and not a terminal."""
    if done == total:
        sys.stderr.write(f"model: {stage}: done\n")


def main() -> int:
    """Return the exit status: 1 where there is no such model."""
    try:
        folder = resolve_model(os.environ["SPOTWISE_MODEL"], VOLUME, say).path
    except ModelError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    link = VOLUME / ".current"
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    link.rename(VOLUME / "current")  # at once: services may be reading it
    sys.stderr.write(f"model: {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
