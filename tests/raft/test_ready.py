"""Messages that wait for a disk that does not answer."""

import pytest

from orderlymq_raft import Heartbeat, HeartbeatResponse, Index, Message, NodeId, Term
from orderlymq_raft.ready import WAITING_MAX, keep_newest
from tests.raft.harness.solo import ME, OTHER, PEER, heartbeat, solo


@pytest.mark.parametrize(
    ("count", "first"), [(WAITING_MAX, 0), (WAITING_MAX + 1, WAITING_MAX // 2)]
)
def test_the_oldest_half_goes_when_there_is_one_too_many(count: int, first: int) -> None:
    """Law: the newest stay, in their order."""
    messages: list[Message] = [
        Heartbeat(PEER, ME, Term(1), Index(0), number) for number in range(count)
    ]

    keep_newest(messages)

    assert [message.context for message in messages if isinstance(message, Heartbeat)] == list(
        range(first, count)
    )


def test_answers_wait_in_bounded_number() -> None:
    """Law: a follower whose disk hangs answers the newest heartbeats when it is done, and fills no memory."""
    replica = solo(term=1)
    for round_ in range(3 * WAITING_MAX):
        replica.node.step(heartbeat(1, round_=round_))

    ready = replica.begin_turn()

    assert ready is not None
    assert len(ready.messages_after) <= WAITING_MAX
    assert ready.messages_after[-1] == HeartbeatResponse(ME, PEER, Term(1), 3 * WAITING_MAX - 1)


def test_requests_for_votes_wait_in_bounded_number() -> None:
    """Law: also one that runs again and again while its disk hangs fills no memory."""
    replica = solo()
    for _ in range(WAITING_MAX * replica.config.election_ticks):
        replica.node.tick()

    ready = replica.begin_turn()

    assert ready is not None
    targets: set[NodeId] = {message.target for message in ready.messages_after}
    assert targets == {PEER, OTHER}
    assert WAITING_MAX // 4 < len(ready.messages_after) <= WAITING_MAX
