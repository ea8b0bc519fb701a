"""An engine that only takes the time, alone and of a group, and the words that it answers with."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.costs.cost_model import BatchShape, LinkCost
from spotwise.core.costs.cost_profile import MeasuredRange
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import Pooling, SampledToken, SamplingParams, TokenLogprobs
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.simulated.engine import SimulatedEngine
from spotwise.worker.simulated.groups.serve import SimulatedGroupEngine
from spotwise.worker.simulated.serving import read_words
from tests.contracts.waiting import until

WORDS = (5, 7, 11, 13, 17)
PROMPT = (1, 2, 3)


class NoCost:
    """Iterations that take no time; their shapes are kept."""

    def __init__(self) -> None:
        self.shapes: list[BatchShape] = []

    def iteration_s(self, shape: BatchShape) -> float:
        self.shapes.append(shape)
        return 0.0


def record(name: str = "r", **changes: Any) -> RequestRecord:
    """A request of three tokens."""
    plain = RequestRecord(name, 1, "g", 1, "m", PROMPT, (), SamplingParams(seed=9), StopCriteria(8), 0.0)
    return replace(plain, **changes)


def engine(cost: Any = None) -> SimulatedEngine:
    return SimulatedEngine(cost or NoCost(), WORDS, num_blocks=8, block_size=16, kv_bytes_per_token=4, name="nothing")


class Results:
    """The results of iterations, in order."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine = engine
        self.ended: list[tuple[SampledToken, ...] | Exception] = []

    async def run(self, *rows: BatchRow) -> Any:
        before = len(self.ended)
        self.engine.run_iteration(Batch(rows), self.ended.append, self.ended.append)
        await until(lambda: len(self.ended) > before)
        return self.ended[-1]

    async def answer(self, record: RequestRecord, count: int) -> list[int]:
        await self.engine.add_sequence(record)
        known = len(record.prompt_token_ids) + len(record.output_token_ids)
        tokens = []
        row = BatchRow(record.sequence_id, 0, known, (0,))
        for _ in range(count):
            (sampled,) = await self.run(row)
            tokens.append(sampled.token_id)
            row = BatchRow(record.sequence_id, known, 1, (0,))
            known += 1
        return tokens


async def test_tokens_are_words_and_the_same_wherever_they_are_drawn() -> None:
    """Seed and index make a token: another engine, and another attempt that has some already, gets the same."""
    tokens = await Results(engine()).answer(record(), 8)
    assert set(tokens) <= set(WORDS)
    assert len(set(tokens)) > 1
    assert await Results(engine()).answer(record("other"), 8) == tokens
    rest = await Results(engine()).answer(record(epoch=2, output_token_ids=tuple(tokens[:3])), 5)
    assert rest == tokens[3:]
    assert await Results(engine()).answer(record(sampling=SamplingParams(seed=10)), 8) != tokens


async def test_the_first_iteration_beyond_the_profile_is_logged() -> None:
    """Once for each figure of its range, and nothing of an engine whose profile has none."""
    measured = MeasuredRange(prompt_tokens=2, prompt_context=9.0, decodes=1, decode_context=5.0)
    limited = SimulatedEngine(NoCost(), WORDS, 8, 16, 4, "nothing", measured=measured)
    with capture_logs() as logs:
        await Results(limited).answer(record(), 6)
        await Results(engine()).answer(record(), 6)
    found = [(log["by"], log["measured"]) for log in logs if log["event"] == "cost_profile_exceeded"]
    assert found == [("prompt_tokens", 2), ("decode_context", 5.0)]


async def test_a_token_of_another_worker_counts() -> None:
    """The token worker continues behind the first token, which the prompt worker sampled."""
    tokens = await Results(engine()).answer(record(), 3)
    here = Results(engine())
    await here.engine.add_sequence(record())
    here.engine.append_token("r@1", tokens[0])
    (second,) = await here.run(BatchRow("r@1", 3, 1, (0,)))
    assert second.token_id == tokens[1]


async def test_stop_tokens_never_come() -> None:
    stop = StopCriteria(50, stop_token_ids=(5, 7, 11))
    assert set(await Results(engine()).answer(record(stop=stop), 50)) == {13, 17}
    with pytest.raises(ValueError, match="stop token"):
        await engine().add_sequence(record(stop=StopCriteria(1, stop_token_ids=WORDS)))


