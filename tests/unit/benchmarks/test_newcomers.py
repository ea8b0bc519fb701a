"""Steady streams and newcomers beside long prompts: what is sent when, and the reports' rows."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from spotwise.benchmarks import newcomer_load, newcomers
from spotwise.benchmarks.contention import CoreUse
from spotwise.benchmarks.interference import (
    Interference,
    interference_figures,
    long_prompt_times,
    measure_interference,
)
from spotwise.benchmarks.newcomer_load import Newcomer, NewcomerShape, Situation, measure_newcomers
from spotwise.benchmarks.newcomers import NewcomerReading, _peer_program, newcomer_rows
from spotwise.cli.bench.completion import Answer, random_prompt
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError
from tests.unit.benchmarks.sse_gateway import HEAD, chunk, failing, gateway, refusing, whole
from tests.unit.benchmarks.sse_gateway import Answer as ServerAnswer

SHAPE = NewcomerShape(newcomer_tokens=(2, 5), long_tokens=50, output_tokens=2, after_s=0.05, repetitions=2)
#: Both warm-ups, and the long prompt alone.
BEFORE = [whole] * 3


async def at_once() -> None:
    """Wait for nothing."""


class LongPrompts:
    """A server's view: which long prompts' clients are there when a newcomer is answered."""

    def __init__(self) -> None:
        self.open = 0
        self.beside: list[int] = []
        self.waited_s: list[float] = []
        self._began_s = 0.0

    async def computed_for_ever(self, writer: asyncio.StreamWriter) -> None:
        """A long prompt's answer: no token until its client leaves."""
        self.open += 1
        self._began_s = asyncio.get_running_loop().time()
        writer.write(HEAD)
        while not writer.transport.is_closing():
            writer.write(chunk(b": wait\n\n"))
            await asyncio.sleep(0.002)
        self.open -= 1

    async def newcomer(self, writer: asyncio.StreamWriter) -> None:
        """A newcomer's answer, late enough to see that the long one's client has gone."""
        self.waited_s.append(asyncio.get_running_loop().time() - self._began_s)
        await asyncio.sleep(0.1)
        self.beside.append(self.open)
        await whole(writer)


def answers_of(long: LongPrompts) -> list[ServerAnswer]:
    return [long.newcomer, long.newcomer, *(long.computed_for_ever, long.newcomer) * 4]


async def test_each_newcomer_meets_its_situation() -> None:
    """Alone; while the long one is computed, whose client stays; and once its client has gone. Nothing is left behind."""
    long = LongPrompts()
    async with gateway(*BEFORE, *answers_of(long) * 2) as (url, bodies):
        measured = await measure_newcomers(ServerEndpoint(url, "any"), SHAPE, 7, settle=at_once)
        await asyncio.sleep(0.1)
    kinds = [(each.situation, each.prompt_tokens) for each in measured]
    once = [(situation, tokens) for situation in Situation for tokens in (2, 5)]
    assert kinds == [(Situation.ALONE, 50), *once, *once]
    assert long.beside == [0, 0, 1, 1, 0, 0] * 2
    assert long.open == 0
    assert min(waited_s for number, waited_s in enumerate(long.waited_s) if number % 6 > 1) > SHAPE.after_s / 2
    assert len(measured) == SHAPE.requests
    assert all(each.ttft_s > 0.1 for each in measured[1:])
    prompts = Counter(tuple(body["prompt"]) for body in bodies)
    assert max(prompts.values()) == 1, "a prompt that is sent twice may be answered from a cache"
    assert Counter(map(len, prompts)) == {2: 7, 5: 7, 50: 9}


async def test_every_server_gets_the_same_prompts() -> None:
    sent: list[list[list[int]]] = []
    for seed in (7, 7, 8):
        async with gateway(*BEFORE, *answers_of(LongPrompts()) * 2) as (url, bodies):
            await measure_newcomers(ServerEndpoint(url, "any"), SHAPE, seed, settle=at_once)
        sent.append([body["prompt"] for body in bodies])
    assert sent[0] == sent[1]
    assert all(ours != theirs for ours, theirs in zip(sent[0], sent[2], strict=True))
    assert sent[0][0] == random_prompt(random.Random(repr((7, 2, ("warm-up",)))), 2)


async def test_the_server_is_idle_before_each_newcomer_and_at_the_end() -> None:
    """So that no abandoned prompt slows down what is measured next, or is left to the next side."""
    settled: list[int] = []
    long = LongPrompts()

    async def settle() -> None:
        settled.append(len(long.beside))

    async with gateway(*BEFORE, *answers_of(long) * 2) as (url, _):
        await measure_newcomers(ServerEndpoint(url, "any"), SHAPE, 7, settle=settle)
    assert settled == [0, *range(13)]


