"""What a worker counts for its gateways, and how it forgets one."""

from __future__ import annotations

from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from spotwise.core.worker.sequences.token_side import FIRST_TERM
from tests.unit.core.builders import sent
from tests.unit.core.worker.bench import HERE, LEASE_S, WorkerBench

REPLACED = m.ForgetGateway("g", 0)


def batches(commands: list[c.WorkerCommand], gateway: str = "g") -> list[m.TokenBatch]:
    return [message for message in sent(commands, gateway) if isinstance(message, m.TokenBatch)]


def decoding(*choice_ids: str, gateway: str = "g") -> WorkerBench:
    """Return a bench with requests of the given gateway whose prompts were computed on this worker."""
    bench = WorkerBench()
    for choice_id in choice_ids:
        bench.start(choice_id, target=HERE, gateway=gateway)
        bench.load(choice_id)
        bench.iterate(**{choice_id: 50})
    return bench


class TestCounting:
    """The count of sent batches lets a gateway detect a missing one."""

    def test_batches_have_a_number_and_their_sender(self) -> None:
        """A batch of tokens has the worker's id and incarnation, and numbers begin with 1."""
        bench = decoding("r")
        (batch,) = batches(bench.iterate(r=51))
        assert (batch.worker_id, batch.incarnation, batch.number) == ("w", 9, 2)

    def test_each_gateway_has_a_count_of_its_own(self) -> None:
        bench = decoding("a")
        bench.start("b", target=HERE, gateway="h")
        bench.load("b")
        commands = bench.iterate(a=51, b=50)
        assert [batch.number for batch in batches(commands)] == [2]
        assert [batch.number for batch in batches(commands, "h")] == [1]

    def test_heartbeats_count_the_batches_sent(self) -> None:
        bench = decoding("r")
        bench.iterate(r=51)
        assert bench.role.load().gateways == (m.GatewayStreams("g", 0, 2),)

    def test_a_gateway_is_reported_while_it_has_a_sequence_here(self, bench: WorkerBench) -> None:
        """One whose only sequence has ended is not, even while the engine uses its blocks."""
        assert bench.role.load().gateways == ()
        bench.start("r", target=HERE)
        bench.load("r")
        assert bench.role.load().gateways == (m.GatewayStreams("g", 0, 0),)
        bench.feed(m.CancelRequest("r", 1))
        assert bench.role.num_sequences == 1
        assert bench.role.load().gateways == ()
        bench.start("s", target=HERE)
        bench.iterate()
        assert bench.role.num_sequences == 1
        assert bench.role.load().gateways == (m.GatewayStreams("g", 0, 0),)

    def test_tokens_go_to_the_requesting_incarnation_only(self, bench: WorkerBench) -> None:
        """Tokens are addressed to the incarnation that sent the request, since its successor has another inbox."""
        stream = m.StreamRef("g", 1, incarnation=7)
        bench.prompt_tokens["r"] = 30
        bench.feed(m.StartPrefill("r", 1, stream, "s", 1, 30, HERE, LEASE_S, 10))
        bench.load("r")
        reported = [command for command in bench.iterate(r=50) if isinstance(command, m.Send)]
        assert [(command.recipient_id, command.incarnation) for command in reported] == [("g", 7)]


class TestForgetting:
    """A gateway that is gone gets nothing more computed."""

    def test_its_sequences_end_and_their_blocks_come_free(self) -> None:
        bench = decoding("r")
        bench.start("other", target=HERE, gateway="h")
        bench.load("other")
        bench.iterate(r=51, other=50)
        bench.feed(REPLACED)
        bench.iterate(other=51)
        assert [streams.gateway_id for streams in bench.role.load().gateways] == ["h"]
        assert bench.role.load().running == 1

    def test_a_gateway_that_is_back_after_all_gets_the_errors(self) -> None:
        """A gateway that was away for long gets the errors of its streams, and batches are numbered from 1 again."""
        bench = decoding("r")
        (batch,) = batches(bench.feed(REPLACED))
        assert (batch.deltas[0].retryable, batch.number) == (True, 2)
        assert bench.role.load().gateways == ()

    def test_a_later_incarnation_keeps_its_requests(self, bench: WorkerBench) -> None:
        """The order names which one is gone."""
        bench.prompt_tokens["r"] = 30
        bench.feed(m.StartPrefill("r", 1, m.StreamRef("g", 1, incarnation=7), "s", 1, 30, HERE, LEASE_S, 10))
        assert bench.feed(m.ForgetGateway("g", 6)) == []
        assert bench.role.load().waiting == 1


class TestTimeAway:
    """A lease does not expire while the worker can receive no message."""

    def test_a_lease_is_put_off(self, bench: WorkerBench) -> None:
        bench.reserve("r")
        assert bench.feed(m.Tick(away_s=30.0), after_s=30.0) == []
        assert bench.tick(after_s=FIRST_TERM * LEASE_S - 0.1) == []
        assert batches(bench.tick(after_s=0.2)) != []
