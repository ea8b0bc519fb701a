"""A worker's report of its load."""

from __future__ import annotations

from spotwise.core import messages as m
from tests.unit.core.worker.bench import WorkerBench


def phases(load: m.WorkerLoad) -> dict[str, int]:
    """Return the counts of sequences by phase and target."""
    return {
        "in place": load.prompts_in_place,
        "to hand off": load.prompts_to_hand_off,
        "decoding": load.decoding,
        "reserved": load.waiting_for_kv,
    }


class TestPhases:
    """A scheduler sees from a heartbeat which work is off-pool for the worker."""

    def test_a_prompt_for_another_worker_counts_until_that_one_has_its_kv(self) -> None:
        """The push is a part of the prompt phase."""
        bench = WorkerBench()
        bench.prefill("r")
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 1, "decoding": 0, "reserved": 0}
        bench.iterate(r=50)
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 1, "decoding": 0, "reserved": 0}
        bench.delivered("r")
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 0, "decoding": 0, "reserved": 0}

    def test_a_prompt_in_place_is_a_decode_from_its_first_token_on(self) -> None:
        """One sequence is never counted in both phases."""
        bench = WorkerBench()
        bench.in_place("r")
        assert phases(bench.role.load()) == {"in place": 1, "to hand off": 0, "decoding": 0, "reserved": 0}
        bench.iterate(r=50)
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 0, "decoding": 1, "reserved": 0}
        bench.iterate(r=2)
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 0, "decoding": 0, "reserved": 0}

    def test_a_reservation_is_a_decode_once_its_kv_is_there(self) -> None:
        """Before that it is neither phase's work."""
        bench = WorkerBench()
        bench.reserve("r")
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 0, "decoding": 0, "reserved": 1}
        bench.load("r")
        bench.arrive("r")
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 0, "decoding": 1, "reserved": 0}

    def test_all_phases_side_by_side(self) -> None:
        """A worker of any home pool may have all phases at once."""
        bench = WorkerBench(blocks=40)
        bench.decode("d")
        bench.in_place("p")
        bench.prefill("h")
        bench.reserve("w")
        assert phases(bench.role.load()) == {"in place": 1, "to hand off": 1, "decoding": 1, "reserved": 1}
