"""What a sequence takes along from worker to worker: its level in the queues, its priority, its tenant."""

from __future__ import annotations

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages.worker import StreamRef
from spotwise.core.requests.record import KvHandoff, QueueLevel, RequestRecord
from spotwise.core.requests.request import RequestState, StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.core.worker.policy import Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.core.worker.sequences.sequence import Sequence
from tests.unit.core.builders import only
from tests.unit.core.worker.bench import STOP_TOKEN, WorkerBench, rows

#: A decode takes 1 s, a prompt token a tenth more.
COST = LinearIterationCost(fixed_s=1.0, prompt_token_s=0.1, prompt_context_s=0.0, decode_s=0.0, decode_context_s=0.0)
#: Quanta 1, 2, 4, 8, 16 s.
QUEUES = MlfqPolicy(first_quantum_s=1.0, queues=5, starve_limit_s=100.0)


def bench(
    scheduling: Scheduling = Scheduling.MLFQ,
    queues: MlfqPolicy = QUEUES,
    kv_push: ConfiguredPushMode = ConfiguredPushMode.SERIAL,
) -> WorkerBench:
    """A worker with one row to an iteration."""
    policy = WorkerPolicy(
        BatchLimits(max_num_seqs=1),
        Reserve.MAX_TOKENS,
        prefix_caching=False,
        kv_push=kv_push,
        scheduling=scheduling,
        mlfq=queues,
        cost=COST,
    )
    return WorkerBench(policy=policy)


def handoff(commands: list[c.WorkerCommand]) -> KvHandoff:
    """The one hand-off that is sent."""
    (push,) = only(commands, c.PushKv)
    return push.handoff


def reserve(worker: WorkerBench, *choice_ids: str) -> None:
    """Make reservations and load the records for hand-offs."""
    for number, choice_id in enumerate(choice_ids, start=1):
        worker.reserve(choice_id, tokens=40, number=number)
        worker.load(choice_id)


def arrive(
    worker: WorkerBench, choice_id: str, level: QueueLevel | None, *, num_tokens: int = 30, after_s: float = 0.0
) -> list[c.WorkerCommand]:
    """A hand-off from a worker where the sequence arrived_level so."""
    return worker.feed(c.KvArrived(KvHandoff(choice_id, 1, num_tokens, 50, level), 4096, 0.25, "shm"), after_s)


class TestHandOff:
    """The level goes from the prompt worker to the token worker."""

    def test_the_hand_off_has_the_queue_level(self) -> None:
        """A prompt of 20 tokens takes 3 s: it skips to the third queue, and has had 3 of its 4 s."""
        worker = bench()
        worker.prefill("r", prompt=20)
        assert handoff(worker.iterate(r=50)) == KvHandoff("r", 1, 20, 50, QueueLevel(3, 0.75))

    def test_a_worker_without_queues_sends_no_level(self) -> None:
        worker = bench(Scheduling.FCFS)
        worker.prefill("r", prompt=20)
        assert handoff(worker.iterate(r=50)).level is None

    def test_a_hand_off_that_was_begun_before_has_the_level_at_its_end(self) -> None:
        """The level is that after the prompt was computed and charged."""
        worker = bench(kv_push=ConfiguredPushMode.LAYERWISE)
        worker.prefill("r", prompt=20)
        (commit,) = only(worker.iterate(r=50), h.CommitPush)
        assert commit.handoff.level == QueueLevel(3, 0.75)

    def test_the_token_worker_continues_from_that_level(self) -> None:
        """A sequence of a higher level decodes first, though its KV came later; as much of its quantum is left as there was."""
        worker = bench()
        reserve(worker, "long", "short", "busy")
        assert rows(arrive(worker, "busy", QueueLevel(1, 0.0))) == ["busy@1"]  # the others come during its iteration
        assert rows(arrive(worker, "long", QueueLevel(4, 0.0)) + arrive(worker, "short", QueueLevel(3, 0.5))) == []
        assert rows(worker.iterate(busy=7)) == ["busy@1"]  # in the second queue now, for two more
        assert rows(worker.iterate(busy=7)) == ["busy@1"]
        assert rows(worker.iterate(busy=7)) == ["short@1"]  # half of the third queue's four, then that whole of "busy"
        assert rows(worker.iterate(short=7)) == ["short@1"]
        assert rows(worker.iterate(short=7)) == ["busy@1"]

    def test_a_sequence_from_a_worker_without_queues_begins_with_the_token_it_has(self) -> None:
        """A sequence without a queue level starts with one decode's cost used, which is the first queue's quantum."""
        worker = bench()
        levels = {
            "third": QueueLevel(3, 0.0),
            "second": QueueLevel(2, 0.5),
            "unknown": None,
            "first": QueueLevel(1, 0.0),
        }
        reserve(worker, *levels, "busy")
        arrive(worker, "busy", QueueLevel(1, 0.0))
        for choice_id, level in levels.items():
            arrive(worker, choice_id, level)
        order = [
            rows(worker.iterate(**{choice_id: STOP_TOKEN})) for choice_id in ("busy", "first", "second", "unknown")
        ]
        assert order == [["first@1"], ["second@1"], ["unknown@1"], ["third@1"]]

    def test_its_wait_begins_when_its_kv_comes(self) -> None:
        """The wait for promotion starts when the KV arrives, not with the reservation: else long prompts would arrive
        starved.
        """
        worker = bench(queues=MlfqPolicy(first_quantum_s=1.0, queues=5, starve_limit_s=10.0))
        reserve(worker, "long", "short")
        arrive(worker, "short", QueueLevel(3, 0.0), after_s=50.0)
        arrive(worker, "long", QueueLevel(5, 0.0))
        assert rows(worker.iterate(after_s=1.0, short=7)) == ["short@1"]
        assert rows(worker.iterate(after_s=1.0, short=7)) == ["short@1"]
        assert rows(worker.iterate(after_s=8.0, short=7)) == ["long@1"]