async def test_a_sequence_that_makes_no_sense_is_refused() -> None:
    """Twice the same, nothing to compute, or an embedding, of which there would be no model."""
    one = engine()
    await one.add_sequence(record())
    with pytest.raises(ValueError, match="here already"):
        await one.add_sequence(record())
    with pytest.raises(ValueError, match="empty prompt"):
        await one.add_sequence(record("empty", prompt_token_ids=()))
    with pytest.raises(ValueError, match="no hidden states"):
        await one.add_sequence(record("embedded", sampling=SamplingParams(pooling=Pooling.LAST)))
    assert one.num_sequences == 1
    one.drop_sequence("r@1")
    one.drop_sequence("r@1")
    assert one.num_sequences == 0


async def test_a_part_of_a_prompt_brings_no_token() -> None:
    results = Results(engine())
    sampling = SamplingParams(seed=9, logprobs=0, prompt_logprobs=1)
    await results.engine.add_sequence(record(sampling=sampling))
    assert await results.run(BatchRow("r@1", 0, 2, (0,))) == ()
    (first,) = await results.run(BatchRow("r@1", 2, 1, (0,)))
    assert first.logprobs == TokenLogprobs(0.0)
    assert first.prompt_logprobs is not None
    unscored, *scores = first.prompt_logprobs
    assert unscored is None
    assert [(each.logprob, len(each.top_token_ids), len(each.top_logprobs)) for each in scores if each] == [
        (0.0, 1, 1)
    ] * 2
    (second,) = await results.run(BatchRow("r@1", 3, 1, (0,)))
    assert second.prompt_logprobs is None


async def test_the_sequences_of_a_failed_batch_are_as_before() -> None:
    """An unknown sequence or position fails its batch as in the real engine; the other rows yield the same tokens later."""
    results = Results(engine())
    await results.engine.add_sequence(record())
    row = BatchRow("r@1", 0, 3, (0,))
    for unknown in (BatchRow("x@1", 0, 1, (0,)), BatchRow("r@1", 0, 9, (0,))):
        assert isinstance(await results.run(row, unknown), ValueError)
    (token,) = await results.run(row)
    fresh = Results(engine())
    await fresh.engine.add_sequence(record())
    assert (token,) == await fresh.run(row)


async def test_iterations_end_one_after_the_other_in_their_order() -> None:
    cost = NoCost()
    results = Results(engine(cost))
    for name in ("a", "b", "c"):
        await results.engine.add_sequence(record(name))
        batch = Batch((BatchRow(f"{name}@1", 0, 3, (0,)),))
        results.engine.run_iteration(batch, results.ended.append, results.ended.append)
    assert results.ended == []
    await until(lambda: len(results.ended) == 3)
    assert [sampled[0].sequence_id for sampled in results.ended if isinstance(sampled, tuple)] == ["a@1", "b@1", "c@1"]
    assert cost.shapes == [BatchShape(3, 4.5, 0, 0)] * 3


async def test_an_iteration_lasts_as_long_as_it_costs() -> None:
    """An iteration takes its cost at least, less what the one before it was late."""

    class Slow:
        def iteration_s(self, shape: BatchShape) -> float:
            return 0.05

    results = Results(engine(Slow()))
    await results.engine.add_sequence(record())
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await results.run(BatchRow("r@1", 0, 3, (0,)))
    await results.run(BatchRow("r@1", 3, 1, (0,)))
    assert loop.time() - began_s >= 0.09


async def test_nothing_ends_after_close() -> None:
    """Iterations that have begun are dropped as well."""
    results = Results(engine())
    await results.engine.add_sequence(record())
    for _ in range(2):
        batch = Batch((BatchRow("r@1", 0, 3, (0,)),))
        results.engine.run_iteration(batch, results.ended.append, results.ended.append)
    results.engine.close()
    await asyncio.sleep(0.02)
    assert results.ended == []


