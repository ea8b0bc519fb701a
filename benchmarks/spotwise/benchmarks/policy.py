"""`spotwise bench dev policy`: one schedule under several scheduling policies, each on a mesh of its own.

Lengths have heavy tails and arrivals come in bursts, at a rate slightly beyond the mesh's capacity; every policy gets the same
requests at the same times, in alternating order. Capacity is measured first, under the first policy, by a storm of similar
requests. A job's completion time counts from its scheduled time. Throughput is measured while requests arrive: later a policy
that leaves the longest jobs for the end has small batches, in any finite run. Source: FastServe (Wu et al., 2023), section 6.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from spotwise.benchmarks.arrivals import TimedRequest
from spotwise.benchmarks.heavy_tails import all_at_once, bursts
from spotwise.benchmarks.open_loop import Outcome, failures, run_open_loop
from spotwise.benchmarks.plot import plot_completion_times
from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_plotting,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import running_mesh, up_arguments
from spotwise.cli.errors import CommandError, OptionError
from spotwise.core.percentile import percentile
from spotwise.studies.fastserve.job_sizes import ZipfSizes

_WHILE_THEY_COME = "output tokens/s while requests come"
_TARGETS = {"mean JCT, s": Target(at_most=0.5), _WHILE_THEY_COME: Target(at_least=0.97)}
#: Share of a storm's first and last tokens: while the batch fills, and while it empties.
_EDGE = 0.1
#: Requests of a storm, at most.
_STORM = 120
_QUICK_REQUESTS, _QUICK_LONGEST = 24, 32
#: One worker for both phases. Its batch is narrow and its KV cache small, so that in a burst there are more jobs under way
#: than either holds, as with a large model on a GPU.
_UP_ARGS = "--prompt-workers 0 --token-workers 0 --mixed-workers 1 --kv-cache 48MiB"


def policy(
    policies: Annotated[str, typer.Option(help="Disciplines; each is compared with the first.")] = "fcfs,mlfq",
    requests: Annotated[int, typer.Option(min=10, help="How many arrive.")] = 400,
    load: Annotated[float, typer.Option(min=0.1, help="Rate of arrivals, of what the mesh can do.")] = 1.2,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests per second instead; nothing is measured first.")
    ] = None,
    cv: Annotated[
        float, typer.Option(min=0.1, help="How bursty: the gaps' coefficient of variation; 1 is Poisson.")
    ] = 2.0,
    theta: Annotated[float, typer.Option(min=0, help="Of the lengths' Zipf law: how much rarer long ones are.")] = 1.2,
    longest_prompt: Annotated[int, typer.Option(min=16, help="Tokens.")] = 256,
    longest_answer: Annotated[int, typer.Option(min=16, help="Tokens.")] = 1024,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences of a batch at most.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="How often each policy has its turn.")] = 3,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = _UP_ARGS,
    quick: Annotated[bool, typer.Option("--quick", help="Few and short requests: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, lengths and prompts.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Draw how completion times are distributed.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Compare scheduling policies on a live mesh: long tails, bursts, and more than its capacity."""
    names = list(dict.fromkeys(name.strip() for name in policies.split(",") if name.strip()))
    if len(names) < 2:
        raise OptionError(f"--policies {policies!r}: name two or more, like fcfs,mlfq")
    if quick:
        requests, rounds, longest_prompt, longest_answer = _QUICK_REQUESTS, 1, _QUICK_LONGEST, _QUICK_LONGEST
    require_writable(json)
    if plot is not None:
        require_plotting(plot)
    sizes = ZipfSizes(longest_prompt, longest_answer, theta)
    arguments = up_arguments(up_args)
    console = report_console()
    outcomes: dict[str, list[list[Outcome]]] = {name: [] for name in names}

    with progress_bar(console) as progress:

        def measure(name: str, schedule: Sequence[TimedRequest], what: str) -> list[Outcome]:
            task = progress.add_task(f"{what}: starting a mesh", total=len(schedule))
            env = {"SPOTWISE_POLICY": name, "SPOTWISE_MAX_NUM_SEQS": str(max_num_seqs)}
            with running_mesh(arguments, env) as endpoint:
                # The first requests of all pay for connections and one-time computation.
                asyncio.run(run_open_loop(endpoint, all_at_once(max_num_seqs, seed + 1, sizes)))
                progress.update(task, description=what)
                found = asyncio.run(run_open_loop(endpoint, schedule, lambda: progress.advance(task), stream=True))
            for reason, count in failures(found).items():
                raise CommandError(f"{what}: {count} requests failed: {reason}")
            return found

        capacity = None
        if rate is None:
            capacity = requests_per_s(
                measure(names[0], all_at_once(min(requests, _STORM), seed, sizes), "what the mesh can do")
            )
            rate = load * capacity
        schedule = bursts(requests, rate, cv, seed, sizes)
        for number in range(1, rounds + 1):
            for name in in_order_of_round(number, names):
                outcomes[name].append(measure(name, schedule, f"{name}, round {number} of {rounds}"))

    reference, *others = names
    readings = {name: [figures(each) for each in of_rounds] for name, of_rounds in outcomes.items()}
    rows = [row for name in others for row in _rows(name, readings[name], readings[reference])]
    about = environment(
        policies=names,
        requests=requests,
        capacity_requests_per_s=capacity,
        requests_per_s=rate,
        cv=cv,
        theta=theta,
        longest_prompt=longest_prompt,
        longest_answer=longest_answer,
        max_num_seqs=max_num_seqs,
        rounds=rounds,
        up_args=up_args,
        seed=seed,
        quick=quick,
    )
    told = f"{rate:.2f} requests/s" + ("" if capacity is None else f", {load:g} times what the mesh can do")
    console.print(f"{told}; reference: {reference}", style="dim")
    write_report(rows, about, json, console, lambda figure: f"{figure:,.3f}", readings=readings)
    if plot is not None:
        plot_completion_times(
            {name: [completion_s(o) for each in runs for o in each] for name, runs in outcomes.items()}, plot
        )
        console.print(f"drawn into {plot}", style="dim")


