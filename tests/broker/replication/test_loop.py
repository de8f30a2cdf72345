"""The turn of a replica: group commit, the order of writing and sending, outcomes of proposals, leases."""

from itertools import pairwise

import pytest

from orderlymq_broker.core.effects import CallSoon, Effect, Now, Propose
from orderlymq_broker.core.entrybuilder import ENTRY_CHANGES_USUAL
from orderlymq_broker.replication.groupcommit import LINGER_COUNT_MAX
from orderlymq_broker.state.records import TopicSet
from orderlymq_broker.store.entry import encode_entry
from orderlymq_broker.store.kv import Family
from orderlymq_raft import (
    Append,
    AppendResponse,
    Config,
    Entry,
    Heartbeat,
    Index,
    NodeId,
    Term,
    Vote,
)
from tests.broker.replication.simulation import (
    ELECTION_S,
    TICK_S,
    Proposal,
    SimulatedGroup,
    others,
    outcomes,
    propose,
)


def test_what_is_proposed_together_shares_one_entry(group: SimulatedGroup) -> None:
    """Law: proposals of one iteration share one entry, one write and one round of acknowledgements."""
    leader = group.elect()
    last, writes = leader.node.last_index, len(leader.disk.synced)

    proposals = propose(leader, "a", "b", "c")
    group.run()

    assert outcomes(proposals) == ["applied"] * 3
    assert leader.node.last_index == last + 1
    assert len(leader.disk.synced) == writes + 1


def test_a_leader_serves_only_after_its_own_first_entry_is_applied(group: SimulatedGroup) -> None:
    """Law: a new leader serves only after its first entry is applied,
    so that it gives no offset before it knows all earlier ones.
    """
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
    """Law: a follower acknowledges an entry only after it has written it."""
    leader = group.elect()
    for replica in others(group, leader):
        replica.disk.is_fast = False

    proposals = propose(leader, "a")
    group.run()
    silent = [m for m in group.delivered if isinstance(m, AppendResponse)]
    acked_before = {m.index for m in silent if not m.reject}
    assert leader.node.last_index not in acked_before
    assert outcomes(proposals) == ["unknown"]

    others(group, leader)[0].disk.finish()
    group.run()
    assert outcomes(proposals) == ["applied"]


def test_what_arrives_during_a_short_write_shares_the_next_entry(group: SimulatedGroup) -> None:
    """Law: proposals that arrive during a write share the next entry, unless there are many."""
    leader = group.elect()
    leader.disk.is_fast = False
    last = leader.node.last_index
    first = propose(leader, "a")
    group.run()
    few = []
    for number in range(LINGER_COUNT_MAX - 1):
        few += propose(leader, f"b{number}")
        group.run()
    assert leader.node.last_index == last + 1

    leader.disk.finish()
    group.run()
    assert leader.node.last_index == last + 2

    many = []
    for number in range(LINGER_COUNT_MAX):
        many += propose(leader, f"c{number}")
        group.run()
    assert leader.node.last_index == last + 3
    assert len(leader.disk.waiting) == 2

    while leader.disk.waiting:
        leader.disk.finish()
        group.run()
    assert set(outcomes(first + few + many)) == {"applied"}


def test_what_arrives_before_a_commit_shares_the_next_entry(group: SimulatedGroup) -> None:
    """Law: proposals gather until the entry before them is committed, but only for a moment."""
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
    assert outcomes(first) == ["applied"]
    assert leader.node.last_index == last + 2

    third = propose(leader, "d")
    group.run()
    assert leader.node.last_index == last + 2
    group.pass_time(TICK_S)
    assert leader.node.last_index == last + 3
    assert set(outcomes(second + third)) == {"unknown"}


def test_nothing_gathers_long_during_a_slow_write(group: SimulatedGroup) -> None:
    """Law: during a slow write the next entry is sent to the followers without waiting for it."""
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
    """Law: at most two writes run; later proposals share the next entry and keep their order."""
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

    assert outcomes(first + second + rest) == ["applied"] * 5
    assert leader.node.last_index == last + 1


def test_a_slow_disk_does_not_silence_the_leader(group: SimulatedGroup) -> None:
    """Law: heartbeats go on while both writes wait, so that a slow disk costs no election."""
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
    """Law: a proposal is answered as lost only when another entry is applied in its place, and once."""
    leader = group.elect()
    group.cut.add(leader.id)
    proposals = propose(leader, "a")
    group.run()

    group.pass_time(2 * ELECTION_S)
    assert outcomes(proposals) == ["unknown"]
    assert "not serving" in leader.events

    group.cut.clear()
    group.pass_time(ELECTION_S)
    assert (outcomes(proposals), leader.loop.figures.proposals_lost) == (["lost"], 1)
    assert "a" not in leader.state.topics.by_name


