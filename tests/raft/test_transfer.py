"""How a leader hands its place over."""

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


def test_only_a_leader_hands_its_place_over() -> None:
    """It names the leader, which the caller may ask."""
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
    """Law: nothing has begun then, so that another target may be chosen."""
    replica = leader()

    with pytest.raises(ProposalRefused) as caught:
        transfer.begin(replica.node._state, target)

    assert (caught.value.reason, str(caught.value)) == (reason, reason)
    assert replica.node._state.transferee is None


@pytest.mark.parametrize("leases", [True, False])
def test_a_leader_gives_up_its_lease_before_it_asks(*, leases: bool) -> None:
    """Law: the target may lead at any time from then on, and what has no lease loses none."""
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
