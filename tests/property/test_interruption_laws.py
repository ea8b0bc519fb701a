"""Requests on an instance that ends: none is dropped, copies fit, and no other choice saves more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, permutations
from unittest import mock

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.interruption import link_share
from spotwise.core.migration.interruption.arrangement import (
    Arrangement,
    DecodePace,
    Disposition,
    Notice,
    RemoteHolder,
    arrange,
    rearrange,
)
from spotwise.core.migration.interruption.link_share import Copy, Window, choose, greedily, saved_s

#: As of today: a number of this size is exact to a quarter of a microsecond.
NOW = 1_795_000_000.0
COPIES = st.builds(Copy, st.integers(1, 40).map(float), st.integers(1, 60).map(float))


def by_size(copies: Sequence[Copy]) -> list[Copy]:
    return sorted(copies, key=lambda copy: copy.copy_s)


def windows(longest_s: float) -> st.SearchStrategy[Window]:
    """Windows whose end may be before their beginning; a half grow as KV does, a half much faster."""
    return st.builds(
        lambda grows, wait, length, growth: Window(grows, grows + wait, grows + wait + length, growth),
        st.floats(0, 3),
        st.sampled_from([0.0, 0.0, 2.5]),
        st.floats(-2, longest_s),
        st.sampled_from([0.0, 0.002, 0.05, 0.4]),
    )


#: What adding up in another order may change.
ROUNDING_S = 1e-9


def fits_forward(copies: Sequence[Copy], window: Window, slack_s: float = ROUNDING_S) -> bool:
    """Whether copies fit when each begins as soon as it may: another way to reckon than from the deadline back."""
    at_s = window.free_s
    for copy in copies:
        at_s += copy.copy_s + window.growth * (at_s - window.grows_from_s)
    return at_s <= window.end_s + slack_s


class TestShare:
    """The knapsack of the link's seconds."""

    @given(st.lists(COPIES, max_size=5).map(by_size), windows(90))
    def test_no_set_in_no_order_saves_more(self, copies: list[Copy], window: Window) -> None:
        least, most = (
            max(
                sum(copy.saved_s for copy in some)
                for size in range(len(copies) + 1)
                for some in combinations(copies, size)
                if not some or any(fits_forward(order, window, slack_s) for order in permutations(some))
            )
            for slack_s in (-ROUNDING_S, ROUNDING_S)
        )
        chosen = choose(copies, window)
        event(f"{len(chosen)} of {len(copies)}")
        assert least <= saved_s(copies, chosen) <= most
        assert not chosen or fits_forward([copies[index] for index in chosen], window)

    @settings(max_examples=30)
    @given(st.lists(COPIES, min_size=9, max_size=13).map(by_size), windows(150))
    def test_no_set_of_many_saves_more(self, copies: list[Copy], window: Window) -> None:
        masks = range(2 ** len(copies))
        least, most = (
            max(
                sum(copy.saved_s for copy in some)
                for mask in masks
                if not (some := [copy for index, copy in enumerate(copies) if mask >> index & 1])
                or fits_forward(some, window, slack_s)
            )
            for slack_s in (-ROUNDING_S, ROUNDING_S)
        )
        assert least <= saved_s(copies, choose(copies, window)) <= most

    @settings(max_examples=20)
    @given(
        st.lists(st.builds(Copy, st.floats(0.01, 3), st.floats(0.01, 9)), min_size=20, max_size=80).map(by_size),
        windows(60),
    )
    def test_a_thinned_frontier_saves_no_less_than_the_greedy_choice(self, copies: list[Copy], window: Window) -> None:
        chosen = choose(copies, window)
        assert list(chosen) == sorted(set(chosen))
        assert saved_s(copies, chosen) >= saved_s(copies, greedily(copies, window))
        assert not chosen or fits_forward([copies[index] for index in chosen], window)

    @given(st.lists(COPIES, min_size=3, max_size=12).map(by_size), windows(90), st.integers(3, 6))
    def test_a_frontier_of_a_few_points_saves_no_less_either(
        self, copies: list[Copy], window: Window, points: int
    ) -> None:
        """However much of it is thinned away."""
        with mock.patch.object(link_share, "POINTS", points * len(copies)):
            chosen = choose(copies, window)
        assert saved_s(copies, chosen) >= saved_s(copies, greedily(copies, window))
        assert not chosen or fits_forward([copies[index] for index in chosen], window)


REQUESTS = st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 400)), max_size=12).map(
    lambda sizes: [RunningRequest(f"r{i}", tokens, 0, left) for i, (tokens, left) in enumerate(sizes)]
)
NOTICES = st.builds(
    lambda left, boundary, step, latency, rate, prompt, waits, ready, margin: Notice(
        NOW + left,
        DecodePace(boundary, step),
        LinkCost(latency, rate),
        320_000,
        RemoteHolder(lambda tokens: 0.02 + prompt * tokens, waits[0], waits[1], None if ready is None else NOW + ready),
        margin,
    ),
    left=st.sampled_from([0.0, -1.0, 0.5, 5.0, 30.0, 30.0, 120.0]),
    boundary=st.sampled_from([0.0, 0.013, 0.9]),
    step=st.sampled_from([0.03, 0.1, 0.37]),
    latency=st.sampled_from([0.0, 0.004]),
    rate=st.sampled_from([2e7, 2e8, 5e9]),
    prompt=st.sampled_from([1e-5, 4e-4, 5e-3]),
    waits=st.tuples(st.floats(0, 3), st.floats(0, 1)),
    ready=st.none() | st.floats(0, 60),
    margin=st.sampled_from([0.0, 0.0, 1.0]),
)


