"""The turn of a replica: group commit, order of persistence and sending, fates of proposals, leases."""

from collections.abc import Iterator

import pytest

from orderlymq_broker.processors.effects import Effect
from orderlymq_broker.replication.gathering import GATHER_COUNT
from orderlymq_broker.replication.loop import FOUNDING_WAIT_S
from orderlymq_broker.store.kv import Family
from orderlymq_raft import Append, AppendResponse, Heartbeat, Index, Term, VoteResponse
from tests.broker.replication.simulation import TICK_S, Proposal, Replica, SimulatedGroup

ELECTION_S = 0.4


@pytest.fixture
def group() -> Iterator[SimulatedGroup]:
    """Return three replicas; their states agree and hold their invariants in the end."""
    made = SimulatedGroup()
    yield made
    made.check()


def propose(replica: Replica, *names: str) -> list[Proposal]:
    proposals = [Proposal(name) for name in names]
    replica.loop.submit([proposal.effect for proposal in proposals])
    return proposals


def fates(proposals: list[Proposal]) -> list[str]:
    return [proposal.fate for proposal in proposals]


def others(group: SimulatedGroup, replica: Replica) -> list[Replica]:
    return [each for each in group.replicas.values() if each is not replica]


def test_what_is_proposed_together_shares_one_entry(group: SimulatedGroup) -> None:
    """Group commit: one entry, one write, one answer for all proposals of one iteration."""
    leader = group.elect()
    last, writes = leader.node.last_index, len(leader.disk.synced)

    proposals = propose(leader, "a", "b", "c")
    group.run()

    assert fates(proposals) == ["applied"] * 3
    assert leader.node.last_index == last + 1
    assert len(leader.disk.synced) == writes + 1


def test_a_leader_serves_only_after_its_own_first_entry_is_applied(group: SimulatedGroup) -> None:
    """A new leader gives no offsets before it has applied all that others left."""
    for replica in group.replicas.values():
        replica.disk.is_fast = False
    for _ in range(16):
        group.pass_time(TICK_S)
        for replica in group.replicas.values():
            if not replica.node.is_leader:
                replica.disk.finish()
            elif replica.disk.waiting:
                break
        group[1].disk.finish() if not group[1].node.is_leader else None

    leader = group[1]
    assert leader.node.is_leader
    assert not leader.loop.serving

    for replica in group.replicas.values():
        replica.disk.is_fast = True
        while replica.disk.waiting:
            replica.disk.finish()
    group.pass_time(4 * TICK_S)
    assert leader.loop.serving


def test_an_acknowledgement_leaves_only_after_the_write(group: SimulatedGroup) -> None:
    """A follower that has not written an entry does not say that it has it."""
    leader = group.elect()
    for replica in others(group, leader):
        replica.disk.is_fast = False

    proposals = propose(leader, "a")
    group.run()
    silent = [m for m in group.delivered if isinstance(m, AppendResponse)]
    acked_before = {m.index for m in silent if not m.reject}
    assert leader.node.last_index not in acked_before
    assert fates(proposals) == ["unknown"]

    others(group, leader)[0].disk.finish()
    group.run()
    assert fates(proposals) == ["applied"]


def test_what_arrives_during_a_short_write_shares_the_next_entry(group: SimulatedGroup) -> None:
    """Proposals gather while a write runs, until there are many; the end of the write sends them."""
    leader = group.elect()
    leader.disk.is_fast = False
    last = leader.node.last_index
    first = propose(leader, "a")
    group.run()
    few = []
    for number in range(GATHER_COUNT - 1):
        few += propose(leader, f"b{number}")
        group.run()
    assert leader.node.last_index == last + 1

    leader.disk.finish()
    group.run()
    assert leader.node.last_index == last + 2

    many = []
    for number in range(GATHER_COUNT):
        many += propose(leader, f"c{number}")
        group.run()
    assert leader.node.last_index == last + 3
    assert len(leader.disk.waiting) == 2

    while leader.disk.waiting:
        leader.disk.finish()
        group.run()
    assert set(fates(first + few + many)) == {"applied"}


