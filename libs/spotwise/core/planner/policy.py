"""Configuration of a migration planner: its intervals, and the costs that it assumes until they are measured."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.numerics import Crossing


@dataclass(frozen=True, slots=True)
class PlannerPolicy:
    """The configuration.

    Attributes:
        moves: move requests at all; without, draining workers finish or give back what they have, as at their deadline.
        rebalances: also move requests away from a worker that runs out of KV blocks.
        survey_s: interval at which a leaving worker reports what it holds.
        margin_s: kept free before a deadline, at most a quarter of the notice.
        member_timeout_s: silence after which a member counts as lost.
        move_latency_s: seconds of a move, whatever its tokens; `kv_token_s` is added for each, until moves were measured.
        prompt_token_s: seconds of a prompt token, until a worker has measured it.
        reserve_s: a notice with less time left after the end of the change under way than this ends that change.
        form_s: a re-shape whose new groups do not serve after this is abandoned.
        replace_after_s: a device that is absent for so long is replaced in its groups; longer than a restart takes.
        crossing: what happens to a request that has to move and has no target in its numerics class (`scheduler/classes.py`).
        reshape_drain_s: deadline of the drain of workers that retire; what has not moved by then is computed again.
    """

    moves: bool = True
    rebalances: bool = True
    survey_s: float = 0.5
    margin_s: float = 1.0
    member_timeout_s: float = 2.0
    move_latency_s: float = 0.05
    kv_token_s: float = 1e-4
    prompt_token_s: float = 1e-3
    reserve_s: float = 5.0
    form_s: float = 60.0
    reshape_drain_s: float = 120.0
    replace_after_s: float = 30.0
    crossing: Crossing = Crossing.COUNT

    def __post_init__(self) -> None:
        if min(self.survey_s, self.member_timeout_s, self.kv_token_s, self.prompt_token_s) <= 0:
            raise ValueError(f"survey_s, member_timeout_s, kv_token_s and prompt_token_s must be above 0: {self}")
        if min(self.form_s, self.reshape_drain_s, self.replace_after_s) <= 0:
            raise ValueError(f"form_s, reshape_drain_s and replace_after_s must be above 0: {self}")
        if min(self.margin_s, self.move_latency_s, self.reserve_s) < 0:
            raise ValueError(f"margin_s, move_latency_s and reserve_s must be at least 0: {self}")
