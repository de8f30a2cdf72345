"""How a leader hands its place over."""

from orderlymq_raft import (
    Term,
    TimeoutNow,
    transfer,
)
from tests.raft.harness.solo import ME, OTHER, PEER, ack, say, work
from tests.raft.test_replication import leader


def test_a_target_is_asked_to_run_once() -> None:
    """Also when it has to get its log again: a second request could start a second election."""
    replica = leader()
    replica.node.transfer_leadership(PEER)
    first = work(replica)

    replica.node.report_wiped(PEER)
    work(replica)
    second = say(replica, ack(replica, 5))

    assert [each for each in first if isinstance(each, TimeoutNow)] == [
        TimeoutNow(ME, PEER, Term(1))
    ]
    assert not [each for each in second if isinstance(each, TimeoutNow)]


def test_a_transfer_to_another_target_begins_again() -> None:
    """The first one did not take over; the second one is asked as well, when its log is complete."""
    replica = leader()
    replica.node.transfer_leadership(PEER)
    work(replica)

    replica.node.transfer_leadership(OTHER)
    waiting = work(replica)
    say(replica, ack(replica, 3, OTHER))
    sent = say(replica, ack(replica, 5, OTHER))

    assert not [each for each in waiting if isinstance(each, TimeoutNow)]
    assert [each for each in sent if isinstance(each, TimeoutNow)] == [
        TimeoutNow(ME, OTHER, Term(1))
    ]


def test_a_second_request_for_the_same_transfer_changes_nothing() -> None:
    """Neither is it a new one, which would have its whole time again, nor does it lack entries."""
    replica = leader()
    replica.node.propose(b"y")
    work(replica)

    assert transfer.begin(replica.node._state, OTHER) is True
    replica.tick()
    elapsed = replica.node._state.election_elapsed
    assert elapsed > 0
    assert transfer.begin(replica.node._state, OTHER) is False

    assert replica.node._state.election_elapsed == elapsed


def test_a_transfer_has_a_whole_election_time_out() -> None:
    """It is not over early because the leader looked for its majority some time ago."""
    replica = leader()
    replica.tick()
    assert replica.node._state.election_elapsed > 0

    replica.node.transfer_leadership(OTHER)

    assert replica.node._state.election_elapsed == 0


def test_a_target_that_is_probed_is_not_asked_twice() -> None:
    """Law: a transfer does not send it an append beside the one that it has not answered yet."""
    replica = leader()

    replica.node.transfer_leadership(OTHER)

    assert not work(replica)