def test_what_arrives_before_a_commit_shares_the_next_entry(group: SimulatedGroup) -> None:
    """Proposals gather until the entry before them is committed, and not longer than a moment."""
    leader = group.elect()
    for replica in others(group, leader):
        replica.disk.is_fast = False
    last = leader.node.last_index
    first = propose(leader, "a")
    group.run()
    assert not leader.disk.waiting
    second = propose(leader, "b") + propose(leader, "c")
    group.run()
    assert leader.node.last_index == last + 1

    others(group, leader)[0].disk.finish()
    group.run()
    assert fates(first) == ["applied"]
    assert leader.node.last_index == last + 2

    third = propose(leader, "d")
    group.run()
    assert leader.node.last_index == last + 2
    group.pass_time(TICK_S)
    assert leader.node.last_index == last + 3
    assert set(fates(second + third)) == {"unknown"}


def test_nothing_gathers_long_during_a_slow_write(group: SimulatedGroup) -> None:
    """A write that takes its time holds nobody back: the followers get the next entry meanwhile."""
    leader = group.elect()
    leader.disk.is_fast = False
    last = leader.node.last_index
    propose(leader, "a")
    group.run()
    propose(leader, "b")
    group.run()
    assert leader.node.last_index == last + 1

    group.pass_time(TICK_S)

    assert leader.node.last_index == last + 2


def test_two_writes_are_under_way_and_the_rest_gathers(group: SimulatedGroup) -> None:
    """While two writes run, what arrives shares the next entry; none overtakes."""
    leader = group.elect()
    leader.disk.is_fast = False
    first = propose(leader, "a")
    group.run()
    group.pass_time(TICK_S)
    second = propose(leader, "b")
    group.run()
    rest = []
    for name in ("c", "d", "e"):
        rest += propose(leader, name)
        group.run()

    assert len(leader.disk.waiting) == 2
    last = leader.node.last_index
    leader.disk.is_fast = True
    leader.disk.finish()
    group.run()
    leader.disk.finish()
    group.run()

    assert fates(first + second + rest) == ["applied"] * 5
    assert leader.node.last_index == last + 1


def test_a_slow_disk_does_not_silence_the_leader(group: SimulatedGroup) -> None:
    """Heartbeats go on while both writes wait, so that a slow disk costs no election."""
    leader = group.elect()
    leader.disk.is_fast = False
    for name in ("a", "b"):
        propose(leader, name)
        group.run()
    term, before = leader.node.term, len(group.delivered)

    group.pass_time(2 * ELECTION_S)

    beats = [m for m in group.delivered[before:] if isinstance(m, Heartbeat)]
    assert len(beats) >= 10
    assert leader.node.term == term
    assert leader.node.is_leader


def test_an_overwritten_proposal_is_lost_once_and_only_when_that_is_certain(
    group: SimulatedGroup,
) -> None:
    """A leader that was cut off answers its proposals when another entry is applied in their place."""
    leader = group.elect()
    group.cut.add(leader.id)
    proposals = propose(leader, "a")
    group.run()

    group.pass_time(2 * ELECTION_S)
    assert fates(proposals) == ["unknown"]
    assert "not serving" in leader.events

    group.cut.clear()
    group.pass_time(ELECTION_S)
    assert fates(proposals) == ["lost"]
    assert "a" not in leader.state.topics.by_name


def test_a_proposal_that_a_later_leader_commits_is_applied(group: SimulatedGroup) -> None:
    """A leader that lost its place answers success when its entry survived in the next term."""
    leader = group.elect()
    follower = others(group, leader)[0]
    proposals = propose(leader, "a")
    # The entry reaches the followers, the answers never come back.
    group.step()
    sent, group.sent = group.sent, []
    for message in sent:
        group[message.target].loop.receive([message])
    group.step()
    group.sent.clear()
    group.cut.add(leader.id)
    group.run()
    group.pass_time(2 * ELECTION_S)
    assert fates(proposals) == ["unknown"]

    group.cut.clear()
    group.pass_time(ELECTION_S)
    assert fates(proposals) == ["applied"]
    assert "a" in follower.state.topics.by_name


def test_what_never_entered_the_log_is_lost_with_leadership(group: SimulatedGroup) -> None:
    """Proposals that wait for a slow disk are refused definitely when leadership goes."""
    leader = group.elect()
    leader.disk.is_fast = False
    group.cut.add(leader.id)
    in_log = []
    for name in ("a", "b"):
        in_log += propose(leader, name)
        group.run()
        group.pass_time(TICK_S)
    collected = propose(leader, "c", "d")
    group.pass_time(2 * ELECTION_S)

    assert fates(collected) == ["lost", "lost"]
    assert fates(in_log) == ["unknown", "unknown"]
    leader.disk.is_fast = True
    while leader.disk.waiting:
        leader.disk.finish()


