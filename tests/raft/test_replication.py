"""Which messages a leader sends to a peer, depending on the peer's answers."""

import pytest

from orderlymq_raft import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Index,
    InstallSnapshot,
    InstallSnapshotResponse,
    Message,
    NodeId,
    ProgressState,
    SnapshotMeta,
    Term,
    TimeoutNow,
)
from orderlymq_raft.log import Unavailable
from orderlymq_raft.replication import PROBE_BYTES_MAX
from tests.raft.harness.replica import Replica
from tests.raft.harness.solo import ME, OTHER, PEER, ack, entry, lead, say, solo, work


def leader(end: int = 5) -> Replica:
    """Return a leader of term 1; of its peers only PEER has the log up to *end*."""
    replica = solo()
    lead(replica)
    for index in range(1, end):
        say(replica, ack(replica, index))
        replica.node.propose(b"x")
    work(replica)
    say(replica, ack(replica, end))
    return replica


def sends_snapshot() -> Replica:
    """Return a leader that is sending OTHER a snapshot at index 5, the end of its log."""
    replica = leader()
    replica.storage.compact(Index(4))
    say(replica, AppendResponse(OTHER, ME, Term(1), Index(0), reject=True))
    assert replica.node.status().progress[OTHER].state is ProgressState.SNAPSHOT
    return replica


def answer(round_: int, sender: NodeId = PEER) -> HeartbeatResponse:
    return HeartbeatResponse(sender, ME, Term(1), round_)


def beat(replica: Replica) -> list[Message]:
    """Let a heartbeat interval pass; return the messages that are sent."""
    for _ in range(replica.config.heartbeat_ticks):
        replica.tick()
    return work(replica)


def test_an_older_answer_does_not_end_the_transfer_of_a_snapshot() -> None:
    """Law: entries wait until the peer confirms the snapshot; an older acknowledgement does not release them."""
    replica = sends_snapshot()
    replica.node.propose(b"y")
    work(replica)

    before = say(replica, ack(replica, 3, OTHER))
    after = say(replica, InstallSnapshotResponse(OTHER, ME, Term(1), Index(5)))

    assert not [each for each in before if each.target == OTHER]
    assert after == [Append(ME, OTHER, Term(1), Index(5), Term(1), Index(5), (entry(6, 1, b"y"),))]


def test_an_answer_leaves_what_is_under_way_alone() -> None:
    """Law: as long as nothing is lost, a pipeline sends each entry once."""
    replica = leader()
    replica.node.propose(b"a")
    first = work(replica)
    replica.node.propose(b"b")
    second = work(replica)

    third = say(replica, ack(replica, 6))

    to_peer = [each for each in [*first, *second, *third] if each.target == PEER]
    assert to_peer == [
        Append(ME, PEER, Term(1), Index(5), Term(1), Index(5), (entry(6, 1, b"a"),)),
        Append(ME, PEER, Term(1), Index(6), Term(1), Index(5), (entry(7, 1, b"b"),)),
    ]


def test_no_more_bytes_leave_than_may_be_under_way() -> None:
    """Law: entries beyond the limit of unanswered bytes wait for an answer; the last one sent may pass the limit."""
    replica = solo(inflight_bytes_max=8, entries_per_append_bytes_max=1)
    lead(replica)
    say(replica, ack(replica, 1))
    for size in (4, 4, 4, 20):
        replica.node.propose(bytes(size))

    steps = [work(replica), *(say(replica, ack(replica, index)) for index in (2, 3, 4))]

    assert [
        [each.entries[0].index for each in sent if isinstance(each, Append) and each.target == PEER]
        for sent in steps
    ] == [[2, 3], [4], [5], []]


def test_a_lost_append_is_found_by_the_second_answer_to_heartbeats() -> None:
    """Law: the second answered heartbeat without progress shows that an append was lost, because the first may have crossed it.

    An empty append then asks for the end of the log.
    """
    replica = leader()
    replica.node.propose(b"a")
    work(replica)
    beat(replica)

    first = say(replica, answer(1))
    beat(replica)
    second = say(replica, answer(2))

    # match was noted with the first answer and has not moved since.
    assert not [each for each in first if isinstance(each, Append)]
    assert second == [Append(ME, PEER, Term(1), Index(6), Term(1), Index(5))]


