"""A worker's report of its load."""

from __future__ import annotations

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages import mesh as m
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

    def test_a_prompt_for_another_worker_counts_until_that_one_has_its_kv(self, bench: WorkerBench) -> None:
        """The push is a part of the prompt phase."""
        bench.prefill("r")
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 1, "decoding": 0, "reserved": 0}
        bench.iterate(r=50)
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 1, "decoding": 0, "reserved": 0}
        bench.delivered("r")
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 0, "decoding": 0, "reserved": 0}

    def test_a_prompt_in_place_is_a_decode_from_its_first_token_on(self, bench: WorkerBench) -> None:
        """One sequence is never counted in both phases."""
        bench.in_place("r")
        assert phases(bench.role.load()) == {"in place": 1, "to hand off": 0, "decoding": 0, "reserved": 0}
        bench.iterate(r=50)
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 0, "decoding": 1, "reserved": 0}
        bench.iterate(r=2)
        assert phases(bench.role.load()) == {"in place": 0, "to hand off": 0, "decoding": 0, "reserved": 0}

    def test_a_reservation_is_a_decode_once_its_kv_is_there(self, bench: WorkerBench) -> None:
        """Before that it is neither phase's work."""
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


class TestPromptsInProgress:
    """Prompt tokens count for as long as the engine computes them, whatever became of their request."""

    def test_what_an_iteration_computes_is_a_part_of_what_is_pending(self, bench: WorkerBench) -> None:
        """A prompt that waits is not computed yet."""
        bench.prefill("r", prompt=30)
        bench.prefill("s", prompt=40)
        load = bench.role.load()
        assert (load.pending_prompt_tokens, load.computing_prompt_tokens) == (70, 30)

    def test_a_cancelled_prompt_counts_until_its_iteration_ends(self, bench: WorkerBench) -> None:
        """Its tokens hold back whatever arrives: the scheduler must see them."""
        bench.prefill("r", prompt=30)
        bench.feed(m.CancelRequest("r", 1))
        load = bench.role.load()
        assert (load.pending_prompt_tokens, load.computing_prompt_tokens) == (30, 30)
        bench.iterate()
        bench.assert_empty()

    def test_of_a_cancelled_prompt_only_the_part_that_is_computed_counts(self) -> None:
        """The rest will never be computed."""
        bench = WorkerBench(limits=BatchLimits(max_num_seqs=4, max_num_batched_tokens=8))
        bench.prefill("r", prompt=30)
        bench.feed(m.CancelRequest("r", 1))
        load = bench.role.load()
        assert (load.pending_prompt_tokens, load.computing_prompt_tokens) == (8, 8)

    def test_decodes_do_not_count(self, bench: WorkerBench) -> None:
        """Neither a running nor a cancelled one."""
        bench.in_place("r")
        bench.iterate(r=50)
        assert bench.role.load().computing_prompt_tokens == 0
        bench.feed(m.CancelRequest("r", 1))
        load = bench.role.load()
        assert (load.pending_prompt_tokens, load.computing_prompt_tokens) == (0, 0)
