"""Grammars that take long to compile, at a worker: their sequences wait outside the batch, which goes on."""

from __future__ import annotations

from concurrent.futures import Future

from spotwise.core.requests.sampling import SamplingParams
from tests.unit.worker.summing_engine import expected_tokens
from tests.unit.worker.twin_mesh import TwinMesh, TwinWorker

PROMPT = (3, 1, 4, 1, 5, 9)


async def test_a_grammar_that_compiles_for_seconds_delays_its_own_sequence_alone(
    mesh: TwinMesh, worker: TwinWorker, other: TwinWorker
) -> None:
    """Sequences with and without grammars, added before and after it, get all their tokens meanwhile, also from a token worker
    where it waits; then it gets its own.
    """
    compiling = Future[None]()
    ready = Future[None]()
    ready.set_result(None)
    for each in (worker, other):
        each.engine.compiled = {"slow": compiling, "ready": ready}

    async def ask(number: int, grammar: str, to: str) -> None:
        sampling = SamplingParams(grammar=grammar)
        await mesh.write(f"r{number}", PROMPT, 9, attempt_id=number, sampling=sampling)
        await mesh.assign("w", to, f"r{number}", PROMPT, 9, attempt_id=number)

    await ask(1, "ready", "w")
    await ask(2, "slow", "w")
    await ask(3, "slow", "o")
    for number, (grammar, to) in enumerate([("", "w"), ("ready", "w"), ("", "o"), ("ready", "o")], start=4):
        await ask(number, grammar, to)
    for number in (1, 4, 5, 6, 7):
        await mesh.end_of(number)
        assert [delta.token_id for delta in mesh.deltas(number)] == expected_tokens(PROMPT, 9)
    assert not mesh.deltas(2) and not mesh.deltas(3)
    compiling.set_result(None)
    for number in (2, 3):
        await mesh.end_of(number)
        assert [delta.token_id for delta in mesh.deltas(number)] == expected_tokens(PROMPT, 9)
    await worker.idle()
    await other.idle()
