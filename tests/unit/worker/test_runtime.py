"""A worker at work: the role's commands performed on an engine, a store, a bus and a transfer plane."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages import mesh as m
from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import TOO_LARGE, SamplingParams
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.engine.native.build import variant_for_this_processor
from spotwise.mesh.ports.ports import MeshError, PayloadTooLargeError
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from spotwise.worker.runtime import GOODBYE_AFTER_S, _smaller_parts
from tests.contracts.waiting import PATIENCE_S, until
from tests.unit.worker.summing_engine import BLOCKS, expected_tokens
from tests.unit.worker.twin_mesh import TwinMesh, TwinWorker

PROMPT = (3, 1, 4, 1, 5, 9)


async def test_a_prompt_is_handed_to_the_token_worker(mesh: TwinMesh, worker: TwinWorker, other: TwinWorker) -> None:
    """The first token comes from the one, the rest from the other, as from one alone; nothing is left in either."""
    await mesh.assign("w", "o", "r", PROMPT, 9, attempt_id=1)
    end = await mesh.end_of(1)
    assert await mesh.tokens(1) == expected_tokens(PROMPT, 9)
    assert [delta.token_index for delta in mesh.deltas(1)] == list(range(9))
    assert mesh.senders(1) == ["w"] + ["o"] * 8
    assert end.finish_reason is FinishReason.LENGTH
    await worker.idle()
    await other.idle()
    assert (len(worker.engine.batch_sizes), len(other.engine.batch_sizes)) == (1, 8)
    description = worker.runtime.description()
    assert (description.member.id, description.engine_sequences, description.iterations) == ("w", 0, 1)


@pytest.mark.parametrize("limits", [BatchLimits(), BatchLimits(4, 12, 5)], ids=["whole", "in parts"])
async def test_a_prompt_leaves_while_it_is_computed(mesh: TwinMesh, limits: BatchLimits) -> None:
    """Prompts whole or in parts, several at once, two of which begin alike: the same tokens; the ledger names the way."""
    mesh.policy = WorkerPolicy(limits, kv_push=ConfiguredPushMode.LAYERWISE)
    prompts = {1: PROMPT * 3, 2: PROMPT * 2, 3: (7, 7), 4: tuple(range(40, 48))}
    async with mesh.worker("w") as worker, mesh.worker("o") as other:
        for number, prompt in prompts.items():
            await mesh.assign("w", "o", f"r{number}", prompt, 5, attempt_id=number)
        for number, prompt in prompts.items():
            assert await mesh.tokens(number) == expected_tokens(prompt, 5)
        await worker.idle()
        await other.idle()
        reported: list[m.LedgerEntry] = []
        while not reported:  # written with the next heartbeats
            reported = [entry for entry in await mesh.store.get_ledger("r1") if entry.stage == "handed_off"]
            await asyncio.sleep(0.005)
    facts = dict(reported[0].facts)
    assert facts["mode"] == "layerwise"
    assert float(facts["visible_s"]) > 0.0


async def test_a_prompt_that_is_cancelled_while_it_leaves_is_let_go(mesh: TwinMesh) -> None:
    mesh.policy = WorkerPolicy(kv_push=ConfiguredPushMode.LAYERWISE)
    async with mesh.worker("w") as worker, mesh.worker("o") as other:
        worker.engine.gate.clear()
        await mesh.assign("w", "o", "r", PROMPT, 5, attempt_id=1)
        await until(worker.engine.at_work.is_set)
        await mesh.order("w", m.CancelRequest("r", 1))
        await other.idle()
        worker.engine.gate.set()
        await worker.idle()
    assert mesh.deltas(1) == []


async def test_a_worker_describes_its_engine(worker: TwinWorker, other: TwinWorker) -> None:
    """Number format, device; on a CPU whether native kernels are in use, of which kind and how far; on a GPU what else is."""
    assert worker.runtime.description().kv_bytes_per_token == worker.engine.kv_bytes_per_token
    assert worker.runtime.description().engine == "uint8 on cpu, no native kernels"
    worker.engine.is_native, worker.engine.fused_layers = True, 30
    kind = variant_for_this_processor().name
    assert worker.runtime.description().engine == f"uint8 on cpu, native {kind}, 30 fused layers"
    other.engine.device = "cuda:0"
    assert other.runtime.description().engine == "uint8 on cuda:0, no attention"
    other.engine.graphs = SimpleNamespace(off=False, recorded=3)
    assert other.runtime.description().engine == "uint8 on cuda:0, no attention, 3 decode graphs"
    other.engine.adapters = (AdapterRef("law", "1"), AdapterRef("poems", "2"))
    assert other.runtime.description().engine.endswith("3 decode graphs, adapters law, poems")
    other.engine.adapters = ()
    other.engine.graphs.off = True
    assert other.runtime.description().engine == "uint8 on cuda:0, no attention"


async def test_a_change_of_home_is_in_the_next_heartbeat(mesh: TwinMesh, worker: TwinWorker) -> None:
    """A new home pool is in the registration, for schedulers that start later, and the worker continues to serve."""
    assert worker.host.member.pool is m.Pool.MIXED
    await mesh.order("w", m.ChangeHomePool("w", m.Pool.PROMPT))
    await until(lambda: worker.host.member.pool is m.Pool.PROMPT)
    await mesh.assign("w", "w", "r", PROMPT, 3, attempt_id=1)
    assert await mesh.tokens(1) == expected_tokens(PROMPT, 3)
    await worker.idle()


async def test_many_at_once_in_both_directions_stay_apart(
    mesh: TwinMesh, worker: TwinWorker, other: TwinWorker
) -> None:
    prompts = {number: tuple((number * 7 + k) % 200 for k in range(1 + number % 5)) for number in range(12)}
    routes = [("w", "o"), ("o", "w"), ("w", "w"), ("o", "o")]
    await asyncio.gather(
        *(
            mesh.assign(*routes[number % 4], f"r{number}", prompt, 5 + number % 3, attempt_id=number)
            for number, prompt in prompts.items()
        )
    )
    for number, prompt in prompts.items():
        assert await mesh.tokens(number) == expected_tokens(prompt, 5 + number % 3)
    await worker.idle()
    await other.idle()


async def test_the_ledger_has_each_stage_with_its_worker(mesh: TwinMesh, worker: TwinWorker, other: TwinWorker) -> None:
    await mesh.assign("w", "o", "r", PROMPT, 3, attempt_id=1)
    await mesh.end_of(1)
    ledger: list[m.LedgerEntry] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(ledger) < 4:  # written with the next heartbeats
            ledger = await mesh.store.get_ledger("r")
            await asyncio.sleep(0.005)
    reported = {entry.stage: (entry.member_id, dict(entry.facts)) for entry in ledger}
    assert {stage: member for stage, (member, _) in reported.items()} == {
        "prefilled": "w",
        "handed_off": "w",
        "kv_received": "o",
        "decoded": "o",
    }
    two_blocks = 2 * worker.engine.kv.layer_block_bytes * worker.engine.kv.num_layers
    assert reported["handed_off"][1]["kv_bytes"] == reported["kv_received"][1]["kv_bytes"] == two_blocks


@pytest.mark.parametrize("written", [False, True], ids=["no record", "an older attempt's"])
async def test_a_request_without_its_record_fails_and_may_be_tried_again(
    mesh: TwinMesh, worker: TwinWorker, written: bool
) -> None:
    """The gateway gets a retryable error, and the reservation is released."""
    if written:
        await mesh.write("r", PROMPT, 3, attempt_id=1)
    stream = m.StreamRef("gateway", 1)
    await mesh.order("w", m.ReserveKv("r", 2, stream, "scheduler", 1, 9, 3, 5.0))
    end = await mesh.end_of(1)
    assert (end.token_id, end.finish_reason, end.retryable) == (None, FinishReason.ERROR, True)
    assert "record is gone" in end.error
    await worker.idle()


async def test_a_store_that_is_away_fails_the_request_and_not_the_worker(
    mesh: TwinMesh, worker: TwinWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(choice_id: str) -> None:
        raise MeshError("Redis: connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(mesh.store, "get_record", away)
        await mesh.reserve("w", "r", 6, 3, attempt_id=1)
        end = await mesh.end_of(1)
    assert (end.error, end.retryable) == ("Redis: connection refused", True)
    await mesh.assign("w", "w", "next", PROMPT, 3, attempt_id=2)
    assert (await mesh.end_of(2)).finish_reason is FinishReason.LENGTH


async def test_what_the_engine_refuses_is_not_tried_again(mesh: TwinMesh, worker: TwinWorker) -> None:
    await mesh.write("r", (1, 255), 3, attempt_id=1)
    await mesh.reserve("w", "r", 4, 1, attempt_id=1)
    end = await mesh.end_of(1)
    assert (end.error, end.retryable) == ("a token id outside 0..254", False)
    await worker.idle()


async def test_an_iteration_that_fails_once_costs_no_token(mesh: TwinMesh, worker: TwinWorker) -> None:
    worker.engine.failures.append(RuntimeError("out of memory"))
    await mesh.assign("w", "w", "r", PROMPT, 3, attempt_id=1)
    assert await mesh.tokens(1) == expected_tokens(PROMPT, 3)
    await worker.idle()


async def test_an_iteration_that_fails_again_gives_its_sequence_back_and_the_worker_continues(
    mesh: TwinMesh, worker: TwinWorker
) -> None:
    worker.engine.failures += [RuntimeError("out of memory"), RuntimeError("out of memory")]
    await mesh.assign("w", "w", "r", PROMPT, 3, attempt_id=1)
    end = await mesh.end_of(1)
    assert (end.finish_reason, end.retryable, end.suspects) == (FinishReason.ERROR, True, ("w",))
    assert "RuntimeError: out of memory" in end.error
    await worker.idle()
    await mesh.assign("w", "w", "next", PROMPT, 3, attempt_id=2)
    assert await mesh.tokens(2) == expected_tokens(PROMPT, 3)


async def test_a_hand_off_to_a_worker_that_is_gone_may_be_tried_again(
    mesh: TwinMesh, worker: TwinWorker, other: TwinWorker
) -> None:
    """The gateway has the first token and gets a retryable error; the prompt worker keeps nothing."""
    worker.engine.gate.clear()
    await mesh.assign("w", "o", "r", PROMPT, 3, attempt_id=1)
    await other.transport.close()
    worker.engine.gate.set()
    end = await mesh.end_of(1)
    assert await mesh.tokens(1) == [*expected_tokens(PROMPT, 1), None]
    assert (end.token_index, end.finish_reason, end.retryable) == (1, FinishReason.ERROR, True)
    assert "the KV hand-off failed" in end.error
    assert end.suspects == ("w", "o")
    await worker.idle()
    await other.idle()


async def test_a_cancelled_request_is_dropped_wherever_it_is(
    mesh: TwinMesh, worker: TwinWorker, other: TwinWorker
) -> None:
    worker.engine.gate.clear()
    await mesh.assign("w", "o", "r", PROMPT, 3, attempt_id=1)
    await until(lambda: worker.runtime.role.load().running)
    for worker_id in ("w", "o"):
        await mesh.order(worker_id, m.CancelRequest("r", 1))
    worker.engine.gate.set()
    await worker.idle()
    await other.idle()
    assert mesh.deltas(1) == []


async def test_a_deadline_is_judged_by_a_clock_that_was_set_right(mesh: TwinMesh, worker: TwinWorker) -> None:
    """It was an hour ahead when the worker began, and would have every deadline be over; what is over is logged and counted."""
    mesh.clock.ahead_s = -3600.0
    await mesh.assign("w", "w", "r", PROMPT, 3, attempt_id=1, deadline_unix_s=mesh.clock.wall() + 60.0)
    assert await mesh.tokens(1) == expected_tokens(PROMPT, 3)
    with capture_logs() as logs:
        await mesh.assign("w", "w", "late", PROMPT, 3, attempt_id=2, deadline_unix_s=mesh.clock.wall())
        await until(lambda: any(each["event"] == "deadline_passed" for each in logs))
    assert worker.host.metrics.registry.get_sample_value("spotwise_deadlines_passed_total") == 1
    await worker.idle()


async def test_scores_too_large_to_send_end_their_stream_only(mesh: TwinMesh, worker: TwinWorker) -> None:
    """Two of the sequences of a batch have more log-probabilities than a message holds, one of them by itself: the others lose
    nothing.

    The first generates for many more turns of the loop than the others' records take to load, so they do join it.
    """
    mesh.broker.max_payload_bytes = 2000
    worker.engine.gate.clear()
    large, small = SamplingParams(prompt_logprobs=100), SamplingParams(prompt_logprobs=20)
    requests = {"a": (1, 40, SamplingParams()), "b": (2, 8, large), "c": (3, 8, small), "d": (4, 8, SamplingParams())}
    for choice_id, (attempt_id, count, sampling) in requests.items():
        await mesh.assign("w", "w", choice_id, PROMPT, count, attempt_id, sampling=sampling)
        await until(worker.engine.at_work.is_set)
    worker.engine.gate.set()
    end = await mesh.end_of(2)
    assert (end.token_id, end.finish_reason, end.retryable) == (None, FinishReason.ERROR, False)
    assert end.error.startswith(TOO_LARGE)
    assert "2000 bytes" in end.error
    for attempt_id, count in ((1, 40), (3, 8), (4, 8)):
        assert await mesh.tokens(attempt_id) == expected_tokens(PROMPT, count)
    assert [len(delta.prompt_logprobs or ()) for delta in mesh.deltas(3)] == [
        len(PROMPT)
    ] * 8  # this engine repeats them
    numbers = [each.number for each in mesh.received if isinstance(each, m.TokenBatch) and end in each.deltas]
    parts = [each for each in mesh.received if isinstance(each, m.TokenBatch) and [each.number] == numbers]
    assert {delta.attempt_id for part in parts for delta in part.deltas} == {1, 2, 3, 4}
    await worker.idle()


def test_an_embedding_beyond_the_brokers_limit_ends_its_attempt_alone() -> None:
    """With the reason; the others' tokens stay, in a batch of the same number."""
    plain = m.TokenDelta(1, 0, 5)
    large = m.TokenDelta(2, 0, 6, FinishReason.LENGTH, embedding=(0.5,) * 1000)
    kept, alone = _smaller_parts(m.TokenBatch("w", (plain, large), number=3), "2000 bytes")
    assert (kept, alone) == (m.TokenBatch("w", (plain,), number=3), m.TokenBatch("w", (large,), number=3))
    ((ended,),) = (part.deltas for part in _smaller_parts(alone, "2000 bytes"))
    assert (ended.attempt_id, ended.token_id, ended.finish_reason) == (2, None, FinishReason.ERROR)
    assert ended.error == f"{TOO_LARGE}: 2000 bytes"
    with pytest.raises(PayloadTooLargeError):
        _smaller_parts(m.TokenBatch("w", (ended,)), "2000 bytes")


