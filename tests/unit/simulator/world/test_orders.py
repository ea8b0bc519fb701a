"""Iterations on their way through the stages of an engine."""

from __future__ import annotations

import pytest

from spotwise.simulator.world.orders import Pipeline


def test_an_iteration_that_is_alone_takes_its_whole_time() -> None:
    """One iteration alone takes its whole time, whatever the number of stages."""
    assert Pipeline(4).entered(8.0, 100.0) == pytest.approx(108.0)


def test_a_new_one_leaves_every_stage_time() -> None:
    """A batch enters every stage time: two stages compute two batches in the time of one and a half."""
    pipeline = Pipeline(2)
    assert [pipeline.entered(2.0, 0.0) for _ in range(3)] == pytest.approx([2.0, 3.0, 4.0])


def test_a_short_one_waits_for_the_long_one_ahead_of_it() -> None:
    """A short batch waits for the long one ahead of it in every stage."""
    pipeline = Pipeline(2)
    assert pipeline.entered(10.0, 0.0) == pytest.approx(10.0)
    assert pipeline.entered(2.0, 1.0) == pytest.approx(11.0)


def test_a_long_one_leaves_the_stages_behind_it_idle() -> None:
    """A bubble, which Orca's pipeline has, too."""
    pipeline = Pipeline(2)
    assert pipeline.entered(2.0, 0.0) == pytest.approx(2.0)
    assert pipeline.entered(10.0, 0.0) == pytest.approx(11.0)


def test_a_pipeline_that_has_run_dry_begins_at_once() -> None:
    """An empty pipeline starts the next batch at once."""
    pipeline = Pipeline(3)
    pipeline.entered(3.0, 0.0)
    assert pipeline.entered(3.0, 50.0) == pytest.approx(53.0)
