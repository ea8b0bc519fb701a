"""`spotwise profile`: measures a worker's costs on this machine, as a profile for simulations."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
import uvloop
from rich.table import Table

from spotwise.cli.bench.completion import random_prompt, run_completion
from spotwise.cli.bench.report import environment, progress_bar, report_console, require_writable
from spotwise.cli.bench.servers import SPLIT_ALWAYS, MeshEndpoint, mesh_of
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.access import open_store, operator_access
from spotwise.cli.mesh.status_table import gather_status
from spotwise.core.costs.cost_fit import fit_iterations, fit_link
from spotwise.core.costs.cost_model import IterationTime, PiecewiseLinear, TableIterationCost
from spotwise.core.costs.cost_profile import USUAL_MESSAGE_S, CostProfile, MeasuredRange
from spotwise.core.messages.members import Member
from spotwise.files.cost_profile import profile_as_dict
from spotwise.mesh.grpc.control import RecentIterations, recent_iterations
from spotwise.mesh.redis.store import RedisStore

_QUICK_PROMPT, _QUICK_WIDEST, _QUICK_REPEATS = 64, 2, 1


def profile(
    file: Annotated[Path, typer.Argument(help="Where to write the profile (JSON).")],
    name: Annotated[
        str | None, typer.Option(help="An idle mesh of this machine; by default the command starts one.")
    ] = None,
    up_args: Annotated[str, typer.Option(help="Arguments for `spotwise up`, where the command starts the mesh.")] = "",
    longest_prompt: Annotated[int, typer.Option(min=32, help="Tokens of the longest prompt.")] = 2048,
    widest: Annotated[int, typer.Option(min=1, help="Sequences that decode at once, at most.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="How often each prompt length is measured.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Few and short prompts, for a quick check.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random prompts.")] = 1,
) -> None:
    """Record what iterations and KV hand-offs cost on a live mesh; `up --engine simulated` and `simulate run` take it."""
    require_writable(file, "FILE")
    console = report_console()
    if quick:
        longest_prompt, widest, repeats = _QUICK_PROMPT, _QUICK_WIDEST, _QUICK_REPEATS
    steps = profile_steps(longest_prompt, widest, repeats)
    with progress_bar(console) as progress:
        task = progress.add_task("starting a mesh", total=len(steps))
        with mesh_of(name, up_args, SPLIT_ALWAYS) as endpoint:
            progress.update(task, description="prompts and decodes")
            found = uvloop.run(measure_costs(endpoint, steps, seed, lambda: progress.advance(task)))
            model = endpoint.model
    about = environment()
    costs, fit = fitted_profile(found, model, about)
    document = {**profile_as_dict(costs), "fit": fit, "environment": about}
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(_table(costs, fit))
    console.print(f"written to {file}", style="dim")


def fitted_profile(found: Measurements, model: str, about: Mapping[str, Any]) -> tuple[CostProfile, dict[str, Any]]:
    """Fit a profile to the measurements; returns it and its fit's quality; raises `CommandError` without measurements."""
    try:
        iterations = fit_iterations(found.iterations)
        link = fit_link(found.transfers) if found.transfers else None
    except ValueError as error:
        raise CommandError(str(error)) from error
    costs = CostProfile(
        f"{model} on {about['cores']} cores of {about['cpu']}",
        iterations.cost,
        None if link is None else link.cost,
        found.kv_bytes_per_token,
        found.kv_tokens,
        median(found.messages_s) if found.messages_s else USUAL_MESSAGE_S,
        measured=MeasuredRange.of(time.shape for time in found.iterations),
    )
    fit = {
        "iterations": iterations.iterations,
        "mape": iterations.mape,
        "mape_of": iterations.mape_of,
    }
    if link is not None:
        fit |= {"handoffs": link.handoffs, "link_mape": link.mape}
    return costs, fit


