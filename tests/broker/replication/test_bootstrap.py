"""How a raft group begins, and how a replica that lost its disk returns."""

import pytest

from orderlymq_broker.replication import recovery
from orderlymq_broker.replication.bootstrap import BOOTSTRAP_WAIT_S
from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_raft import (
    AddLearner,
    Append,
    Index,
    Message,
    NotLeader,
    ProposalRefused,
    RemoveNode,
    Term,
    VoteResponse,
)
from tests.broker.replication.simulation import (
    ELECTION_S,
    TICK_S,
    Replica,
    SimulatedGroup,
    others,
    outcomes,
    propose,
)


def serving(group: SimulatedGroup) -> list[int]:
    return [each.id for each in group.replicas.values() if each.loop.serving]


def test_a_new_group_serves_when_all_its_replicas_have_met(group: SimulatedGroup) -> None:
    """Law: a new group serves only when all its replicas have met, because one that never heard of a leader cannot vote."""
    group.cut = {3}
    group.pass_time(4 * ELECTION_S)
    (leader,) = [each for each in group.replicas.values() if each.node.is_leader]
    assert serving(group) == []

    group.cut = set()
    group.pass_time(2 * ELECTION_S)
    assert serving(group) == [leader.id]
    # Now the group can lose its first leader immediately.
    group.cut = {leader.id}
    group.pass_time(6 * ELECTION_S)
    assert set(serving(group)) - {leader.id}


def test_a_new_group_does_not_wait_for_ever(group: SimulatedGroup) -> None:
    """Law: after a time a new group begins without a replica that did not come."""
    group.cut = {3}
    group.pass_time(BOOTSTRAP_WAIT_S + 4 * ELECTION_S)

    assert any(each.loop.serving for each in group.replicas.values())


def test_a_membership_change_does_not_keep_a_new_group_from_beginning(
    group: SimulatedGroup,
) -> None:
    """Law: a membership change and a restart of the first leader do not keep a new group from beginning."""
    added = group.join(4)
    group.cut = {3, added.id}
    group.pass_time(2 * ELECTION_S)
    (leader,) = [each for each in group.replicas.values() if each.node.is_leader]
    assert serving(group) == []
    with pytest.raises(ProposalRefused):
        leader.loop.change_membership(AddLearner(added.id))
    group.pass_time(TICK_S)

    group.restart(leader.id)
    group.cut = {added.id}
    group.pass_time(6 * ELECTION_S)

    assert serving(group)


def test_a_leader_that_does_not_serve_changes_no_membership(group: SimulatedGroup) -> None:
    """Law: a leader that does not serve yet refuses membership changes,
    because it could not report their outcome for certain.
    """
    former = group.elect()
    refusals: list[str] = []
    deliver = group._deliver

    def deliver_and_ask(message: Message) -> None:
        """Ask a leader to change members when its opening entry is committed but not applied yet."""
        deliver(message)
        leader = group[message.target]
        is_sure = leader.node.is_leader and leader.node.commit == leader.node.last_index
        if is_sure and not leader.loop.serving:
            with pytest.raises(ProposalRefused) as refused:
                leader.loop.change_membership(RemoveNode(former.id))
            refusals.append(str(refused.value))

    group._deliver = deliver_and_ask  # type: ignore[method-assign] # the network's part
    group.cut = {former.id}
    group.pass_time(4 * ELECTION_S)

    assert set(refusals) == {"the leader does not serve yet; retry shortly"}
    follower = next(each for each in group.replicas.values() if not each.node.is_leader)
    with pytest.raises(NotLeader):
        follower.loop.change_membership(RemoveNode(former.id))


def commit_unseen_by_one(group: SimulatedGroup) -> tuple[Replica, Replica, Replica]:
    """Commit the topic "precious"; return the leader, the replica that was cut off and lacks it,
    and the other one that has it.
    """
    leader = group.elect()
    lagging, witness = others(group, leader)
    group.cut.add(lagging.id)
    proposals = propose(leader, "precious")
    group.run()
    assert outcomes(proposals) == ["applied"]
    return leader, lagging, witness