def test_a_peer_that_has_everything_is_asked_nothing() -> None:
    """Law: a peer that has everything gets no append, however many heartbeats it answers."""
    replica = leader()
    for round_ in range(1, 4):
        beat(replica)
        assert not say(replica, answer(round_))


def test_a_peer_whose_connection_broke_is_asked_though_nothing_is_missing() -> None:
    """Law: after its connection broke, a peer gets an empty append even if it lacks nothing: it may have restarted,
    and learns the commit index from appends first.
    """
    replica = leader()
    replica.node.report_unreachable(PEER)
    beat(replica)

    asked = say(replica, answer(1))
    say(replica, ack(replica, 5))
    beat(replica)

    assert asked == [Append(ME, PEER, Term(1), Index(5), Term(1), Index(5))]
    assert not say(replica, answer(2))


def test_a_peer_that_has_a_former_leaders_entries_again_gets_the_right_ones() -> None:
    """Law: a peer that lost acknowledged entries in a power failure, and holds a former leader's again,
    is sent the right ones.
    """
    replica = solo(1, 1)
    lead(replica)
    term = replica.node.term
    say(replica, ack(replica, 3))
    replica.node.report_unreachable(PEER)
    beat(replica)
    say(replica, HeartbeatResponse(PEER, ME, term, 1))

    denial = AppendResponse(
        PEER, ME, term, Index(3), reject=True, hint_index=Index(3), hint_term=Term(1)
    )
    sent = say(replica, denial)

    assert [(each.prev_index, len(each.entries)) for each in sent if isinstance(each, Append)] == [
        (2, 1)
    ]


def test_who_has_put_a_state_in_place_hears_what_is_committed() -> None:
    """Law: after a peer has installed a snapshot, an empty append tells it the commit index.

    A replica that lost its log needs it to vote again.
    """
    replica = sends_snapshot()
    for round_ in (1, 2):
        beat(replica)
        say(replica, answer(round_, OTHER))
    replica.node.report_snapshot(OTHER, ok=True)
    say(replica, InstallSnapshotResponse(OTHER, ME, Term(1), Index(5)))
    beat(replica)

    sent = say(replica, answer(3, OTHER))

    assert sent == [Append(ME, OTHER, Term(1), Index(5), Term(1), Index(5))]


def test_a_probe_goes_on_with_each_answer_to_a_heartbeat() -> None:
    """Law: each answer to a heartbeat sends a waiting probe again, because the first may be lost."""
    replica = leader()
    work(replica)

    beat(replica)
    sent = say(replica, answer(1, OTHER))

    assert [(type(each), each.target) for each in sent] == [(Append, OTHER)]


def test_a_probe_is_repeated_without_its_entries() -> None:
    """Law: a probe is repeated without its entries: on a slow link the first may still be on its way."""
    replica = leader()
    replica.node.report_unreachable(PEER)
    replica.node.propose(b"a")
    first = work(replica)
    for _ in range(2):
        beat(replica)

    again = [*say(replica, answer(1)), *say(replica, answer(2))]

    question = Append(ME, PEER, Term(1), Index(5), Term(1), Index(5))
    assert [each for each in first if each.target == PEER] == [
        Append(ME, PEER, Term(1), Index(5), Term(1), Index(5), (entry(6, 1, b"a"),))
    ]
    assert [each for each in again if each.target == PEER] == [question] * 2


def test_what_a_probe_has_lost_follows_the_answer_to_its_question() -> None:
    """Law: entries of a lost probe are sent again after the peer has answered the empty one."""
    replica = leader()
    replica.node.report_unreachable(PEER)
    replica.node.propose(b"a")
    work(replica)
    for round_ in (1, 2):
        beat(replica)
        say(replica, answer(round_))

    sent = say(replica, ack(replica, 5))

    assert [each for each in sent if each.target == PEER] == [
        Append(ME, PEER, Term(1), Index(5), Term(1), Index(5), (entry(6, 1, b"a"),))
    ]