def _table(costs: CostProfile, fit: dict[str, Any]) -> Table:
    table = Table(header_style="bold")
    table.add_column("cost")
    table.add_column("", justify="right")
    cost, link = costs.iteration, costs.link
    assert isinstance(cost, TableIterationCost)  # what is fitted
    assert costs.measured is not None
    for title, figure in (
        *_by_size("prompt tokens", cost.prompt),
        *_by_size("decodes", cost.decode),
        ("1,000 tokens that a prompt token attends to, us", f"{1e9 * cost.prompt_context_s:,.3f}"),
        ("1,000 tokens that a decode attends to, us", f"{1e9 * cost.decode_context_s:,.1f}"),
        ("measured up to, prompt tokens", f"{costs.measured.prompt_tokens:,}"),
        ("measured up to, decodes", f"{costs.measured.decodes:,}"),
        ("measured up to, tokens that a decode attends to", f"{costs.measured.decode_context:,.0f}"),
        ("a message, ms", f"{1e3 * costs.message_s:,.3f}"),
        (f"mean error of {fit['iterations']:,} iterations", f"{fit['mape']:.1%}"),
        *((f"of those, {kind}", f"{mape:.1%}") for kind, mape in fit["mape_of"].items()),
    ):
        table.add_row(title, figure)
    if link is not None:
        table.add_row("a hand-off, ms", f"{1e3 * link.latency_s:,.3f}")
        table.add_row("its bytes, MB/s", f"{link.bytes_per_s / 1e6:,.0f}")
        table.add_row(f"mean error of {fit['handoffs']:,} hand-offs", f"{fit['link_mape']:.1%}")
    return table


def _by_size(what: str, seconds: PiecewiseLinear) -> list[tuple[str, str]]:
    return [
        (f"{size:,.0f} {what}, ms", f"{1e3 * taken:,.1f}")
        for size, taken in zip(seconds.at, seconds.seconds, strict=True)
    ]


_POLL_S = 0.1

#: Facts by stage.
Ledger = dict[str, dict[str, Any]]


async def whole_ledger(
    store: RedisStore, request_id: str, is_whole: Callable[[Ledger], bool], patience_s: float
) -> Ledger:
    """Return a request's ledger once it is whole, or its part after `patience_s`; raises `MeshError` without the store."""
    clock = asyncio.get_running_loop().time
    ends_s = clock() + patience_s
    while True:
        ledger = {entry.stage: dict(entry.facts) for entry in await store.get_ledger(request_id)}
        if is_whole(ledger) or clock() > ends_s:
            return ledger
        await asyncio.sleep(_POLL_S)


#: A ledger is written with the next heartbeat; this is many of them.
_LEDGER_WAIT_S = 5.0
#: From a request's arrival at the gateway to its first token there: submission, reservation and answer, order, token.
_SPLIT_MESSAGES = 5
#: Nothing is reserved where both phases are on one worker.
_IN_PLACE_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class RequestWave:
    """Concurrent requests of one size; at least two output tokens, so that a hand-off pays."""

    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Measurements:
    """The workers' reports.

    Attributes:
        transfers: (bytes, seconds) of each hand-off, from the end of its prompt's computation.
        messages_s: seconds of each request that ran alone, from its prompt's iterations to its first token, by message.
        kv_tokens: KV capacity of the smallest worker.
    """

    iterations: list[IterationTime] = field(default_factory=list)
    transfers: list[tuple[int, float]] = field(default_factory=list)
    messages_s: list[float] = field(default_factory=list)
    kv_bytes_per_token: int = 0
    kv_tokens: int = 0

    def __add__(self, later: Measurements) -> Measurements:
        """Join two measurements of the same mesh."""
        return Measurements(
            self.iterations + later.iterations,
            self.transfers + later.transfers,
            self.messages_s + later.messages_s,
            self.kv_bytes_per_token,
            self.kv_tokens,
        )