def test_a_wiped_voter_does_not_vote_before_it_has_caught_up(group: SimulatedGroup) -> None:
    """Law: a voter that lost its log does not vote until it has caught up;
    else it could elect a leader without acknowledged entries.
    """
    leader, lagging, witness = commit_unseen_by_one(group)

    # Of the two that have it, one is gone and the other has lost its disk.
    group.cut = {leader.id}
    wiped = group.wipe(witness.id)
    group.pass_time(4 * ELECTION_S)
    granted = [m for m in group.delivered if isinstance(m, VoteResponse) and m.sender == wiped.id]
    assert not any(m.granted and m.term > leader.node.term for m in granted)
    assert not lagging.loop.serving

    group.cut = set()
    group.greet(wiped.id)
    group.pass_time(4 * ELECTION_S)
    assert "precious" in wiped.state.topics.by_name
    # When it has the log again, it votes.
    group.cut = {leader.id}
    group.pass_time(4 * ELECTION_S)
    assert any(each.loop.serving for each in (lagging, wiped))


def test_a_wiped_voter_votes_only_once_its_log_is_on_its_disk_again(group: SimulatedGroup) -> None:
    """Law: a wiped voter votes only when its log is on its disk again; a log in memory is lost in the next crash."""
    leader, _, witness = commit_unseen_by_one(group)
    group.cut = set()
    wiped = group.wipe(witness.id)
    wiped.disk.is_fast = False
    group.greet(wiped.id)

    recovering = []
    for number in range(200):
        group.pass_time(TICK_S)
        on_disk = wiped.store.crash()
        is_whole = RaftLogStore(on_disk, 0).last_index() >= leader.node.commit
        recovering.append((wiped.loop.is_recovering, is_whole and not Recovery(on_disk).active))
        if number % 4 == 0:
            wiped.disk.finish()

    assert recovering[-1] == (False, True)
    assert (False, False) not in recovering


def test_a_wiped_replica_cannot_stand_in_for_another_before_its_log_is_on_its_disk(
    group: SimulatedGroup,
) -> None:
    """Law: until its log is on its disk, a wiped replica is not ready, so that no drain removes one that has the log.

    In a new or idle group all are ready.
    """
    leader = group.elect()
    group.pass_time(ELECTION_S)
    at_rest = [each.loop.lacks_log(Index(0)) for each in group.replicas.values()]
    _, witness = others(group, leader)
    wiped = group.wipe(witness.id)
    wiped.disk.is_fast = False
    group.greet(wiped.id)

    said = []
    for number in range(200):
        group.pass_time(TICK_S)
        stored = RaftLogStore(wiped.store.crash(), 0).last_index()
        if wiped.node.leader is not None:
            said.append((wiped.loop.lacks_log(Index(0)), stored >= leader.node.commit))
        if number % 4 == 0:
            wiped.disk.finish()

    assert at_rest == [False] * 3
    assert (said[0], said[-1]) == ((True, False), (False, True))
    assert (False, False) not in said


def test_a_new_member_of_an_idle_group_can_soon_stand_in_for_another(group: SimulatedGroup) -> None:
    """Law: a new member of an idle group is soon ready without new messages, because it gets its vote only then."""
    leader = group.elect()
    group.pass_time(ELECTION_S)
    added = group.join(4)
    leader.loop.change_membership(AddLearner(added.id))

    group.pass_time(2 * ELECTION_S)

    assert added.node.leader == leader.id
    assert not added.loop.lacks_log(Index(0))