async def test_a_worker_that_has_computed_prompts_reports_it_before_its_turn(mesh: TwinMesh) -> None:
    """Once for a prompt; tokens that follow are no news. The next regular heartbeat is further off than this test lasts."""
    mesh.heartbeat_s = 10 * PATIENCE_S
    async with mesh.worker("w") as worker:
        await until(lambda: m.MemberState.READY in mesh.states("w"))
        before = len(mesh.beats("w"))
        await mesh.assign("w", "w", "r", PROMPT, 40, attempt_id=1)
        await until(lambda: len(mesh.beats("w")) > before)
        await mesh.end_of(1)
        await worker.idle()
        (news,) = mesh.beats("w")[before:]
    assert news.load is not None
    assert (news.load.prompts_in_place, news.load.assignments_seen) == (0, (("scheduler", 1),))


# --- drain ------------------------------------------------------------------------------------------------------------


async def drain(mesh: TwinMesh, worker_id: str, in_s: float) -> None:
    await mesh.bus.publish(subjects.NOTICES, encode(m.Drain(worker_id, mesh.clock.now() + in_s, "test")))


async def test_a_drained_worker_finishes_what_runs_and_leaves(mesh: TwinMesh, worker: TwinWorker) -> None:
    worker.engine.gate.clear()
    await mesh.assign("w", "w", "r", PROMPT, 4, attempt_id=1)
    await drain(mesh, "w", in_s=60.0)
    await until(lambda: m.MemberState.DRAINING in mesh.states("w"))
    await mesh.reserve("w", "late", 4, 1, attempt_id=2)
    assert (await mesh.message_of(m.KvRefused, "late")).reason == "draining"
    worker.engine.gate.set()
    assert await mesh.tokens(1) == expected_tokens(PROMPT, 4)
    assert worker.served is not None
    assert not worker.served.done()  # news of the drain may still be on its way
    mesh.clock.advance(1.0)
    await until(worker.served.done)