def test_a_proposal_that_a_later_leader_commits_is_applied(group: SimulatedGroup) -> None:
    """Law: if a deposed leader's entry survives in the next term, its proposal is answered with success."""
    leader = group.elect()
    follower = others(group, leader)[0]
    proposals = propose(leader, "a")
    # The entry reaches the followers; their answers do not come back.
    group.step()
    sent, group.sent = group.sent, []
    for message in sent:
        group[message.target].loop.receive([message])
    group.step()
    group.sent.clear()
    group.cut.add(leader.id)
    group.run()
    group.pass_time(2 * ELECTION_S)
    assert outcomes(proposals) == ["unknown"]

    group.cut.clear()
    group.pass_time(ELECTION_S)
    assert outcomes(proposals) == ["applied"]
    assert "a" in follower.state.topics.by_name


def test_what_never_entered_the_log_is_lost_with_leadership(group: SimulatedGroup) -> None:
    """Law: proposals that never entered the log are refused as lost when leadership ends."""
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

    assert outcomes(collected) == ["lost", "lost"]
    assert (outcomes(in_log), leader.loop.figures.proposals_lost) == (["unknown", "unknown"], 0)
    leader.disk.is_fast = True
    while leader.disk.waiting:
        leader.disk.finish()


def test_a_proposal_without_leadership_is_lost_immediately(group: SimulatedGroup) -> None:
    """Law: a replica that does not serve refuses proposals as lost immediately."""
    leader = group.elect()
    follower = others(group, leader)[0]

    proposals = propose(follower, "a")
    group.run()

    assert outcomes(proposals) == ["lost"]


def test_a_paused_leader_asks_before_it_answers_again(group: SimulatedGroup) -> None:
    """Law: after a pause longer than an election, a leader answers only when a majority has confirmed it."""
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
    """Law: after a short pause, one round of heartbeats is enough to answer again, without an election."""
    leader = group.elect()
    term = leader.node.term
    group.pass_time(0.15, paused=[leader.id])

    assert not leader.loop.may_answer()
    group.run()

    assert leader.loop.may_answer()
    assert leader.node.term == term


def test_a_follower_that_was_paused_does_not_rush_into_an_election(group: SimulatedGroup) -> None:
    """Law: a follower makes up late ticks a few at a time, so that heartbeats in its socket are read before it campaigns."""
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
    """Law: a cut-off leader stops answering before another one leads; never do two replicas answer."""
    leader = group.elect()
    group.cut.add(leader.id)
    for _ in range(60):
        group.pass_time(TICK_S)
        answering = [node for node, each in group.replicas.items() if each.loop.may_answer()]
        assert len(answering) <= 1
    assert not leader.loop.may_answer()
    assert any(each.loop.may_answer() for each in others(group, leader))


@pytest.mark.parametrize(("leads", "follow"), [(40, 8), (8, 40), (40, 40)])
def test_a_lease_ends_before_others_elect_with_other_settings(leads: int, follow: int) -> None:
    """Law: the lease ends before others elect, even while replicas restart with another election time-out."""
    group = SimulatedGroup(election_ticks=lambda node: leads if node == 1 else follow)
    leader = group.elect(within_s=200 * TICK_S)
    if leader.id != 1:
        leader.loop.transfer(NodeId(1))
        group.pass_time(20 * TICK_S)
    assert group[1].loop.may_answer()

    group.cut.add(1)
    for _ in range(200):
        group.pass_time(TICK_S)
        assert sum(each.loop.may_answer() for each in group.replicas.values()) <= 1
    assert any(each.loop.may_answer() for each in others(group, group[1]))
    group.check()


def test_a_restart_applies_again_what_was_only_staged(group: SimulatedGroup) -> None:
    """Law: entries that were applied but not written are applied again from the log after a restart."""
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


def test_a_leader_that_cannot_read_its_disk_leads_no_more(group: SimulatedGroup) -> None:
    """Law: a leader that cannot read its disk ends, so that another replica leads."""
    leader = group.elect()
    leader.store.unreadable = True

    def read() -> list[Effect]:
        leader.store.get(Family.META, b"any")
        return []

    leader.loop.decide(read)
    group.pass_time(2 * ELECTION_S)

    assert leader.events[-1] == "failed: a test made the store in memory unreadable"
    assert [each.id for each in others(group, leader) if each.loop.serving]


