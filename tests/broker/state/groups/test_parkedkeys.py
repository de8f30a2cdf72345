"""Parked keys: who may park one, how later messages are counted, and how long a release is remembered."""

import pytest

from orderlymq_broker.state.groups.lockrecords import LocksReleased, LocksRequested
from orderlymq_broker.state.groups.parkedkeyrecords import (
    KeyFollowed,
    KeyParked,
    KeyReleased,
    KeysReleased,
    ParkedFound,
    ParkedKey,
    ReleasedKey,
)
from orderlymq_broker.state.groups.parkedkeys import FULL, PARKED_KEYS_MAX, STALE
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    OffsetsCommitted,
    OffsetsReset,
    Record,
    Refused,
    TopicDeleted,
    TopicSet,
)
from tests.broker.state.entries import WALL_MS, Replica

RELEASE = KeyReleased("g", "t", "k")


def park(offset: int, key: str = "k", *, queue: int = 0, epoch: int = 1) -> KeyParked:
    return KeyParked("g", "t", queue, key, offset, f"M{offset}", epoch)


def follow(offset: int, *, epoch: int = 1) -> KeyFollowed:
    return KeyFollowed("g", "t", 0, "k", offset, epoch)


def row(
    offset: int, key: str = "k", *, queue: int = 0, behind: int = 0, last: int = -1
) -> ParkedKey:
    return ParkedKey("g", "t", queue, key, offset, f"M{offset}", WALL_MS, behind, last)


def lock(replica: Replica, client: str = "a") -> None:
    replica.take(LocksRequested("g", client, "h:1", 1_000, (("t", 0), ("t", 1))))


def known(replica: Replica) -> Replica:
    replica.take(TopicSet("t", 4, 4), GroupSet("g"))
    lock(replica)
    return replica


def test_what_follows_counts_from_the_message_that_failed_and_once(replica: Replica) -> None:
    """Law: only messages after the failed one count as following, each once."""
    known(replica).take(park(5))

    found = replica.take(*(follow(offset) for offset in (4, 5, 6, 6, 9, 8)))

    assert found == [
        ParkedFound(None),
        ParkedFound(row(5)),
        *[ParkedFound(row(5, behind=1, last=6))] * 2,
        *[ParkedFound(row(5, behind=2, last=9))] * 2,
    ]
    assert replica.restarted().state.parked.of_queue("g", "t", 0) == {"k": row(5, behind=2, last=9)}


def test_only_the_newest_holder_of_a_queue_parks_and_counts(replica: Replica) -> None:
    """Law: only the newest holder of a queue may park and count, also after it has released the queue.

    A key that is held already is reported to others.
    """
    known(replica)
    replica.take(LocksReleased("g", "a", None))
    own = replica.take(park(5), follow(6))
    lock(replica, "b")

    late = replica.take(park(5, "other"), park(7), follow(7), follow(7, epoch=2))

    assert own == [ParkedFound(row(5)), ParkedFound(row(5, behind=1, last=6))]
    assert late == [
        Refused(STALE),
        ParkedFound(row(5, behind=1, last=6)),
        Refused(STALE),
        ParkedFound(row(5, behind=2, last=7)),
    ]


@pytest.mark.parametrize(("committed", "held"), [(5, True), (6, False)])
def test_a_message_that_is_consumed_already_holds_nothing(
    replica: Replica, committed: int, held: bool
) -> None:
    """Law: a message below the committed offset parks nothing; the committed offset itself is the next message and may
    still fail.
    """
    known(replica).take(OffsetsCommitted((Commit("g", "t", 0, committed, 1),)))

    assert replica.take(park(5)) == [ParkedFound(row(5) if held else None)]


def test_a_group_parks_as_many_keys_as_it_may(replica: Replica) -> None:
    """Law: a consumer group may park a limited number of keys over all queues; a release frees one place."""
    known(replica)
    replica.take(*(park(5, f"k{number}", queue=number % 2) for number in range(PARKED_KEYS_MAX)))

    beyond = replica.take(
        park(5), park(5, "k0"), KeyReleased("g", "t", "k1"), park(5), park(6, "z")
    )

    assert beyond == [
        Refused(FULL),
        ParkedFound(row(5, "k0")),
        KeysReleased((row(5, "k1", queue=1),)),
        ParkedFound(row(5)),
        Refused(FULL),
    ]
    assert replica.state.parked.counts() == {"g": PARKED_KEYS_MAX}


