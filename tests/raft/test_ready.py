"""Messages that wait for a disk write: how many may wait, and which are sent before it ends."""

import pytest

from orderlymq_raft import (
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Index,
    Message,
    NodeId,
    Term,
)
from orderlymq_raft.ready import WAITING_MAX, keep_newest
from tests.raft.harness.solo import (
    ME,
    OTHER,
    PEER,
    append,
    entry,
    heartbeat,
    solo,
)


@pytest.mark.parametrize(
    ("count", "first"), [(WAITING_MAX, 0), (WAITING_MAX + 1, WAITING_MAX // 2)]
)
def test_the_oldest_half_goes_when_there_is_one_too_many(count: int, first: int) -> None:
    """Law: if one message too many waits, the oldest half is dropped; the others keep their order."""
    messages: list[Message] = [
        Heartbeat(PEER, ME, Term(1), Index(0), number) for number in range(count)
    ]

    keep_newest(messages)

    assert [message.context for message in messages if isinstance(message, Heartbeat)] == list(
        range(first, count)
    )


def test_answers_wait_in_bounded_number() -> None:
    """Law: a follower with a slow disk keeps a bounded number of answers, and sends the newest when the write ends."""
    replica = solo(term=1)
    for round_ in range(3 * WAITING_MAX):
        replica.node.step(heartbeat(1, round_=round_))

    ready = replica.begin_turn()

    assert ready is not None
    assert len(ready.messages_after) <= WAITING_MAX
    assert ready.messages_after[-1] == HeartbeatResponse(ME, PEER, Term(1), 3 * WAITING_MAX - 1)


def test_requests_for_votes_wait_in_bounded_number() -> None:
    """Law: a candidate whose disk hangs keeps a bounded number of vote requests."""
    replica = solo()
    for _ in range(WAITING_MAX * replica.config.election_ticks):
        replica.node.tick()

    ready = replica.begin_turn()

    assert ready is not None
    targets: set[NodeId] = {message.target for message in ready.messages_after}
    assert targets == {PEER, OTHER}
    assert WAITING_MAX // 4 < len(ready.messages_after) <= WAITING_MAX


def test_answers_to_heartbeats_overtake_a_write() -> None:
    """Law: heartbeats are answered during a write, so that a slow disk deposes no leader.

    Acknowledgements of entries wait for the write.
    """
    replica = solo(1, vote=PEER)
    replica.step(append(1, (1, 1), [entry(2, 1)]))
    replica.begin_turn()
    replica.step(heartbeat(1, round_=7))
    replica.step(append(1, (2, 1), [entry(3, 1)]))

    taken = [replica.node.take_heartbeat_responses() for _ in range(2)]

    assert taken == [[HeartbeatResponse(ME, PEER, Term(1), 7)], []]
    ready = replica.begin_turn()
    assert ready is not None
    assert ready.messages_after == [AppendResponse(ME, PEER, Term(1), Index(3))]


def test_answers_to_heartbeats_wait_for_a_term_that_is_not_durable() -> None:
    """Law: the answer to a heartbeat of a new term waits until that term is durable."""
    replica = solo(1)
    replica.step(heartbeat(2, round_=1))
    taken = [replica.node.take_heartbeat_responses()]
    ready = replica.begin_turn()
    replica.step(heartbeat(2, round_=2))
    taken.append(replica.node.take_heartbeat_responses())

    replica.end_turn()

    assert taken == [[], []]
    assert ready is not None
    assert ready.messages_after == [HeartbeatResponse(ME, PEER, Term(2), 1)]
    assert replica.node.take_heartbeat_responses() == [HeartbeatResponse(ME, PEER, Term(2), 2)]
