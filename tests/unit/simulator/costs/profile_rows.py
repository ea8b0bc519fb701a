"""A profile made by a law, to see whether a fit finds the law again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spotwise.simulator.costs.profile_fit import ProfileRow

HEADER = (
    "model,hardware,prompt_size,batch_size,token_size,peak_power,average_power,prompt_time,token_time,e2e_time,"
    "tensor_parallel\n"
)


def row(
    prompt_size: int,
    batch_size: int,
    prompt_s: float,
    token_s: float,
    *,
    token_size: int = 128,
    hardware: str = "a100-80gb",
    tensor_parallel: int = 8,
) -> ProfileRow:
    return ProfileRow("bloom-176b", hardware, tensor_parallel, prompt_size, batch_size, token_size, prompt_s, token_s)


def lines(
    prompt_s: Callable[[int, int], float], token_s: Callable[[int, int], float], hardware: str = "a100-80gb"
) -> list[ProfileRow]:
    """Measure a law as the published profile was: single prompts of 128 to 8,192 tokens, and 1 to 64 of 512."""
    sizes = [(2**power, 1) for power in range(7, 14)] + [(512, 2**power) for power in range(1, 7)]
    return [
        row(prompt, batch, prompt_s(prompt, batch), token_s(batch, batch * (prompt + 64)), hardware=hardware)
        for prompt, batch in sizes
        for _ in range(5)
    ]


def write(rows: list[ProfileRow], path: Path) -> Path:
    """Write rows as a CSV of milliseconds."""
    text = "".join(
        f"{r.model},{r.hardware},{r.prompt_size},{r.batch_size},{r.token_size},0,0,"
        f"{1000 * r.prompt_s!r},{1000 * r.token_s!r},0,{r.tensor_parallel}\n"
        for r in rows
    )
    path.write_text(HEADER + text)
    return path
