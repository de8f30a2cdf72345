"""Room that all owners share: even if one takes all that it can, newcomers find some."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.state.sharedroom import FACTOR, SharedRoom

SIZE = 1_000


@given(greedy=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 400)), max_size=60))
def test_nobody_has_more_than_a_multiple_of_what_is_left(greedy: list[tuple[int, int]]) -> None:
    """Law: however others take their parts, a new owner may take three quarters of the rest."""
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


def test_what_is_on_its_way_takes_room_of_its_owner_and_of_all() -> None:
    """Law: uncommitted use counts too: an owner's own against its part, all owners' against the rest.

    Of eight places one owner gets at most six.
    """
    room = SharedRoom(8)

    def most(pending: int = 0, pending_of_all: int = 0) -> int:
        return max(
            more
            for more in range(8)
            if room.has_room("a", more, pending=pending, pending_of_all=pending_of_all)
        )

    assert (room.used, room.part("a"), most()) == (0, 0, 6)
    assert room.has_room("a", 6)
    assert [most(1, 1), most(1), most(0, 1)] == [5, 5, 5]
    assert [most(4, 4), most(0, 4), most(4)] == [2, 3, 5]
    room.take("a", 3)
    room.take("b", 2)
    assert (room.used, room.parts(), most()) == (5, {"a": 3, "b": 2}, 1)
    room.take("a", -3)
    assert (room.used, room.parts()) == (2, {"b": 2})
