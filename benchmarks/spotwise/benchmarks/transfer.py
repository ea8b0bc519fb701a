"""`spotwise bench dev transfer`: the time that a hand-off adds to a prompt, by its length, and the bandwidth.

All modes get the same prompts, each on a mesh of its own, one mesh at a time, in rounds of alternating order; bandwidth is
compared within one round.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.benchmarks.transfer_visible import MODE_VARIABLE, HandOff, measure_hand_offs, medians
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import SPLIT_ALWAYS, running_mesh, up_arguments
from spotwise.cli.errors import CommandError
from spotwise.cli.quantities import ascending
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode

_QUICK_LENGTHS = "128,512"
#: From this length on, targets: a hand-off's share of the prompt's time, and of the request's.
_LONG_TOKENS, _PROMPT_SHARE, _E2E_SHARE = 512, 0.07, 0.02
_BANDWIDTH_SHARE = 0.5
_MESSAGE_BYTES = (1 << 20, 4 << 20)
#: Whether a measurement copies between caches, and whether its link is encrypted.
_BANDWIDTHS = {
    "transport alone": (False, False),
    "KV from cache to cache": (True, False),
    "KV from cache to cache, encrypted": (True, True),
}
_PUSHES = 20


def transfer(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each of all modes in alternating order.")] = 3,
    lengths: Annotated[str, typer.Option(help="Prompt tokens.")] = "128,256,512,1024,2048,4096",
    requests: Annotated[int, typer.Option(min=1, help="Prompts of each length, mode and round that count.")] = 5,
    output_tokens: Annotated[int, typer.Option(min=2, help="Of each answer.")] = 64,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of two lengths, few requests: shows that it runs.")
    ] = False,
    visible: Annotated[bool, typer.Option(help="Measure hand-offs on a mesh.")] = True,
    bandwidth: Annotated[bool, typer.Option(help="Measure bandwidth beside ucx_perftest.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure KV hand-offs: visible time by prompt length, serial and layer-wise, and bandwidth against ucx_perftest."""
    sizes = parse_lengths(_QUICK_LENGTHS if quick else lengths)
    rounds, requests, pushes = (1, 1, 3) if quick else (rounds, requests, _PUSHES)
    mesh_arguments = up_arguments(up_args)
    require_writable(json)
    console = report_console()
    rows: list[ReportRow] = []
    found: dict[ConfiguredPushMode, list[list[HandOff]]] = {mode: [] for mode in ConfiguredPushMode}
    with progress_bar(console) as progress:
        if visible:
            for number in range(1, rounds + 1):
                for mode in in_order_of_round(number, tuple(ConfiguredPushMode)):
                    task = progress.add_task(f"round {number}, {mode}", total=len(sizes) * (requests + 1))
                    with running_mesh(mesh_arguments, {**SPLIT_ALWAYS, MODE_VARIABLE: mode.value}) as mesh:
                        measured = asyncio.run(
                            measure_hand_offs(
                                mesh,
                                sizes,
                                requests,
                                output_tokens,
                                f"{seed} {number}",
                                partial(progress.advance, task),
                            )
                        )
                    require_mode(mode, measured)
                    found[mode].append(measured)
                    progress.remove_task(task)
            rows += visible_rows(found, sizes)
        if bandwidth:
            task = progress.add_task("bandwidth", total=rounds * len(_MESSAGE_BYTES) * (len(_BANDWIDTHS) + 1))
            rows += _bandwidth_rows(rounds, pushes, lambda: progress.advance(task))
    about = environment(
        rounds=rounds, requests=requests, output_tokens=output_tokens, seed=seed, quick=quick, up_args=up_args
    )
    points = [
        {"round": number, "told": mode.value, **dataclasses.asdict(each)}
        for mode, own in found.items()
        for number, measured in enumerate(own, start=1)
        for each in measured
    ]
    write_report(rows, about, json, console, lambda figure: f"{figure:,.2f}", points=points)


def parse_lengths(text: str) -> list[int]:
    """Prompt lengths in ascending order, each once; raises `OptionError` where they are no positive whole numbers."""
    return ascending(text, int, "--lengths", "prompt tokens like 128,512,2048")


def require_mode(told: ConfiguredPushMode, measured: list[HandOff]) -> None:
    """Check that all hand-offs used the configured mode; raises `CommandError` where one did not."""
    for each in measured:
        if told is not ConfiguredPushMode.AUTO and each.mode != told.value:
            raise CommandError(f"{MODE_VARIABLE}={told.value} has no effect on this mesh: a prompt left {each.mode}")


def visible_rows(found: dict[ConfiguredPushMode, list[list[HandOff]]], lengths: list[int]) -> list[ReportRow]:
    """By length and mode: visible time against prompt and request; prompt with hand-off against that of serial pushes."""
    rows = []
    for length in lengths:
        is_long = length >= _LONG_TOKENS
        by_round = {mode: [medians(measured, length) for measured in own] for mode, own in found.items()}
        for mode, own in by_round.items():
            at, is_default = f"{length} tokens, {mode.value}", mode is ConfiguredPushMode.AUTO
            visible_ms = [1000 * each.visible_s for each in own]
            prompt_ms, request_ms = [1000 * each.prefill_s for each in own], [1000 * each.e2e_s for each in own]
            target = Target(at_most=_PROMPT_SHARE) if is_long and is_default else None
            rows.append(row_of_rounds(f"{at}: KV visible beside prompt, ms", visible_ms, prompt_ms, target))
            target = Target(at_most=_E2E_SHARE) if is_default else None
            rows.append(row_of_rounds(f"{at}: KV visible beside request, ms", visible_ms, request_ms, target))
        until_there_ms = {mode: [1000 * each.until_there_s for each in own] for mode, own in by_round.items()}
        for mode in (ConfiguredPushMode.LAYERWISE, ConfiguredPushMode.AUTO):
            name = f"{length} tokens: prompt and hand-off, {mode.value} beside serial, ms"
            rows.append(row_of_rounds(name, until_there_ms[mode], until_there_ms[ConfiguredPushMode.SERIAL]))
    return rows


def _bandwidth_rows(rounds: int, pushes: int, done: Callable[[], object]) -> list[ReportRow]:
    # Imported here, since it loads torch.
    from spotwise.benchmarks.transfer_bandwidth import (
        messages_of_one_push,
        perftest_bandwidth,
        perftest_program,
        push_bandwidth,
    )

    program = perftest_program()
    rows = []
    for size in _MESSAGE_BYTES:
        reached: dict[str, list[float]] = {name: [] for name in _BANDWIDTHS}
        reference = []
        for number in range(1, rounds + 1):
            transports = ""
            for name in in_order_of_round(number, tuple(_BANDWIDTHS)):
                copies, is_encrypted = _BANDWIDTHS[name]
                ours = push_bandwidth(size, pushes, copies=copies, is_encrypted=is_encrypted)
                reached[name].append(ours.bytes_per_s / 1e9)
                transports = ours.ucx_transports
                done()
            messages = pushes * messages_of_one_push(size)
            reference.append(perftest_bandwidth(program, size, messages, transports) / 1e9)
            done()
        for what, own in reached.items():
            name = f"{what}, messages of {size >> 20} MiB, GB/s ({transports})"
            target = None if _BANDWIDTHS[what][1] else Target(at_least=_BANDWIDTH_SHARE)
            rows.append(row_of_rounds(name, own, reference, target))
    return rows