def test_a_leader_that_steps_down_sends_its_commit_index_to_all() -> None:
    """Law: a leader that steps down sends its commit index to all and asks the voter with the most complete log to
    campaign.
    """
    replica = leader()
    replica.node.propose(b"a")
    work(replica)
    replica.step(ack(replica, 6))
    replica.step(ack(replica, 1, OTHER))
    work(replica)
    replica.node.propose(b"b")

    assert replica.node.step_down()

    sent = work(replica)
    last = entry(7, 1, b"b")
    assert Append(ME, PEER, Term(1), Index(6), Term(1), Index(6), (last,)) in sent
    assert [each for each in sent if isinstance(each, TimeoutNow)] == [
        TimeoutNow(ME, PEER, Term(1))
    ]


def test_a_silent_peer_is_sent_no_snapshot() -> None:
    """Law: no snapshot is sent to a silent peer, because the snapshot and the log would be kept until it returns."""
    replica = leader()
    for _ in range(2 * replica.config.election_ticks):
        replica.tick()
        work(replica)
        say(replica, ack(replica, 5))
    replica.storage.compact(Index(4))

    say(replica, answer(1))
    replica.node.propose(b"x")
    silent = work(replica)
    heard = say(replica, answer(1, OTHER))

    assert not [each for each in silent if isinstance(each, InstallSnapshot)]
    assert [each.target for each in heard if isinstance(each, InstallSnapshot)] == [OTHER]


def test_a_read_that_came_before_the_first_commit_leaves_with_it() -> None:
    """Law: a read that waits for the leader's first commit is confirmed from that moment on,
    not from the next heartbeat interval.
    """
    replica = solo()
    lead(replica)
    replica.node.read_index(7)
    before = work(replica)

    after = say(replica, ack(replica, 1))

    assert not before
    assert [each for each in after if isinstance(each, Heartbeat)] == [
        Heartbeat(ME, PEER, Term(1), Index(1), 1),
        Heartbeat(ME, OTHER, Term(1), Index(0), 1),
    ]


def test_where_logs_part_the_leader_goes_back_to_the_last_term_of_the_peer() -> None:
    """Law: where logs differ, the leader asks once per term, not once per entry (section 5.3)."""
    replica = solo(1, 1, 1, 3, 3, 3, term=3)
    lead(replica)

    sent = say(
        replica,
        AppendResponse(
            PEER,
            ME,
            Term(4),
            Index(6),
            reject=True,
            hint_index=Index(5),
            hint_term=Term(1),
        ),
    )

    assert [(each.prev_index, each.prev_term) for each in sent if isinstance(each, Append)] == [
        (3, 1)
    ]


def test_a_snapshot_under_way_is_asked_for_behind_what_was_compacted() -> None:
    """Law: while a snapshot is being sent, compaction of the log does not start the transfer again."""
    replica = sends_snapshot()
    for index in (6, 7):
        replica.node.propose(b"y")
        work(replica)
        say(replica, ack(replica, index))
    replica.storage.compact(Index(7))

    beat(replica)
    sent = say(replica, answer(1, OTHER))

    assert sent == [Append(ME, OTHER, Term(1), Index(5), Term(1), Index(7))]


def test_a_peer_that_is_not_there_is_sent_no_snapshot() -> None:
    """Law: no snapshot is sent to a peer that is away; its first answer to a heartbeat starts the transfer."""
    replica = leader()
    replica.storage.compact(Index(4))
    progress = replica.node._state.progress[OTHER]
    progress.recently_active = progress.active_before = False

    assert not any(isinstance(message, InstallSnapshot) for message in beat(replica))