def test_a_proposal_without_leadership_is_lost_at_once(group: SimulatedGroup) -> None:
    """A replica that does not serve puts nothing into the log."""
    leader = group.elect()
    follower = others(group, leader)[0]

    proposals = propose(follower, "a")
    group.run()

    assert fates(proposals) == ["lost"]


def test_a_paused_leader_asks_before_it_answers_again(group: SimulatedGroup) -> None:
    """After a pause longer than an election the lease is worth nothing until a majority confirms."""
    leader = group.elect()
    assert leader.loop.may_answer()
    group.cut.add(leader.id)
    group.pass_time(3 * ELECTION_S, paused=[leader.id])

    assert not leader.loop.may_answer()
    group.cut.clear()
    group.run()
    assert not leader.loop.may_answer()
    group.pass_time(ELECTION_S)
    assert not leader.loop.serving
    assert leader.node.leader not in {None, leader.id}


def test_a_paused_leader_goes_on_when_nobody_has_replaced_it(group: SimulatedGroup) -> None:
    """A pause that all shared ends with one round of heartbeats, not with an election."""
    leader = group.elect()
    term = leader.node.term
    group.pass_time(0.15, paused=[leader.id])

    assert not leader.loop.may_answer()
    group.run()

    assert leader.loop.may_answer()
    assert leader.node.term == term


def test_a_follower_that_was_paused_does_not_rush_into_an_election(group: SimulatedGroup) -> None:
    """Late ticks are made up for a few at a time: the heartbeats in the socket come first."""
    leader = group.elect()
    follower = others(group, leader)[0]
    term = leader.node.term
    group.pass_time(5 * ELECTION_S, paused=[follower.id])
    group.pass_time(ELECTION_S)

    assert group[leader.id].loop.serving
    assert leader.node.term == term


def test_a_leader_that_was_cut_off_stops_answering_before_another_leads(
    group: SimulatedGroup,
) -> None:
    """At no time do two replicas answer: the lease ends before the others elect."""
    leader = group.elect()
    group.cut.add(leader.id)
    for _ in range(60):
        group.pass_time(TICK_S)
        answering = [node for node, each in group.replicas.items() if each.loop.may_answer()]
        assert len(answering) <= 1
    assert not leader.loop.may_answer()
    assert any(each.loop.may_answer() for each in others(group, leader))


def test_a_restart_applies_again_what_was_only_staged(group: SimulatedGroup) -> None:
    """The log is the truth: applied state that no write has carried comes back from it."""
    leader = group.elect()
    names = [f"t{number}" for number in range(5)]
    for name in names:
        propose(leader, name)
        group.run()
    group.pass_time(4 * TICK_S)

    for node in group.nodes:
        for kept in range(3):
            replica = group.restart(node, kept=kept)
            group.pass_time(3 * ELECTION_S)
            assert set(names) <= set(replica.state.topics.by_name)
    group.check()


def serving(group: SimulatedGroup) -> list[int]:
    return [each.id for each in group.replicas.values() if each.loop.serving]


def test_a_new_group_serves_when_all_its_replicas_have_met(group: SimulatedGroup) -> None:
    """Who never heard of a leader cannot vote: the first one is not to be relied on before."""
    group.cut = {3}
    group.pass_time(4 * ELECTION_S)
    (leader,) = [each for each in group.replicas.values() if each.node.is_leader]
    assert serving(group) == []

    group.cut = set()
    group.pass_time(2 * ELECTION_S)
    assert serving(group) == [leader.id]
    # Now the group can lose its first leader at once.
    group.cut = {leader.id}
    group.pass_time(6 * ELECTION_S)
    assert set(serving(group)) - {leader.id}


def test_a_new_group_does_not_wait_for_ever(group: SimulatedGroup) -> None:
    """A replica that does not come with the others is not waited for."""
    group.cut = {3}
    group.pass_time(FOUNDING_WAIT_S + 4 * ELECTION_S)

    assert any(each.loop.serving for each in group.replicas.values())


def commit_unseen_by_one(group: SimulatedGroup) -> tuple[Replica, Replica, Replica]:
    """Have "precious" committed; return the leader, who was cut off and lacks it, and who has it, too."""
    leader = group.elect()
    lagging, witness = others(group, leader)
    group.cut.add(lagging.id)
    proposals = propose(leader, "precious")
    group.run()
    assert fates(proposals) == ["applied"]
    return leader, lagging, witness