def check(
    now_s: float, notice: Notice, requests: list[RunningRequest], arranged: Sequence[Arrangement], held: int = 0
) -> None:
    """Check the laws of an arrangement; `held` of them may be kept from before."""
    assert [each.choice_id for each in arranged] == [request.id for request in requests]
    by_id = {request.id: request for request in requests}
    fresh = [each for each in arranged if each.stop_s >= now_s]
    assert len(arranged) - len(fresh) <= held
    for each in fresh:
        request = by_id[each.choice_id]
        assert each.steps >= 0
        assert each.wait_s >= 0
        at_boundary_s = now_s + notice.pace.until_boundary_s + each.steps * notice.pace.step_s
        if each.disposition is not Disposition.RECOMPUTE or each.steps:
            assert abs(each.stop_s - at_boundary_s) < 1e-5
            assert each.stop_s <= notice.deadline_s
            assert request.remaining == 0 or each.steps <= request.remaining
        assert (each.disposition is Disposition.FINISH) == (each.steps == request.remaining > 0)
        assert (
            (each.disposition is Disposition.MOVE) == (each.copy_start_s is not None) == (each.copy_end_s is not None)
        )
        if each.copy_start_s is not None and each.copy_end_s is not None:
            assert each.stop_s <= each.copy_start_s
            copy_s = notice.link.transfer_s((request.tokens + each.steps) * notice.kv_token_bytes)
            assert abs(each.copy_end_s - each.copy_start_s - copy_s) < 1e-5
            assert each.copy_end_s <= notice.deadline_s - notice.margin_s
    copies = sorted((each.copy_start_s, each.copy_end_s or 0.0) for each in arranged if each.copy_start_s is not None)
    assert all(end <= start for (_, end), (start, _) in pairwise(copies))


@given(NOTICES, REQUESTS)
def test_every_request_has_one_fate_and_copies_fit(notice: Notice, requests: list[RunningRequest]) -> None:
    """Whatever the notice, the link and the requests."""
    arranged = arrange(NOW, notice, requests)
    for disposition in Disposition:
        event(f"{disposition}: {min(2, sum(each.disposition is disposition for each in arranged))} or more")
    check(NOW, notice, requests, arranged)
    if notice.deadline_s <= NOW:
        assert all(each.disposition is Disposition.RECOMPUTE for each in arranged)


@given(NOTICES, REQUESTS)
def test_a_moved_request_gains_by_it_and_one_that_can_end_ends(notice: Notice, requests: list[RunningRequest]) -> None:
    """No move is longer than the computation it saves, and no request is moved that could have finished in time."""
    left_s = notice.deadline_s - NOW - notice.margin_s
    for request, each in zip(requests, arrange(NOW, notice, requests), strict=True):
        if each.disposition is Disposition.MOVE:
            assert notice.saved_s(request) > 0
        if each.disposition is not Disposition.FINISH and request.remaining:
            ends_s = notice.pace.until_boundary_s + request.remaining * notice.pace.step_s
            assert ends_s > left_s - 1e-5


@given(NOTICES, REQUESTS, st.floats(0, 40), st.floats(-20, 20))
def test_arranged_again_no_request_is_dropped(
    notice: Notice, requests: list[RunningRequest], later_s: float, shift_s: float
) -> None:
    """A new arrangement after a changed deadline drops no request.

    Finished ones are gone, the others have decoded meanwhile.
    """
    before = arrange(NOW, notice, requests)
    now_s = NOW + later_s
    decoded = int(later_s / notice.pace.step_s)
    still = [
        RunningRequest(request.id, request.tokens + min(decoded, old.steps), 0, max(0, request.remaining - decoded))
        for request, old in zip(requests, before, strict=True)
        if old.disposition is not Disposition.FINISH or old.stop_s > now_s
    ]
    moved = Notice(notice.deadline_s + shift_s, *(getattr(notice, name) for name in Notice.__slots__[1:]))
    after = rearrange(now_s, moved, before, still)
    check(now_s, moved, still, after, held=len(still))
    by_id = {each.choice_id: each for each in before}
    for each in after:
        old = by_id[each.choice_id]
        if old.disposition is Disposition.RECOMPUTE and old.stop_s <= now_s:
            assert each == old
        running = old.copy_start_s is not None and old.copy_start_s <= now_s
        if running and old.copy_end_s is not None and old.copy_end_s <= moved.deadline_s:
            assert each == old
        elif running:
            assert each.disposition is Disposition.RECOMPUTE
