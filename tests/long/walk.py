"""A walk of one mesh through every ordered pair of shapes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from spotwise.benchmarks.groups import Shape, shape_name
from spotwise.benchmarks.reshape import all_pairs
from spotwise.core.parallel.config import ParallelConfig
from tests.live.answers import Answer, Bodies
from tests.live.mesh import LiveMesh
from tests.live.reshaped_requests import (
    Reshaped,
    assert_undisturbed,
    reshaped,
    serving_shapes,
    wait_for_shape,
)
from tests.long.held_weights import assert_as_in_folder

#: A change's configurations, before and after.
Pair = tuple[ParallelConfig, ParallelConfig]


class ServedModel(NamedTuple):
    """The model of a mesh: its name in requests, and its folder."""

    name: str
    folder: Path


@dataclass
class Totals:
    """What was compared."""

    changes: int = 0
    requests: int = 0
    tokens: int = 0
    moves: int = 0
    prompts_in_flight: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, done: Reshaped) -> None:
        """Count one change."""
        self.changes += 1
        self.requests += len(done.answers)
        self.tokens += sum(answer.tokens for answer in done.answers.values())
        self.moves += done.moves
        self.prompts_in_flight += done.prompts_in_flight()
        self.seconds.append(done.lasted_s)

    def __str__(self) -> str:
        seconds = sorted(self.seconds)
        return (
            f"{self.changes} changes in {seconds[len(seconds) // 2]:.1f} s each (median; at most {seconds[-1]:.1f}), "
            f"{self.requests} requests, of which {self.prompts_in_flight} in their prompt, {self.moves} moves, "
            f"{self.tokens} tokens compared"
        )


def walk(shapes: Sequence[Shape], prompt_groups: int = 0) -> list[object]:
    """Parameters of a test: all ordered pairs, each beginning where the last one ended."""
    pairs = list(itertools.pairwise(all_pairs(shapes)))
    return [
        pytest.param(
            tuple(ParallelConfig(1, *shape, prompt_data=prompt_groups) for shape in pair),
            id=" > ".join(map(shape_name, pair)),
        )
        for pair in pairs
    ]


def begin_at(mesh: LiveMesh, before: ParallelConfig) -> None:
    """Bring a mesh into the shape of a change's beginning, where a test before has failed or was left out."""
    if serving_shapes(mesh) == [(before.pipeline, before.tensor)] * before.pipelines:
        return
    done = mesh.command("reshape", str(before).rpartition(",")[0])
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for_shape(mesh, before)


def change_shape(
    mesh: LiveMesh,
    model: ServedModel,
    after: ParallelConfig,
    decoding: Bodies,
    expected: dict[str, Answer],
    prompts: Bodies | None = None,
) -> Reshaped:
    """Re-shape a mesh of a model under requests, which get what they would undisturbed. No process restarts, nothing
    stays held, and what devices keep of the weights is what the folder has.
    """
    pids = {name: mesh.pid(name) for name in mesh.state.services}
    done = reshaped(mesh, model.name, after, decoding, prompts)
    wait_for_shape(mesh, after)
    assert_as_in_folder(mesh, model.folder)
    assert_undisturbed(done, {**decoding, **(prompts or {})}, expected)
    assert {name: mesh.pid(name) for name in mesh.state.services} == pids
    mesh.wait_until_idle()
    return done


def tokens_for(before: ParallelConfig, most: int) -> int:
    """How many tokens a stream needs so that it outlasts the forming of new groups: fewer where an iteration takes longer."""
    return most * 2 // 5 + most * 3 // 5 // (before.pipeline * before.tensor)