def profile_steps(longest_prompt: int, widest: int, repeats: int) -> list[RequestWave]:
    """Prompts alone, doubling in length; then decodes, doubling in number, over short and over long contexts."""
    lengths = _doubling(16, longest_prompt)
    prompts = [RequestWave(1, length, 2) for length in lengths for _ in range(repeats)]
    contexts = sorted({min(32, longest_prompt), max(32, longest_prompt // 4), max(32, longest_prompt // 2)})
    decodes = [RequestWave(width, context, 16) for width in _doubling(1, widest) for context in contexts]
    return prompts + decodes


async def measure_costs(
    endpoint: MeshEndpoint, steps: Sequence[RequestWave], seed: int, done: Callable[[], Any]
) -> Measurements:
    """Run all steps, one after the other; requests before them do not count.

    Raises:
        CommandError: gateway, store or a worker do not answer, the gateway answers with an error, or an answer is too short.
    """
    rng = random.Random(seed)
    found = Measurements()
    workers = await _workers(endpoint, found)
    async with GatewayClient(endpoint.url) as client, open_store(endpoint.redis_url) as store:
        # The first request of all pays for connections and one-time computation.
        await run_completion(client, endpoint.model, random_prompt(rng, 16), 4)
        seen = {worker.id: (await _recent(worker)).last for worker in workers}
        for step in steps:
            prompts = [random_prompt(rng, step.prompt_tokens) for _ in range(step.requests)]
            completions = (run_completion(client, endpoint.model, prompt, step.output_tokens) for prompt in prompts)
            request_ids = await asyncio.gather(*completions)
            ledgers = [await whole_ledger(store, each, _is_whole, _LEDGER_WAIT_S) for each in request_ids]
            times: list[IterationTime] = []
            for worker in workers:
                recent = await _recent(worker, seen[worker.id])
                seen[worker.id] = recent.last
                times += recent.times
            found.iterations += times
            for ledger in ledgers:
                _note_transfer(ledger, found)
            if step.requests == 1:
                _note_messages(ledgers[0], times, found)
            done()
    return found


async def _workers(endpoint: MeshEndpoint, found: Measurements) -> list[Member]:
    statuses = await gather_status(endpoint.redis_url)
    engines = [status.engine for status in statuses if status.engine is not None]
    if not engines:
        raise CommandError("no worker of the mesh answers; `spotwise status` shows the members")
    found.kv_bytes_per_token = engines[0].kv_bytes_per_token
    loads = [engine.member.load for engine in engines]
    found.kv_tokens = min(load.kv_blocks_total * load.kv_block_size for load in loads if load is not None)
    return [engine.member for engine in engines]


async def _recent(worker: Member, after: int = 0) -> RecentIterations:
    return await recent_iterations(worker.grpc_address, worker.id, after, access=operator_access())


def _is_whole(ledger: Ledger) -> bool:
    has_ended = "completed" in ledger and "decoded" in ledger
    return has_ended and ("handed_off" in ledger or "kv_received" not in ledger)


def _note_transfer(ledger: Ledger, found: Measurements) -> None:
    handed_off = ledger.get("handed_off")
    if handed_off is not None:
        found.transfers.append((int(handed_off["kv_bytes"]), float(handed_off["visible_s"])))


def _note_messages(ledger: Ledger, times: Sequence[IterationTime], found: Measurements) -> None:
    """Note the time of a lone request's first token, less computation."""
    ttft_s = ledger.get("completed", {}).get("ttft_s")
    if ttft_s is not None:
        prompt_s = sum(time.seconds for time in times if time.shape.prompt_tokens)
        messages = _SPLIT_MESSAGES if "handed_off" in ledger else _IN_PLACE_MESSAGES
        found.messages_s.append(max(0.0, float(ttft_s) - prompt_s) / messages)


def _doubling(first: int, last: int) -> list[int]:
    values = [min(first, last)]
    while values[-1] < last:
        values.append(min(2 * values[-1], last))
    return values
