"""Whoever takes what he can of a room that all share, who comes later finds some."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.state.sharedroom import FACTOR, SharedRoom

SIZE = 1_000


@given(greedy=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 400)), max_size=60))
def test_nobody_has_more_than_a_multiple_of_what_is_left(greedy: list[tuple[int, int]]) -> None:
    """Law: in whatever order and pieces others take, a new one has room for three quarters of the rest."""
    room = SharedRoom(SIZE)
    for owner, more in greedy:
        if room.has_room(owner, more):
            room.take(owner, more)
            assert room.part(owner) <= FACTOR * (SIZE - room.used)

    left = SIZE - room.used
    most = FACTOR * left // (FACTOR + 1)
    assert left > 0
    assert room.has_room("new", most)
    assert not room.has_room("new", most + 1)
    assert not room.has_room("new", most, pending=1, pending_of_all=1)
    for each, part in room.parts().items():
        room.take(each, -part)
    assert (room.used, room.parts()) == (0, {})
