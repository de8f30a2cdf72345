"""The producers of a producer group among all connections, found without a walk over all connections."""

from typing import NoReturn

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core.clientsessions import Sessions
from orderlymq_broker.core.effects import Caller

_GROUPS = st.sets(st.sampled_from("ab"))
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["beat", "beat", "disown", "close"]),
        st.integers(1, 3),
        st.sampled_from("xyz"),
        _GROUPS,
    ),
    max_size=30,
)


class _Unread(dict[str, set[str]]):
    """A connection of another producer group, which must not be read."""

    def items(self) -> NoReturn:
        raise AssertionError("a connection was looked at that produces for another group")


@given(_STEPS)
def test_producers_are_those_that_the_last_heartbeats_name(
    steps: list[tuple[str, int, str, set[str]]],
) -> None:
    """Law: the producers found equal those of a slow twin that records what each client said on each connection."""
    sessions = Sessions()
    twin: dict[tuple[int, str], set[str]] = {}
    for step, connection, client_id, groups in steps:
        session = sessions.get(connection)
        if step == "beat":
            session = sessions.identify(Caller(connection, "192.0.2.1", connection), client_id)
            sessions.take_producers(session, client_id, set(groups))
            twin[connection, client_id] = groups
        elif step == "close":
            sessions.close(connection)
            twin = {place: said for place, said in twin.items() if place[0] != connection}
        elif session is not None and client_id in session.client_ids:
            sessions.disown(client_id, connection)
            del twin[connection, client_id]

        for group in "ab":
            expected = [place for place in sorted(twin) if group in twin[place]]
            found = [(each.caller.connection, name) for name, each in sessions.producers(group)]
            assert found == expected
            claimed = sessions.claimed_producers({group}).get(group, [])
            assert [caller.connection for caller in claimed] == sorted(
                {place[0] for place in expected}
            )


def test_connections_of_other_groups_are_not_looked_at() -> None:
    """Law: only connections of the wanted producer group are read: there may be tens of thousands,
    and callers ask twice a second.
    """
    sessions = Sessions()
    for number, group in enumerate("aab", 1):
        session = sessions.identify(Caller(number, "192.0.2.1", number, f"account{number}"), "x")
        sessions.take_producers(session, "x", {group})
    for number in (1, 2):
        other = sessions.get(number)
        assert other is not None
        other.producer_groups = _Unread(other.producer_groups)

    assert sessions.claimed_producers({"b", "c"}) == {
        "b": [Caller(3, "192.0.2.1", 3, "account3")],
    }
    assert [client_id for client_id, _ in sessions.producers("b")] == ["x"]
