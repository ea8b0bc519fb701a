"""The budget of what the store keeps, and how the entries of one kind share it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.access.store_budget import DEFAULT_STORE_BYTES, Kind, Room, RoomVerdict, StoreBudget
from tests.fakes.shelf import Shelf


def test_the_shares_are_the_budget() -> None:
    """No more than it, and nearly all of it; a scope has half of a kind's."""
    budget = StoreBudget()
    rooms = [budget.room(kind) for kind in Kind]
    assert DEFAULT_STORE_BYTES - len(rooms) <= sum(room.all_bytes for room in rooms) <= DEFAULT_STORE_BYTES
    assert all(room.scope_bytes in (0, room.all_bytes // 2) for room in rooms)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.integers(1, 60), st.integers(1, 50), st.booleans())
    ),
)
def test_no_room_is_exceeded_and_what_is_in_use_stays(puts: list[tuple[int, str, int, int, bool]]) -> None:
    """Whatever is put, and grows, in whatever order."""
    held: dict[str, tuple[str, bool]] = {}
    shelf = Shelf(Room(100, 50), lambda each: held.pop(each, None), lambda each: held[each][1])
    for now_s, (number, scope, size, lives_s, is_used) in enumerate(puts):
        entry_id = str(number)
        used = {each for each, (_, stays) in held.items() if stays}
        if entry_id in held and size % 2:
            verdict = shelf.grow(entry_id, size)
        else:
            verdict = shelf.put(entry_id, scope, size, now_s + lives_s + (1000 if is_used else 0), float(now_s))
            if verdict is RoomVerdict.KEPT:
                held[entry_id] = scope, is_used
        assert (entry_id in held) == (verdict is RoomVerdict.KEPT)
        assert used - {entry_id} <= set(held)
        assert shelf.used_bytes <= 100
        assert set(shelf._entries) == set(held)
        for each in "abc":
            assert sum(entry.size_bytes for entry in shelf._entries.values() if entry.scope == each) <= 50


def test_an_entry_that_is_replaced_makes_room_for_its_successor() -> None:
    """No other entry has to go for it."""
    dropped: list[str] = []
    shelf = Shelf(Room(100, 50), dropped.append)
    shelf.put("other", "a", 20, ends_s=10.0, now_s=0.0)
    shelf.put("replaced", "a", 30, ends_s=20.0, now_s=0.0)
    dropped.clear()
    assert shelf.put("replaced", "a", 30, ends_s=30.0, now_s=1.0) is RoomVerdict.KEPT
    assert (dropped, shelf.used_bytes) == (["replaced"], 50)