async def test_a_stop_signal_drains_a_worker_that_has_time_for_it(mesh: TwinMesh, worker: TwinWorker) -> None:
    """Its heartbeats say until when it stays; what runs gets every token, and then it stops."""
    worker.runtime.drain_on_stop(20.0)
    worker.engine.gate.clear()
    await mesh.assign("w", "w", "r", PROMPT, 4, attempt_id=1)
    await until(worker.engine.at_work.is_set)
    worker.host.leave()
    await until(lambda: mesh.beats("w")[-1].state is m.MemberState.DRAINING)
    assert mesh.beats("w")[-1].leaves_at_s == mesh.clock.now() + 20.0
    worker.engine.gate.set()
    assert await mesh.tokens(1) == expected_tokens(PROMPT, 4)
    mesh.clock.advance(1.0)
    assert worker.served is not None
    await until(worker.served.done)


async def test_its_goodbye_comes_some_time_after_its_last_tokens(mesh: TwinMesh, worker: TwinWorker) -> None:
    """A gateway hears the two on different subscriptions, and would take what it has not read yet for lost."""
    worker.engine.gate.clear()
    await mesh.assign("w", "w", "r", PROMPT, 2, attempt_id=1)
    await until(worker.engine.at_work.is_set)
    await drain(mesh, "w", in_s=60.0)
    await until(lambda: m.MemberState.DRAINING in mesh.states("w"))
    mesh.clock.advance(2.0)
    worker.engine.gate.set()
    await mesh.end_of(1)
    ended_s = asyncio.get_running_loop().time()
    assert worker.served is not None
    await worker.served
    assert asyncio.get_running_loop().time() - ended_s >= GOODBYE_AFTER_S / 2