def test_a_replica_that_was_away_cannot_stand_in_for_another_before_it_has_nearly_all(
    group: SimulatedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a replica is not ready while it lacks many of the leader's entries, or was offered a snapshot beyond its log."""
    monkeypatch.setattr(recovery, "LACKED_MAX", 3)
    leader = group.elect()
    away, _ = others(group, leader)
    group.cut = {away.id}
    for number in range(8):
        propose(leader, f"topic-{number}")
        group.run()
    away.disk.is_fast = False
    group.cut = set()
    group.pass_time(2 * ELECTION_S)

    before = away.loop.lacks_log(Index(0))
    for _ in range(20):
        away.disk.finish()
        group.pass_time(TICK_S)
    end = away.node.stable

    assert (before, away.loop.lacks_log(end)) == (True, False)
    assert away.loop.lacks_log(Index(end + 1))
    assert not leader.loop.lacks_log(Index(end + 1))


def test_a_wiped_voter_that_has_a_part_of_its_log_again_is_not_elected(
    group: SimulatedGroup,
) -> None:
    """Law: a wiped voter with a part of its log is not elected; with another replica that lags it would lead without
    acknowledged entries.
    """
    leader, lagging, witness = commit_unseen_by_one(group)
    part = tuple(leader.log.entries(Index(1), Index(lagging.node.last_index + 1), 1 << 20))
    told = Append(
        leader.node.id,
        witness.node.id,
        leader.node.term,
        Index(0),
        Term(0),
        leader.node.commit,
        part,
    )

    group.cut = {leader.id}
    wiped = group.wipe(witness.id)
    wiped.loop.receive([told])
    group.run()
    assert wiped.node.last_index == lagging.node.last_index
    group.pass_time(4 * ELECTION_S)

    assert wiped.loop.is_recovering
    assert not any(each.node.is_leader for each in (lagging, wiped))

    group.cut = set()
    group.greet(wiped.id)
    group.pass_time(4 * ELECTION_S)
    assert "precious" in wiped.state.topics.by_name
    assert not wiped.loop.is_recovering


def test_a_wiped_voter_commits_nothing_for_a_leader_that_it_has_voted_out(
    group: SimulatedGroup,
) -> None:
    """Law: a wiped voter's acknowledgements do not count for a deposed leader that does not know of its end."""
    deposed = group.elect()
    successor, wiped = others(group, deposed)
    group.cut = {deposed.id}
    group.pass_time(4 * ELECTION_S, paused=[deposed.id])
    assert successor.loop.serving
    precious = propose(successor, "precious")
    group.run()
    assert outcomes(precious) == ["applied"]

    # The disk that has it is lost, and the two that lack it meet.
    group.cut = {successor.id}
    wiped = group.wipe(wiped.id)
    group.greet(wiped.id)
    assert deposed.node.is_leader
    unsafe = propose(deposed, "unsafe")
    group.run()
    group.pass_time(4 * ELECTION_S)
    assert outcomes(unsafe) != ["applied"]
    assert [each.id for each in group.replicas.values() if each.loop.is_recovering] == [wiped.id]

    group.cut = set()
    group.greet(wiped.id)
    group.pass_time(6 * ELECTION_S)
    for replica in group.replicas.values():
        assert not replica.loop.is_recovering
        assert "precious" in replica.state.topics.by_name
        assert "unsafe" not in replica.state.topics.by_name


def test_a_group_whose_first_leader_was_left_alone_begins_all_the_same(
    group: SimulatedGroup,
) -> None:
    """Law: until a leader has served, no restart and no late start keeps a new group from electing one.

    Here the first leader and its only voter are separated; then the third replica comes.
    """
    late = group[3]
    group.cut = {late.id}
    for _ in range(80):
        group.pass_time(TICK_S)
        first = next((each for each in group.replicas.values() if each.node.is_leader), None)
        if first is not None:
            break
    assert first is not None
    assert not first.loop.serving
    voter = next(each for each in group.replicas.values() if each not in (first, late))
    group.cut = {voter.id, late.id}
    group.pass_time(4 * ELECTION_S)
    assert not first.node.is_leader

    group.cut = set()
    voter = group.restart(voter.id)
    for node in group.nodes:
        group.greet(node)
    leader = group.elect()
    proposals = propose(leader, "orders")
    group.run()
    assert outcomes(proposals) == ["applied"]
    group.pass_time(ELECTION_S)
    assert not any(each.loop.is_recovering for each in group.replicas.values())


def test_a_wiped_follower_gets_the_log_again(group: SimulatedGroup) -> None:
    """Law: a leader that counted a wiped follower's acknowledgements sends it the log from the begin."""
    leader = group.elect()
    propose(leader, "a")
    group.run()
    wiped = group.wipe(others(group, leader)[0].id)
    # The leader's heartbeats come first and name a commit index that the follower had once.
    group.pass_time(ELECTION_S)
    assert wiped.node.commit == 0

    group.greet(wiped.id)
    group.pass_time(ELECTION_S)

    assert "a" in wiped.state.topics.by_name
    assert not wiped.loop.is_recovering
