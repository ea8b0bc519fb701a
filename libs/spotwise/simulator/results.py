"""What a simulated world has to say of its machines when nothing happens any more.

Law: counts of bounded size, whatever the length of the run. Requests and iterations are reported while they happen
(`observation.py`); here is what belongs to no single one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages import Pool


@dataclass(slots=True)
class MachineResult:
    """One machine's part, from the start to the end of the world.

    Attributes:
        machine_id: its id.
        machine_type: name of its type.
        home: the pool that it belonged to at the end.
        iterations: that it ran.
        busy_s: seconds in iterations.
        prompt_s: of these, in iterations with prompt tokens.
        kv_blocks: that it has.
        kv_block_s: used blocks x seconds, while it computed; over the blocks and `busy_s` it is the mean use.
        kv_blocks_peak: most blocks in use when an iteration began.
        sent, received: KV hand-offs.
        sent_bytes, received_bytes: theirs, those that were called off included as far as they got.
        preemptions: sequences that lost their blocks.
    """

    machine_id: str
    machine_type: str
    home: Pool
    iterations: int = 0
    busy_s: float = 0.0
    prompt_s: float = 0.0
    kv_blocks: int = 0
    kv_block_s: float = 0.0
    kv_blocks_peak: int = 0
    sent: int = 0
    received: int = 0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class WorldResult:
    """What is known when nothing happens any more.

    Attributes:
        ended_s: simulated time at which the last request ended.
        arrived, completed, failed: requests; the first is the sum of the others.
        most_live: requests in the world at once at most.
        machines: in order of id.
        events: that happened: what the run cost.
    """

    ended_s: float
    arrived: int
    completed: int
    failed: int
    most_live: int
    machines: tuple[MachineResult, ...]
    events: int