async def test_a_long_prompt_that_is_too_short_is_an_error() -> None:
    """The newcomer would be alone; the error says what to change."""
    async with gateway(*BEFORE, *[whole] * 3) as (url, _):
        with pytest.raises(CommandError, match=r"answered within 0\.05 s.*--long-tokens.*--after"):
            await measure_newcomers(ServerEndpoint(url, "any"), SHAPE, 7, settle=at_once)


@pytest.mark.parametrize(("answer", "message"), [(failing, "a stream failed: lost"), (refusing, "status 429")])
@pytest.mark.parametrize("place", ["warm-up", "long prompt", "newcomer"])
async def test_a_request_that_fails_ends_the_run(answer: ServerAnswer, message: str, place: str) -> None:
    answers = {
        "warm-up": [answer],
        "long prompt": [*BEFORE, whole, whole, answer],
        "newcomer": [*BEFORE, whole, whole, LongPrompts().computed_for_ever, answer],
    }
    async with gateway(*answers[place]) as (url, _):
        with pytest.raises(CommandError, match=message):
            await measure_newcomers(ServerEndpoint(url, "any"), SHAPE, 7, settle=at_once)


async def test_a_busy_server_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its processes take next to no time of a core; one that never ends is an error."""
    used_s = iter([0.0, 1.0, 2.0, 2.01])

    def sample(own: Mapping[tuple[int, float], float], at_s: float) -> CoreUse:
        return CoreUse(at_s, 2, 0.0, 0.0, 0.0, own)

    times_s = iter(range(10))
    monkeypatch.setattr(CoreUse, "so_far", lambda: sample({(1, 0.0): next(used_s)}, float(next(times_s))))
    monkeypatch.setattr(newcomer_load, "_LOOK_S", 0.0)
    await newcomer_load._until_idle()
    assert next(used_s, None) is None
    busy_s = iter(range(1000))
    monkeypatch.setattr(CoreUse, "so_far", lambda: sample({(1, 0.0): float(at_s := next(busy_s))}, 1e9 + at_s))
    with pytest.raises(CommandError, match="still computes"):
        await newcomer_load._until_idle()


def readings(side: str, ttft_s: Mapping[tuple[Situation, int], list[float]]) -> list[NewcomerReading]:
    return [
        NewcomerReading(1, side, Newcomer(situation, tokens, each))
        for (situation, tokens), values in ttft_s.items()
        for each in values
    ]


def test_rows_are_p50_maximum_and_ratio_to_the_idle_server() -> None:
    shape = NewcomerShape(newcomer_tokens=(100,), long_tokens=7000)
    ours = {
        (Situation.ALONE, 100): [0.1, 0.2, 0.3],
        (Situation.BESIDE, 100): [0.5, 0.4, 0.9],
        (Situation.ABANDONED, 100): [0.2, 0.2, 0.8],
        (Situation.ALONE, 7000): [9.0, 7.0],
    }
    theirs = {kind: [2 * each for each in values] for kind, values in ours.items()}
    theirs[Situation.BESIDE, 100] = [8.0]
    alone = readings("spotwise", ours)
    rows = newcomer_rows(shape, [*alone, *readings("vllm-tuned", theirs)])
    figures = {row.name: (row.ours, row.reference) for row in rows}
    beside = "100 tokens while the long prompt is computed: TTFT"
    assert figures[f"{beside} p50, ms"] == pytest.approx((500.0, 8000.0))
    assert figures[f"{beside} max, ms"] == pytest.approx((900.0, 8000.0))
    assert figures[f"{beside} p50 over that alone"] == pytest.approx((2.5, 20.0))
    assert figures["100 tokens alone: TTFT p50, ms"] == pytest.approx((200.0, 400.0))
    assert figures["100 tokens once the long prompt's client has gone: TTFT p50 over that alone"] == pytest.approx(
        (1.0, 1.0)
    )
    assert figures["7,000 tokens alone: TTFT max, ms"] == pytest.approx((9000.0, 18000.0))
    assert len(rows) == 10
    assert [(row.ours, row.reference) for row in newcomer_rows(shape, alone)] == [(row.ours, None) for row in rows]


def test_an_absent_peer_is_left_out_unless_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    console = Console(record=True, width=300)
    assert _peer_program(None, console) is None
    assert "scripts/peer.sh" in console.export_text()
    with pytest.raises(CommandError, match=r"scripts/peer\.sh"):
        _peer_program(tmp_path / "nowhere", console)
    program = tmp_path / ".cache" / "spotwise-peer" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    program.with_name("python").touch(mode=0o755)
    assert _peer_program(None, console) == program


def test_rounds_take_turns_and_the_peer_serves_as_the_mesh_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same dtype and prompts, a context that holds the long prompt; the report has every reading."""
    started: list[tuple[str, Mapping[str, object]]] = []
    seeds: list[tuple[str, int]] = []

    @contextmanager
    def mesh(arguments: Sequence[str]) -> Iterator[ServerEndpoint]:
        started.append(("mesh", {"dtype": arguments[arguments.index("--dtype") + 1], "more": arguments[-1]}))
        yield ServerEndpoint("mesh", "any")

    @contextmanager
    def peer(vllm: Path, model_folder: Path, arguments: Sequence[str], **more: object) -> Iterator[ServerEndpoint]:
        started.append(("peer", {**more, "arguments": tuple(arguments)}))
        yield ServerEndpoint("peer", "any")

    async def measure(
        endpoint: ServerEndpoint, shape: NewcomerShape, seed: int, answered: Callable[[], object]
    ) -> list[Newcomer]:
        seeds.append((endpoint.url, seed))
        kinds = [(situation, tokens) for situation in Situation for tokens in shape.newcomer_tokens]
        return [Newcomer(*kind, 0.5) for kind in (*kinds, (Situation.ALONE, shape.long_tokens))]

    program = tmp_path / "vllm"
    for name in ("vllm", "python"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(newcomers, "running_mesh", mesh)
    monkeypatch.setattr(newcomers, "running_vllm", peer)
    monkeypatch.setattr(newcomers, "measure_newcomers", measure)
    monkeypatch.setattr(newcomers, "resolve_with_progress", lambda *_, **__: SimpleNamespace(name="any", path=tmp_path))
    app = typer.Typer()
    app.command()(newcomers.newcomers)
    report = tmp_path / "report.json"
    arguments = [
        "--vllm",
        str(program),
        "--json",
        str(report),
        "--rounds",
        "2",
        "--long-tokens",
        "900",
        "--up-args",
        "--mixed-workers 1",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert [side for side, _ in started] == ["mesh", "peer", "peer", "mesh"]
    ours, theirs = dict(started)["mesh"], dict(started)["peer"]
    assert ours["more"] == "1"
    assert theirs == {"dtype": ours["dtype"], "context_tokens": 1008, "arguments": ("--max-num-batched-tokens", "256")}
    assert seeds == [("mesh", 1001), ("peer", 1001), ("peer", 1002), ("mesh", 1002)]
    document = orjson.loads(report.read_bytes())
    assert len(document["rounds"]) == 4 * 7
    assert {row["ratio"] for row in document["rows"]} == {1.0}
    assert document["environment"]["cpu"] in result.output.replace("\n", " ")


SHORT = Interference(
    steady_streams=2,
    steady_input_tokens=3,
    steady_output_tokens=2,
    long_input_tokens=9,
    long_output_tokens=2,
    every_s=0.05,
    seconds=0.12,
)


def test_long_prompts_come_at_fixed_times() -> None:
    assert long_prompt_times(Interference(every_s=2.0, seconds=6.0)) == [0.0, 2.0, 4.0]
    assert long_prompt_times(Interference(every_s=2.0, seconds=6.5)) == [0.0, 2.0, 4.0, 6.0]
    assert long_prompt_times(Interference(every_s=2.0, seconds=0.5)) == [0.0]
    assert len(long_prompt_times(Interference())) == 20


def test_figures_are_gaps_of_steady_streams_and_first_chunks_of_long_prompts() -> None:
    """A gap does not span two answers; the long prompts' own gaps do not count."""
    steady = [
        Answer(0.0, (1.0, 1.01, 1.03), 3),
        Answer(5.0, (5.5, 5.54), 4),
    ]
    long = [Answer(0.0, (2.0, 9.0), 2), Answer(2.0, (5.0, 9.5), 2), Answer(4.0, (5.0,), 1)]
    figures = interference_figures(steady, long)
    assert figures["itl_p50_ms"] == pytest.approx(20.0)
    assert figures["itl_p99_ms"] == figures["itl_max_ms"] == pytest.approx(40.0)
    assert (figures["long_ttft_p50_ms"], figures["long_ttft_p99_ms"]) == (2000.0, 3000.0)
    assert (figures["steady_requests"], figures["long_requests"]) == (2, 3)
    assert figures["chunks_per_token"] == pytest.approx(5 / 7)


async def test_every_server_gets_the_same_steady_prompts() -> None:
    async with gateway(*[whole] * 10_000) as (url, bodies):
        figures = await measure_interference(ServerEndpoint(url, "any"), SHORT, seed=5)
    sent = [body["prompt"] for body in bodies]
    long = [random_prompt(random.Random(repr((5, ("long", number)))), 9) for number in range(3)]
    first = [random_prompt(random.Random(repr((5, ("steady", index, 0)))), 3) for index in range(2)]
    assert [prompt for prompt in sent if len(prompt) == 9] == long
    assert [prompt in sent for prompt in first] == [True, True]
    assert (figures["steady_requests"], figures["long_requests"]) == (len(sent) - 3, 3)


@pytest.mark.parametrize(("answer", "message"), [(failing, "a stream failed: lost"), (refusing, "status 429")])
async def test_a_server_that_fails_ends_the_run(answer: ServerAnswer, message: str) -> None:
    async with gateway(*[answer] * 100) as (url, _):
        with pytest.raises(CommandError, match=message):
            await measure_interference(ServerEndpoint(url, "any"), SHORT, seed=5)