def test_an_answer_to_a_snapshot_shows_that_the_peer_is_there() -> None:
    """Law: an answer to a snapshot shows that the peer is alive, as any other answer does."""
    replica = sends_snapshot()
    progress = replica.node._state.progress[OTHER]
    progress.recently_active = False

    say(replica, InstallSnapshotResponse(OTHER, ME, Term(1), Index(5)))

    assert progress.recently_active


def eager() -> Replica:
    """Return a leader that sends its commit index immediately; PEER has its first entry."""
    replica = solo(eager_commit=True)
    lead(replica)
    say(replica, ack(replica, 1))
    return replica


def test_who_confirms_late_hears_what_is_committed_with_the_next_heartbeat() -> None:
    """Law: an acknowledgement that commits nothing causes no message and no empty turn;
    the next heartbeat brings the commit index.
    """
    replica = eager()

    assert not say(replica, ack(replica, 1, OTHER))


def test_what_is_committed_is_reported_once() -> None:
    """Law: a commit index is sent to a peer in an empty append once, not with each turn."""
    replica = eager()
    replica.node.propose(b"x")
    work(replica)
    told = say(replica, ack(replica, 2))
    again = say(replica, answer(0, OTHER))

    assert told == [Append(ME, PEER, Term(1), Index(2), Term(1), Index(2))]
    assert not [each for each in again if each.target == PEER]


def test_a_shell_sees_no_work_while_all_is_under_way() -> None:
    """Law: without eager_commit, a commit alone causes no turn; it is sent with the next append."""
    replica = leader()
    for data in (b"a", b"b"):
        replica.node.propose(data)
        work(replica)
    say(replica, ack(replica, 6))

    assert not say(replica, answer(0))


def test_a_peer_that_needs_a_snapshot_keeps_no_entry_from_the_others() -> None:
    """Law: a peer that needs a snapshot does not delay the entries of other peers in the same turn."""
    replica = solo()
    lead(replica)
    for index in range(1, 5):
        say(replica, ack(replica, index, OTHER))
        replica.node.propose(b"x")
    work(replica)
    say(replica, ack(replica, 5, OTHER))
    replica.storage.compact(Index(4))

    replica.step(AppendResponse(PEER, ME, Term(1), Index(0), reject=True))
    replica.node.propose(b"y")
    sent = work(replica)

    assert [(type(each), each.target) for each in sent] == [
        (InstallSnapshot, PEER),
        (Append, OTHER),
    ]


def test_an_older_answer_does_not_end_a_probe() -> None:
    """Law: an older acknowledgement does not end a probe, so that entries are not sent again and again."""
    replica = leader()
    replica.node.propose(b"a")
    work(replica)
    replica.node.report_unreachable(PEER)
    work(replica)

    sent = say(replica, ack(replica, 3))

    assert not sent
    assert replica.node.status().progress[PEER].state is ProgressState.PROBE


def test_where_the_log_begins_is_the_lowest_point_to_ask_for() -> None:
    """Law: before a snapshot is sent, the leader asks the peer whether it has the last compacted entry."""
    replica = solo(2, 2, 2, 2, 3, 3, term=3)
    lead(replica)
    replica.storage.set_applied(Index(4))
    replica.storage.compact(Index(4))
    refusal = AppendResponse(
        PEER, ME, Term(4), Index(6), reject=True, hint_index=Index(6), hint_term=Term(1)
    )

    sent = say(replica, refusal)

    assert [(type(each), each.target) for each in sent] == [(Append, PEER)]
    assert [(each.prev_index, each.prev_term) for each in sent if isinstance(each, Append)] == [
        (4, 2)
    ]


def test_a_peer_that_went_away_is_sent_no_snapshot() -> None:
    """Law: a peer that became unreachable is not sent a snapshot until it answers again."""
    replica = leader()
    say(replica, ack(replica, 5, OTHER))
    for index in (6, 7):
        replica.node.propose(b"y")
        work(replica)
        say(replica, ack(replica, index))
    for _ in range(2 * replica.config.election_ticks):
        replica.tick()
        work(replica)
        say(replica, ack(replica, 7))
    replica.storage.compact(Index(7))

    replica.node.report_unreachable(OTHER)
    assert replica.begin_turn() is None
    heard = say(replica, answer(1, OTHER))

    assert [(type(each), each.target) for each in heard] == [(InstallSnapshot, OTHER)]


