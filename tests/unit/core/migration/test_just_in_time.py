"""When a batch stops before a preemption."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.migration.interruption.just_in_time import LinearExecution, Stop, StopAfter, before_preemption

SECOND = LinearExecution(0.0, 1.0)
STEPS = st.integers(0, 40)
SECONDS = st.integers(-5, 60).map(lambda quarter: quarter / 4)
MIGRATIONS = st.integers(0, 40).map(lambda quarter: quarter / 4)
EXECUTIONS = st.builds(
    LinearExecution, st.integers(0, 12).map(lambda q: q / 4), st.integers(1, 12).map(lambda q: q / 4)
)


class TestPreemption:
    """Stop after as many steps as leave time for the migration."""

    def test_a_migration_that_takes_longer_than_the_steps_before_it_does_not_pay(self) -> None:
        """11 steps and 18 s: it is re-routed now; 12 steps and 11 s: it migrates."""
        assert before_preemption(SECOND, 100, 30.0, 18.0) == StopAfter(Stop.REROUTE, 0, 0.0)
        assert before_preemption(SECOND, 100, 24.0, 11.0) == StopAfter(Stop.MIGRATE, 12, 12.0)

    def test_a_bound_met_exactly_does_not_pay(self) -> None:
        """A migration that takes exactly the bound does not pay: T_mig < l_exe(S), not at most."""
        assert before_preemption(SECOND, 100, 20.5, 10.0).steps == 0
        assert before_preemption(SECOND, 100, 20.5, 9.75).steps == 10

    @given(EXECUTIONS, STEPS, SECONDS, MIGRATIONS)
    def test_it_is_the_rule(self, execution: LinearExecution, remaining: int, left: float, migration: float) -> None:
        fitting = [steps for steps in range(remaining + 1) if execution(steps) < left - migration]
        found = before_preemption(execution, remaining, left, migration)
        if not fitting:
            assert found == StopAfter(Stop.REROUTE, 0, 0.0)
        elif fitting[-1] == remaining:
            assert found == StopAfter(Stop.FINISH, remaining, execution(remaining))
        elif migration < execution(fitting[-1]):
            assert found == StopAfter(Stop.MIGRATE, fitting[-1], execution(fitting[-1]))
        else:
            assert found == StopAfter(Stop.REROUTE, 0, 0.0)


def test_any_function_of_the_steps_will_do() -> None:
    """It accepts any execution time by steps, such as a table with a slow first step."""
    seconds = [0.0, 5.0, 6.0, 7.0, 8.0]
    assert before_preemption(seconds.__getitem__, 4, 8.5, 1.0) == StopAfter(Stop.MIGRATE, 3, 7.0)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="remaining_steps"):
        before_preemption(SECOND, -1, 1.0, 1.0)
    with pytest.raises(ValueError, match="migration_s"):
        before_preemption(SECOND, 1, 1.0, -1.0)
    with pytest.raises(ValueError, match="step_s"):
        LinearExecution(0.0, 0.0)