async def test_moves_of_kv_follow_one_another_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 64 bytes at 64 bytes a second, and a second before it: out after out, in beside them."""
    loop = asyncio.get_running_loop()
    timers: list[tuple[float, Any]] = []
    monkeypatch.setattr(loop, "time", lambda: 100.0)
    monkeypatch.setattr(loop, "call_at", lambda when, callback: timers.append((when, callback)))
    moving = SimulatedEngine(NoCost(), WORDS, 8, 16, 4, "nothing", 8, LinkCost(1.0, 64.0))
    assert moving.host_blocks == 8
    ended: list[Exception | None] = []
    moving.swap_out((0, 1), (4, 5), ended.append)
    moving.swap_out((2,), (6,), ended.append)
    moving.swap_in((7,), (3,), ended.append)
    moving.swap_in((), (), ended.append)
    assert [when for when, _ in timers] == [103.0, 105.0, 102.0, 102.0]
    timers[0][1]()
    assert ended == [None]
    moving.close()
    timers[1][1]()
    assert ended == [None]
    monkeypatch.undo()


def model_folder(folder: Path, tokenizer: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config or {}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("vocabulary", "special", "config", "words"),
    [
        (
            {"<s>": 0, "Ġthe": 1, "ing": 2, "Ġcat": 3, "ĠX9": 4, "Ġbeyond": 9, "Ġspecial": 5},
            [{"id": 5, "content": " special", "special": True}],
            {"vocab_size": 9},
            (1, 3),
        ),
        (
            [["<unk>", 0.0], ["▁hello", -1.0], ["▁world", -2.0], ["s", -3.0]],
            [],
            {"text_config": {"vocab_size": 4}},
            (1, 2),
        ),
        ({"a": 0, "b": 1, "</s>": 2}, [{"id": 2, "special": True}], {}, (0, 1)),
    ],
    ids=["behind a blank", "a unigram vocabulary", "all where there are none"],
)
def test_a_tokenizers_words_are_read(
    vocabulary: object, special: list[object], config: dict[str, Any], words: tuple[int, ...], tmp_path: Path
) -> None:
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": special}
    assert read_words(model_folder(tmp_path, tokenizer, config)) == words


def test_a_folder_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_words(tmp_path)
    with pytest.raises(ValueError, match=r"tokenizer\.json has no tokens"):
        read_words(model_folder(tmp_path, {"model": {"vocab": {}}}))


BATCH = Batch((BatchRow("r@1", 0, len(PROMPT), (0,)),))


class Group:
    """A group's engine, and what the role hears of it."""

    def __init__(self) -> None:
        self.engine = SimulatedGroupEngine(
            NoCost(), WORDS, 8, 16, kv_bytes_per_token=4, name="nothing", host_blocks=8, host_link=LinkCost(60.0, 1.0)
        )
        self.heard: list[str] = []
        self.engine.watch(self.heard.append, lambda: self.heard.append("whole"))


async def test_it_computes_nothing_before_its_group_is_whole() -> None:
    group = Group()
    assert group.heard == ["its group is not whole"]
    with pytest.raises(MeshError, match="not whole"):
        await group.engine.add_sequence(record())
    group.engine.formed((), 1, ())
    assert group.heard[1:] == ["whole"]
    await group.engine.add_sequence(record())
    ended: list[Any] = []
    group.engine.run_iteration(BATCH, ended.append, ended.append)
    await until(lambda: bool(ended))
    assert isinstance(ended[0][0], SampledToken)


async def test_a_lost_group_ends_what_it_does_without_results() -> None:
    """Swaps fail, iterations have no result, and no sequence is left; it is lost once."""
    group = Group()
    group.engine.formed((), 1, ())
    await group.engine.add_sequence(record())
    results: list[Any] = []
    swaps: list[Exception | None] = []
    group.engine.run_iteration(BATCH, results.append, results.append)
    group.engine.swap_out((1,), (2,), swaps.append)
    group.engine.lose("d1 is gone")
    group.engine.lose("d2 is gone")
    group.engine.run_iteration(BATCH, results.append, results.append)
    assert group.heard[2:] == ["d1 is gone"]
    assert [str(error) for error in swaps] == ["d1 is gone"]
    assert group.engine.num_sequences == 0
    group.engine.formed((), 2, ())
    await group.engine.add_sequence(record())
    group.engine.run_iteration(BATCH, results.append, results.append)
    await until(lambda: bool(results))
    assert len(results) == 1