async def test_without_such_time_a_stop_signal_ends_it_at_once(mesh: TwinMesh, worker: TwinWorker) -> None:
    """Whatever it holds."""
    worker.runtime.drain_on_stop(0.0)
    await mesh.write("r", PROMPT, 3, attempt_id=1)
    await mesh.reserve("w", "r", 6, 3, attempt_id=1)
    await mesh.message_of(m.KvReserved, "r")
    worker.host.leave()
    assert worker.served is not None
    await until(worker.served.done)
    assert m.MemberState.DRAINING not in mesh.states("w")


async def test_what_runs_at_the_deadline_is_given_back(mesh: TwinMesh, worker: TwinWorker) -> None:
    await mesh.write("r", PROMPT, 3, attempt_id=1)
    await mesh.reserve("w", "r", 6, 3, attempt_id=1)
    await mesh.message_of(m.KvReserved, "r")
    await drain(mesh, "w", in_s=3.0)
    await until(lambda: worker.runtime.role.state is m.MemberState.DRAINING)
    mesh.clock.advance(3.0)
    end = await mesh.end_of(1)
    assert (end.error, end.retryable) == ("the worker had to leave", True)
    assert worker.served is not None
    await until(worker.served.done)
    assert worker.runtime.role.load().kv_blocks_free == BLOCKS
