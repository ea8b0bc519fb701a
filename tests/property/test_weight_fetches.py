"""Every panel that some holder has arrives once, also where holders fail; others are put off; U_max holds throughout."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.weights.fetch_order import FetchOrder, PanelRequest
from spotwise.core.weights.inventory import PanelRange

PANEL_BYTES = 10
MATRICES = ("a", "b", "c")
SPANS = st.tuples(st.integers(0, 11), st.integers(1, 12)).map(lambda pair: range(pair[0], min(12, sum(pair))))
HOLDERS = st.dictionaries(
    st.sampled_from(["x", "y", "z"]), st.dictionaries(st.sampled_from(MATRICES), st.tuples(SPANS), max_size=3)
)


def panels_of(ranges: list[PanelRange]) -> list[tuple[str, int]]:
    return [(each.matrix, panel) for each in ranges for panel in each.panels]


@given(
    holders=HOLDERS,
    missing=st.lists(st.tuples(st.sampled_from(MATRICES), SPANS), max_size=3, unique_by=lambda each: each[0]),
    buffer_bytes=st.integers(1, 200),
    piece_bytes=st.integers(1, 80),
    planned=st.dictionaries(st.sampled_from(MATRICES), st.lists(st.sampled_from(["x", "y", "z", "gone"]), max_size=2)),
    data=st.data(),
)
def test_all_that_some_holder_has_arrives(
    holders: dict[str, dict[str, tuple[range, ...]]],
    missing: list[tuple[str, range]],
    buffer_bytes: int,
    piece_bytes: int,
    planned: dict[str, list[str]],
    data: st.DataObject,
) -> None:
    """Whatever order they answer in, refuse or are lost, and whatever the plan says, which is followed where it can be; with no
    failure, nothing is put off that some holder has.
    """
    wanted = [PanelRange(name, panels, PANEL_BYTES) for name, panels in missing]
    order = FetchOrder(wanted, holders, buffer_bytes, piece_bytes, planned)
    under_way: list[PanelRequest] = []
    arrived: list[PanelRange] = []
    failed: set[tuple[str, int]] = set()
    while True:
        under_way += order.next_requests()
        assert order.under_way_bytes == sum(each.range.byte_count for each in under_way)
        assert order.under_way_bytes <= buffer_bytes or len(under_way) == 1
        if not under_way:
            break
        request = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        held = holders[request.holder][request.range.matrix]
        assert any(set(request.range.panels) <= set(each) for each in held)
        able = [
            name
            for name, panels in holders.items()
            if any(set(request.range.panels) <= set(each) for each in panels.get(request.range.matrix, ()))
        ]
        if not failed and (named := [name for name in able if name in planned.get(request.range.matrix, ())]):
            assert request.holder in named
        end = data.draw(st.sampled_from(["arrives", "arrives", "refused", "lost"]))
        if end == "arrives":
            order.arrived(request)
            arrived.append(request.range)
        else:
            order.failed(request, holder_is_lost=end == "lost")
            failed.add(("any", 0))
    assert order.is_done
    counts = Counter(panels_of(arrived) + panels_of(list(order.put_off)))
    assert counts == Counter(panels_of(wanted))
    if not failed:
        had = {
            (name, panel)
            for panels in holders.values()
            for name, own in panels.items()
            for each in own
            for panel in each
        }
        assert not had & set(panels_of(list(order.put_off)))


def test_the_first_panels_are_asked_first_and_holders_share_the_work() -> None:
    """In the model's order, of the holder with the least under way; the next ones as answers come."""
    both = {"a": (range(8),), "b": (range(8),)}
    order = FetchOrder(
        [PanelRange("a", range(8), PANEL_BYTES), PanelRange("b", range(2), PANEL_BYTES)],
        {"x": both, "y": both},
        buffer_bytes=40,
        piece_bytes=20,
    )
    first = order.next_requests()
    assert [(each.holder, each.range.matrix, each.range.panels) for each in first] == [
        ("x", "a", range(2)),
        ("y", "a", range(2, 4)),
    ]
    assert order.next_requests() == []
    order.arrived(first[1])
    (third,) = order.next_requests()
    assert (third.holder, third.range.panels) == ("y", range(4, 6))
    order.failed(first[0], holder_is_lost=True)
    (again,) = order.next_requests()
    assert (again.holder, again.range) == ("y", first[0].range)


def test_who_refused_a_piece_is_not_asked_for_its_parts() -> None:
    """The piece is cut where another holder's panels end; no other holder has the second part."""
    order = FetchOrder(
        [PanelRange("a", range(4), PANEL_BYTES)],
        {"x": {"a": (range(4),)}, "y": {"a": (range(2),)}},
        buffer_bytes=40,
        piece_bytes=40,
    )
    (whole,) = order.next_requests()
    assert (whole.holder, whole.range.panels) == ("x", range(4))
    order.failed(whole, holder_is_lost=False)
    assert [(each.holder, each.range.panels) for each in order.next_requests()] == [("y", range(2))]
    assert [each.panels for each in order.put_off] == [range(2, 4)]