def test_a_snapshot_that_is_not_there_yet_is_asked_for_with_each_heartbeat() -> None:
    """Law: the leader asks the store for a missing snapshot with each heartbeat, not with each turn,
    because making one is expensive.
    """
    replica = leader()
    replica.storage.compact(Index(4))
    asked: list[int] = []

    def unavailable() -> SnapshotMeta:
        asked.append(1)
        raise Unavailable(4)

    replica.storage.snapshot = unavailable  # type: ignore[method-assign]  # a store that takes its time
    beat(replica)
    replica.step(AppendResponse(OTHER, ME, Term(1), Index(0), reject=True))
    assert replica.begin_turn() is None
    for index in (6, 7):
        replica.node.propose(b"y")
        work(replica)
        say(replica, ack(replica, index))
    assert len(asked) == 1

    replica.step(answer(1, OTHER))
    assert replica.begin_turn() is None
    assert len(asked) == 2


def test_a_large_entry_leaves_once_however_often_heartbeats_overtake_it() -> None:
    """Law: a probe of a large entry is empty; the entry is sent once, when the answer says that the logs match."""
    replica = leader()
    say(replica, ack(replica, 5, OTHER))
    for _ in range(4):
        beat(replica)
    replica.node.propose(bytes(PROBE_BYTES_MAX + 1))
    work(replica)
    replica.node.report_unreachable(OTHER)

    asked = [*work(replica), *say(replica, answer(1, OTHER)), *say(replica, answer(2, OTHER))]
    answered = say(replica, ack(replica, 5, OTHER))
    under_way = [*say(replica, answer(3, OTHER)), *say(replica, answer(4, OTHER))]

    question = Append(ME, OTHER, Term(1), Index(5), Term(1), Index(5))
    assert [each for each in asked if each.target == OTHER] == [question] * 3
    carried = [each for each in answered if isinstance(each, Append) and each.entries]
    assert [(each.target, each.prev_index) for each in carried] == [(OTHER, 5)]
    assert not [each for each in under_way if isinstance(each, Append) and each.entries]


def test_an_answer_of_who_is_no_member_changes_nothing() -> None:
    """Law: the answer of a node that is no member changes nothing; it may have been removed meanwhile."""
    replica, stranger = leader(), NodeId(9)
    before = replica.node.status()

    answers = (
        ack(replica, 5, stranger),
        InstallSnapshotResponse(stranger, ME, Term(1), Index(5)),
        answer(0, stranger),
    )

    assert not say(replica, *answers)
    assert replica.node.status() == before


@pytest.mark.parametrize("size", [PROBE_BYTES_MAX, PROBE_BYTES_MAX + 1])
def test_a_peer_that_is_probed_gets_small_entries_or_one_question(size: int) -> None:
    """Law: a probe carries entries up to its size limit, else none; later entries wait for its answer."""
    replica = leader()
    replica.node.report_unreachable(PEER)
    replica.node.propose(bytes(size))
    first = work(replica)

    replica.node.propose(b"y")

    assert not [each for each in work(replica) if each.target == PEER]
    (sent,) = [each for each in first if isinstance(each, Append) and each.target == PEER]
    assert bool(sent.entries) == (size <= PROBE_BYTES_MAX)


def test_a_probe_that_is_about_to_leave_is_not_asked_about() -> None:
    """Law: an answer to a heartbeat that arrives before a probe is sent does not make the probe empty."""
    replica = leader()
    beat(replica)
    replica.node.report_unreachable(PEER)
    replica.node.propose(b"a")

    sent = say(replica, answer(1))

    assert [each for each in sent if isinstance(each, Append) and each.target == PEER] == [
        Append(ME, PEER, Term(1), Index(5), Term(1), Index(5), (entry(6, 1, b"a"),))
    ]