def requests_per_s(storm: Sequence[Outcome]) -> float:
    """Return a mesh's capacity, requests of a storm's mean length a second, by the tokens of its full batch."""
    times_s = _token_times_s(storm)
    first, last = round(_EDGE * len(times_s)), round((1 - _EDGE) * len(times_s)) - 1
    if times_s[last] <= times_s[first]:
        raise CommandError("the storm was over too soon to say what the mesh can do; give more --requests, or a --rate")
    tokens_per_s = (last - first) / (times_s[last] - times_s[first])
    return tokens_per_s * len(storm) / len(times_s)


def _token_times_s(outcomes: Sequence[Outcome]) -> list[float]:
    """Arrival of each token of all answers, from the schedule's start, ascending."""
    times_s = []
    for outcome in outcomes:
        chunks, tokens = len(outcome.tokens_s), outcome.arrival.output_tokens
        # A chunk of a busy gateway may be several tokens.
        times_s += [outcome.arrival.at_s + outcome.tokens_s[number * chunks // tokens] for number in range(tokens)]
    return sorted(times_s)


def completion_s(outcome: Outcome) -> float:
    """Return the completion time of an answered job."""
    assert outcome.latency_s is not None  # failures end the run
    return outcome.latency_s


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the figures of one run, by title."""
    jct_s = [completion_s(outcome) for outcome in outcomes]
    per_token_s = [completion_s(outcome) / outcome.arrival.output_tokens for outcome in outcomes]
    ttft_s = [outcome.tokens_s[0] for outcome in outcomes]
    first_s, last_s = outcomes[0].arrival.at_s, outcomes[-1].arrival.at_s
    token_times_s = _token_times_s(outcomes)
    while_they_come_s = max(last_s - first_s, token_times_s[0] - first_s)
    return {
        "mean JCT, s": fmean(jct_s),
        **{f"JCT p{percent}, s": percentile(jct_s, percent) for percent in (50, 95, 99)},
        "mean JCT per token, s": fmean(per_token_s),
        **{f"JCT per token p{percent}, s": percentile(per_token_s, percent) for percent in (50, 95, 99)},
        "TTFT p50, s": percentile(ttft_s, 50),
        "TTFT p99, s": percentile(ttft_s, 99),
        _WHILE_THEY_COME: bisect_right(token_times_s, last_s) / while_they_come_s,
        "output tokens/s to the last answer": len(token_times_s) / (token_times_s[-1] - first_s),
    }


def _rows(name: str, ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> list[ReportRow]:
    return [
        row_of_rounds(
            f"{name}: {title}", [each[title] for each in ours], [each[title] for each in theirs], _TARGETS.get(title)
        )
        for title in ours[0]
    ]