def test_a_wiped_voter_does_not_vote_before_it_has_caught_up(group: SimulatedGroup) -> None:
    """A voter without memory must not elect a leader that lacks what it once acknowledged."""
    leader, lagging, witness = commit_unseen_by_one(group)

    # The two that know of it: one is gone, the other has lost its disk.
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
    # With its memory back it votes again.
    group.cut = {leader.id}
    group.pass_time(4 * ELECTION_S)
    assert any(each.loop.serving for each in (lagging, wiped))


def test_a_wiped_voter_that_has_a_part_of_its_log_again_is_not_elected(
    group: SimulatedGroup,
) -> None:
    """Its own vote is one, too: with another replica that lags it would lead without what it has lost."""
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

    assert wiped.loop.has_forgotten
    assert not any(each.node.is_leader for each in (lagging, wiped))

    group.cut = set()
    group.greet(wiped.id)
    group.pass_time(4 * ELECTION_S)
    assert "precious" in wiped.state.topics.by_name
    assert not wiped.loop.has_forgotten


def test_a_wiped_voter_commits_nothing_for_a_leader_that_it_has_voted_out(
    group: SimulatedGroup,
) -> None:
    """Law: what a disk has forgotten does not count for a leader that is deposed and not aware of it."""
    deposed = group.elect()
    successor, wiped = others(group, deposed)
    group.cut = {deposed.id}
    group.pass_time(4 * ELECTION_S, paused=[deposed.id])
    assert successor.loop.serving
    precious = propose(successor, "precious")
    group.run()
    assert fates(precious) == ["applied"]

    # The disk that knows of it goes, and those two meet that know nothing.
    group.cut = {successor.id}
    wiped = group.wipe(wiped.id)
    group.greet(wiped.id)
    assert deposed.node.is_leader
    unsafe = propose(deposed, "unsafe")
    group.run()
    group.pass_time(4 * ELECTION_S)
    assert fates(unsafe) != ["applied"]
    assert [each.id for each in group.replicas.values() if each.loop.has_forgotten] == [wiped.id]

    group.cut = set()
    group.greet(wiped.id)
    group.pass_time(6 * ELECTION_S)
    for replica in group.replicas.values():
        assert not replica.loop.has_forgotten
        assert "precious" in replica.state.topics.by_name
        assert "unsafe" not in replica.state.topics.by_name


def test_a_group_whose_first_leader_was_left_alone_begins_all_the_same(
    group: SimulatedGroup,
) -> None:
    """Law: until somebody has served, no restart and no late start keeps a new group from electing.

    The first leader and the only one that had voted for it part; then the third one comes.
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
    assert fates(proposals) == ["applied"]
    group.pass_time(ELECTION_S)
    assert not any(each.loop.has_forgotten for each in group.replicas.values())


def test_a_wiped_follower_gets_the_log_again(group: SimulatedGroup) -> None:
    """A leader that still counts what a wiped follower had acknowledged begins anew with it."""
    leader = group.elect()
    propose(leader, "a")
    group.run()
    wiped = group.wipe(others(group, leader)[0].id)
    # The leader's heartbeats come first: they name a commit index that the follower had once.
    group.pass_time(ELECTION_S)
    assert wiped.node.commit == 0

    group.greet(wiped.id)
    group.pass_time(ELECTION_S)

    assert "a" in wiped.state.topics.by_name
    assert not wiped.loop.has_forgotten


def test_a_leader_that_cannot_read_its_disk_leads_no_more(group: SimulatedGroup) -> None:
    """What it can still do without reading would keep its place and serve nobody."""
    leader = group.elect()
    leader.store.unreadable = True

    def read() -> list[Effect]:
        leader.store.get(Family.META, b"any")
        return []

    leader.loop.decide(read)
    group.pass_time(2 * ELECTION_S)

    assert leader.events[-1] == "failed: the store in memory was told to be unreadable"
    assert [each.id for each in others(group, leader) if each.loop.serving]


def test_a_single_replica_is_a_group_of_its_own() -> None:
    """One voter elects itself and commits what it has written."""
    group = SimulatedGroup(1)
    leader = group.elect()

    proposals = propose(leader, "a")
    group.run()

    assert fates(proposals) == ["applied"]
    assert leader.loop.may_answer()
    group.check()
