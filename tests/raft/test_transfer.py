"""How a leader transfers its leadership."""

import pytest

from orderlymq_raft import (
    Heartbeat,
    HeartbeatResponse,
    Index,
    NodeId,
    NotLeader,
    ProposalRefused,
    Term,
    TimeoutNow,
    transfer,
)
from tests.raft.harness.solo import ME, OTHER, PEER, ack, lead, say, solo, work
from tests.raft.test_replication import leader


def test_a_target_is_asked_to_run_once() -> None:
    """Law: the target is asked once, even if it needs its log again: a second request could start a second election."""
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
    """Law: a transfer to another target starts over; the new target is asked when its log is complete."""
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
    """Law: a repeated request neither restarts the time of a transfer nor sends entries again."""
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
    """Law: a transfer has a whole election time-out, independent of when the leader last checked its majority."""
    replica = leader()
    replica.tick()
    assert replica.node._state.election_elapsed > 0

    replica.node.transfer_leadership(OTHER)

    assert replica.node._state.election_elapsed == 0


def test_a_target_that_is_probed_is_not_asked_twice() -> None:
    """Law: a transfer sends no second append to a target that has not answered its probe."""
    replica = leader()

    replica.node.transfer_leadership(OTHER)

    assert not work(replica)


def test_only_a_leader_hands_its_place_over() -> None:
    """Law: a replica that does not lead refuses a transfer and names the leader."""
    replica = solo()
    say(replica, Heartbeat(PEER, ME, Term(1), Index(0), 1))

    with pytest.raises(NotLeader) as caught:
        transfer.begin(replica.node._state, OTHER)

    assert caught.value.leader == PEER


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (NodeId(9), "node 9 is not a voter; choose one of the voters"),
        (ME, "node 1 is the leader already; choose another voter"),
    ],
)
def test_a_target_that_cannot_lead_next_is_refused(target: NodeId, reason: str) -> None:
    """Law: an unsuitable target is refused before anything begins, so that the caller may choose another one."""
    replica = leader()

    with pytest.raises(ProposalRefused) as caught:
        transfer.begin(replica.node._state, target)

    assert (caught.value.reason, str(caught.value)) == (reason, reason)
    assert replica.node._state.transferee is None


@pytest.mark.parametrize("leases", [True, False])
def test_a_leader_gives_up_its_lease_before_it_asks(*, leases: bool) -> None:
    """Law: a leader gives up its lease before it asks the target; if leases are off, nothing is revoked."""
    replica = solo(lease_reads=leases)
    lead(replica)
    say(replica, ack(replica, 1))
    replica.tick()
    replica.tick()
    work(replica)
    say(replica, HeartbeatResponse(PEER, ME, Term(1), 1))
    before = replica.node.lease_valid

    transfer.begin(replica.node._state, PEER)

    assert (before, replica.node.lease_valid) == (leases, False)
    assert replica.node._state.lease_revoked is leases