@pytest.mark.parametrize(("offset", "held"), [(5, False), (7, False), (8, True)])
def test_a_letter_that_was_asked_for_before_a_release_holds_nothing(
    replica: Replica, offset: int, held: bool
) -> None:
    """Law: after a release, a late request for one of the released messages parks nothing;
    a message behind them parks the key again.
    """
    known(replica).take(park(5), follow(7))

    assert replica.take(RELEASE) == [KeysReleased((row(5, behind=1, last=7),))]
    assert replica.take(park(offset)) == [ParkedFound(row(offset) if held else None)]


@pytest.mark.parametrize(
    ("then", "remembered"),
    [
        ([], True),
        ([OffsetsCommitted((Commit("g", "t", 0, 7, 1),))], True),
        ([OffsetsCommitted((Commit("g", "t", 0, 8, 1),))], False),
        ([LocksReleased("g", "a", None)], True),
        ([LocksReleased("g", "a", None), LocksRequested("g", "b", "h", 9, (("t", 0),))], False),
    ],
)
def test_a_release_is_forgotten_with_the_next_when_nobody_can_ask_again(
    replica: Replica, then: list[Record], remembered: bool
) -> None:
    """Law: a remembered release is removed at the next one once its messages are consumed or another client holds the
    queue.
    """
    known(replica).take(park(5), follow(7), RELEASE)

    replica.take(*then, KeyReleased("g", "t", "nothing"))

    gone = [(ReleasedKey("g", "t", 0, "k", 7, 1),)]
    assert list(replica.state.parked.rows()) == (gone if remembered else [])


@pytest.mark.parametrize(
    "gone",
    [OffsetsReset((Commit("g", "t", 0, 5),)), TopicDeleted("t"), GroupDeleted("g")],
    ids=lambda record: type(record).__name__,
)
def test_a_release_goes_with_what_it_was_about(replica: Replica, gone: Record) -> None:
    """Law: a remembered release is removed with its topic or consumer group and by a reset,
    so that messages may park the key again.
    """
    known(replica).take(park(5), RELEASE)

    replica.take(gone)

    assert list(replica.state.parked.rows()) == []


def test_a_release_frees_the_key_in_every_queue_and_no_other(replica: Replica) -> None:
    """Law: a release frees the key in all queues, and no other key."""
    known(replica).take(park(6, queue=1), park(5), park(5, "other"))

    assert replica.take(RELEASE) == [KeysReleased((row(5), row(6, queue=1)))]

    parked = replica.state.parked
    assert parked.of_group("g") == [row(5, "other")]
    assert [parked.is_held("g", key) for key in ("k", "other")] == [False, True]
    assert not parked.is_held("nobody", "other")


def test_what_other_groups_hold_stays_when_a_group_goes(replica: Replica) -> None:
    """Law: a deleted consumer group leaves the held and released keys of others."""
    known(replica).take(GroupSet("h"), LocksRequested("h", "a", "h:1", 1_000, (("t", 0),)))
    parked, released = (KeyParked("h", "t", 0, key, 5, "M5", 1) for key in ("k", "other"))
    replica.take(park(5), parked, released, KeyReleased("h", "t", "other"))

    replica.take(GroupDeleted("g"))

    assert [type(each) for (each,) in replica.state.parked.rows()] == [ParkedKey, ReleasedKey]


def test_a_release_of_a_first_message_is_remembered_without_a_commit(replica: Replica) -> None:
    """Law: without a commit nothing counts as consumed, so a release of the message at offset 0 is remembered."""
    known(replica).take(park(0), RELEASE)

    replica.take(KeyReleased("g", "t", "nothing"))

    assert list(replica.state.parked.rows()) == [(ReleasedKey("g", "t", 0, "k", 0, 1),)]