def test_a_single_replica_is_a_group_of_its_own() -> None:
    """Law: the only voter elects itself and commits what it has written."""
    group = SimulatedGroup(1)
    leader = group.elect()

    proposals = propose(leader, "a")
    group.run()

    assert outcomes(proposals) == ["applied"]
    assert leader.loop.may_answer()
    group.check()


def test_a_vote_is_synced_though_entries_are_not() -> None:
    """Law: with ASYNC_FLUSH entries are not synced, but terms and votes are."""
    group = SimulatedGroup(sync_writes=False)
    leader = group.elect()
    follower = others(group, leader)[0]
    follower.disk.is_fast = False
    end, term = follower.node.last_index, follower.node.term
    entry = Entry(term, Index(end + 1), encode_entry(b"", [], follower.log.physical_end(), 0))
    told = Append(leader.id, follower.id, term, end, term, Index(0), (entry,))
    # A candidate with a newer term comes before the entry is written, so both share a write.
    candidate = others(group, leader)[1].id
    vote = Vote(candidate, follower.id, Term(term + 1), Index(end + 1), term, transfer=True)

    follower.loop.receive([told, vote])
    group.step()

    assert [sync for _, sync, _ in follower.disk.waiting] == [True]
    assert follower.node.term == term + 1


def test_entries_of_a_former_leader_that_a_loss_of_power_brings_back_are_not_applied() -> None:
    """Law: with ASYNC_FLUSH, old entries that return after a power loss are not applied;
    the replica gets the right ones from the leader.
    """
    group = SimulatedGroup(sync_writes=False)
    former = group.elect()
    group.cut = {former.id}
    for number in range(5):
        propose(former, f"overwritten-{number}")
        group.pass_time(TICK_S)
    group.pass_time(4 * ELECTION_S)
    leader = group.elect()
    group.cut = set()
    group.pass_time(ELECTION_S)
    propose(leader, "stored")
    group.pass_time(ELECTION_S)
    assert former.node.last_index == leader.node.last_index

    back = group.restart(former.id)
    assert back.node.last_index > leader.node.last_index
    leader.loop.unreachable(back.id)
    group.pass_time(ELECTION_S)

    assert "stored" in back.state.topics.by_name
    assert "overwritten-0" not in back.state.topics.by_name
    assert (back.node.commit, back.node.last_index) == (leader.node.commit, leader.node.last_index)
    group.check()


def test_async_flush_syncs_no_entries() -> None:
    """Law: ASYNC_FLUSH writes entries without sync."""
    group = SimulatedGroup(sync_writes=False)
    leader = group.elect()
    before = len(leader.disk.synced)
    propose(leader, "a")
    group.run()

    assert leader.disk.synced[before:] == [False]


def test_a_follower_that_catches_up_ends_its_turn_behind_each_share(group: SimulatedGroup) -> None:
    """Law: a follower that catches up applies entries in shares and hears others between them;
    raft hands out 1 MiB at a time.
    """
    leader = group.elect()
    follower = others(group, leader)[0]
    group.cut = {follower.id}
    record = TopicSet("t" * 120, read_queues=1, write_queues=1)
    entries, entry_size_min = 20, 120 * ENTRY_CHANGES_USUAL
    for _ in range(entries):
        leader.loop.submit([Propose([record] * ENTRY_CHANGES_USUAL)])
        group.run()
    counts = [follower.loop.figures.entries_applied]
    group.after_callback = lambda: counts.append(follower.loop.figures.entries_applied)

    group.cut = set()
    group.pass_time(1.0)

    assert counts[-1] == counts[0] + entries
    share = Config(id=follower.id).committed_bytes_max // entry_size_min
    assert max(after - before for before, after in pairwise(counts)) <= share


def test_a_step_that_was_put_off_waits_for_the_next_iteration(group: SimulatedGroup) -> None:
    """Law: a step that was put off (`CallSoon`) runs once, in the next iteration, with its effects."""
    leader = group.elect()
    proposal = Proposal("later")
    steps: list[Now] = []

    def step(now: Now) -> list[Effect]:
        steps.append(now)
        return [proposal.effect]

    leader.loop.submit([CallSoon(step)])
    assert steps == []
    group.run()

    assert (len(steps), proposal.fate) == (1, "applied")