class TestLaterAttempts:
    """A request whose worker was lost is recomputed with the tokens that its client has received."""

    @staticmethod
    def level(committed: int, known: int = 20) -> QueueLevel:
        worker = bench()
        worker.start("r", 2, prompt=known)
        worker.load("r", 2, committed=tuple(range(committed)), max_new=committed + 10)
        level = handoff(worker.feed(c.IterationFinished((SampledToken("r@2", 50),)))).level
        assert level is not None
        return level

    def test_it_joins_where_its_tokens_would_have_brought_it(self) -> None:
        """Eight decodes use up three quanta, 1 + 2 + 4 s; its prompt and they take 3 s again, of the 8 s of the fourth."""
        assert self.level(committed=8) == QueueLevel(4, 0.375)

    def test_its_prompt_still_skips_queues(self) -> None:
        """Two decodes would have left it in the second queue, where no 3 s fit."""
        assert self.level(committed=2) == QueueLevel(3, 0.75)

    def test_it_does_not_pass_those_that_had_as_much(self) -> None:
        """A new request comes before it."""
        worker = bench()
        worker.in_place("busy", prompt=10)
        worker.start("r", 2, prompt=20)
        worker.load("r", 2, committed=tuple(range(8)), max_new=20)
        worker.prefill("new", prompt=20)
        assert rows(worker.iterate(busy=STOP_TOKEN)) == ["new@1"]
        assert rows(worker.iterate(new=50)) == ["r@2"]


def record(choice_id: str, priority: int = 0, tenant: str = "") -> RequestRecord:
    """Return a record with a prompt of four tokens."""
    criteria = StopCriteria(10, (STOP_TOKEN,))
    return RequestRecord(
        choice_id, 1, "g", 1, "model", (1, 2, 3, 4), (), SamplingParams(), criteria, 0.0, priority, tenant
    )


class TestRecords:
    """Priority and tenant come from the client's record."""

    def test_priority_and_tenant_are_taken_over(self) -> None:
        """Before the record there are none."""
        sequence = Sequence("r", 1, StreamRef("g", 1), RequestState.WAITING, 0.0)
        assert (sequence.priority, sequence.tenant) == (0, "")
        sequence.load(record("r", -7, "acme"))
        assert (sequence.priority, sequence.tenant) == (-7, "acme")

    def test_the_lower_number_is_computed_first(self) -> None:
        worker = bench(Scheduling.PRIORITY)
        worker.prefill("busy", prompt=20)
        for choice_id, priority in (("later", 1), ("plain", 0), ("first", -1)):
            worker.start(choice_id, prompt=4)
            worker.feed(c.RecordLoaded(record(choice_id, priority)))
        order = [rows(worker.iterate(**{choice_id: STOP_TOKEN})) for choice_id in ("busy", "first", "plain")]
        assert order == [["first@1"], ["plain@1"], ["later@1"]]
