"""The messages that a leader sends to a peer, by what the peer has answered."""

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
    """Return a leader of term 1 whose log, up to *end*, only PEER has."""
    replica = solo()
    lead(replica)
    for index in range(1, end):
        say(replica, ack(replica, index))
        replica.node.propose(b"x")
    work(replica)
    say(replica, ack(replica, end))
    return replica


def sends_snapshot() -> Replica:
    """Return a leader that sends OTHER a snapshot at 5, the end of its log."""
    replica = leader()
    replica.storage.compact(Index(4))
    say(replica, AppendResponse(OTHER, ME, Term(1), Index(0), reject=True))
    assert replica.node.status().progress[OTHER].state is ProgressState.SNAPSHOT
    return replica


def answer(round_: int, sender: NodeId = PEER) -> HeartbeatResponse:
    return HeartbeatResponse(sender, ME, Term(1), round_)


def beat(replica: Replica) -> list[Message]:
    """Let a heartbeat interval pass; return what leaves."""
    for _ in range(replica.config.heartbeat_ticks):
        replica.tick()
    return work(replica)


def test_an_older_answer_does_not_end_the_transfer_of_a_snapshot() -> None:
    """Law: entries wait until the peer has what the snapshot holds."""
    replica = sends_snapshot()
    replica.node.propose(b"y")
    work(replica)

    before = say(replica, ack(replica, 3, OTHER))
    after = say(replica, InstallSnapshotResponse(OTHER, ME, Term(1), Index(5)))

    assert not [each for each in before if each.target == OTHER]
    assert after == [Append(ME, OTHER, Term(1), Index(5), Term(1), Index(5), (entry(6, 1, b"y"),))]


def test_an_answer_leaves_what_is_under_way_alone() -> None:
    """Law: a pipeline sends each entry once as long as nothing is lost."""
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
    """Law: what is proposed meanwhile follows an answer, and the last that left may pass the bound."""
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
    """The first may have crossed it; an empty append at the end of what was sent asks."""
    replica = leader()
    replica.node.propose(b"a")
    work(replica)
    beat(replica)

    first = say(replica, answer(1))
    beat(replica)
    second = say(replica, answer(2))

    # match was noted with the first answer, and has not moved since.
    assert not [each for each in first if isinstance(each, Append)]
    assert second == [Append(ME, PEER, Term(1), Index(6), Term(1), Index(5))]


def test_a_peer_that_has_everything_is_asked_nothing() -> None:
    """However many heartbeats it answers."""
    replica = leader()
    for round_ in range(1, 4):
        beat(replica)
        assert not say(replica, answer(round_))


def test_a_peer_whose_connection_broke_is_asked_though_nothing_is_missing() -> None:
    """Law: it may have begun again, and takes a commit index from an append first."""
    replica = leader()
    replica.node.report_unreachable(PEER)
    beat(replica)

    asked = say(replica, answer(1))
    say(replica, ack(replica, 5))
    beat(replica)

    assert asked == [Append(ME, PEER, Term(1), Index(5), Term(1), Index(5))]
    assert not say(replica, answer(2))


def test_a_peer_that_has_a_former_leaders_entries_again_gets_the_right_ones() -> None:
    """Law: it acknowledged others in their place, and lost them with the power; that ends."""
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
    """Law: a replica that lost its log votes again, though nothing is written; it was asked about the state meanwhile."""
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
    """The append that it waited for may be lost."""
    replica = leader()
    work(replica)

    beat(replica)
    sent = say(replica, answer(1, OTHER))

    assert [(type(each), each.target) for each in sent] == [(Append, OTHER)]


def test_a_probe_is_repeated_without_its_entries() -> None:
    """Law: on a slow link they are on their way while heartbeats are answered; what asks about them is small."""
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
    """Law: entries that were lost on their way to a peer that is probed leave again."""
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
    """Nobody has to find it out after the election; the most complete voter is asked to run."""
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
    """A snapshot for nobody would be held, and the log with it, until the peer comes back."""
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
    """The leader asks who follows as soon as it knows what is committed, not at the next interval."""
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
    """Law: one question per term, not one per entry (section 5.3)."""
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
    """Law: a log that goes on being compacted does not begin the transfer again."""
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
    """Its transfer would begin with nobody to receive it; the first answer to a heartbeat begins it."""
    replica = leader()
    replica.storage.compact(Index(4))
    progress = replica.node._state.progress[OTHER]
    progress.recently_active = progress.active_before = False

    assert not any(isinstance(message, InstallSnapshot) for message in beat(replica))


def test_an_answer_to_a_snapshot_shows_that_the_peer_is_there() -> None:
    """As any other answer does."""
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
    """Law: an answer that commits nothing causes no message; and no shell sees work that does not exist."""
    replica = eager()

    assert not say(replica, ack(replica, 1, OTHER))


def test_what_is_committed_is_reported_once() -> None:
    """Law: an append without entries leaves for a peer when there is news for it, not with each turn."""
    replica = eager()
    replica.node.propose(b"x")
    work(replica)
    told = say(replica, ack(replica, 2))
    again = say(replica, answer(0, OTHER))

    assert told == [Append(ME, PEER, Term(1), Index(2), Term(1), Index(2))]
    assert not [each for each in again if each.target == PEER]


def test_a_shell_sees_no_work_while_all_is_under_way() -> None:
    """Law: what is committed waits for the next append, unless the leader is to send it immediately."""
    replica = leader()
    for data in (b"a", b"b"):
        replica.node.propose(data)
        work(replica)
    say(replica, ack(replica, 6))

    assert not say(replica, answer(0))


def test_a_peer_that_needs_a_snapshot_keeps_no_entry_from_the_others() -> None:
    """Law: they get theirs in the same turn, in whichever order they come."""
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
    """Law: while it is unknown where the logs meet, entries do not leave again and again."""
    replica = leader()
    replica.node.propose(b"a")
    work(replica)
    replica.node.report_unreachable(PEER)
    work(replica)

    sent = say(replica, ack(replica, 3))

    assert not sent
    assert replica.node.status().progress[PEER].state is ProgressState.PROBE


def test_where_the_log_begins_is_the_lowest_point_to_ask_for() -> None:
    """Law: a peer of older terms is asked whether it has what was compacted, before a snapshot is sent."""
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
    """Law: what was under way is lost; whether it needs a snapshot is asked when it is heard again."""
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
    """Law: not with each turn; taking one costs."""
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
    """Law: a peer that is probed is asked by something small; an entry leaves when its answer says that it fits."""
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
    """Law: it may have been removed while its answer was on its way."""
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
    """Law: up to the bound entries leave without a question; what comes later waits for the answer."""
    replica = leader()
    replica.node.report_unreachable(PEER)
    replica.node.propose(bytes(size))
    first = work(replica)

    replica.node.propose(b"y")

    assert not [each for each in work(replica) if each.target == PEER]
    (sent,) = [each for each in first if isinstance(each, Append) and each.target == PEER]
    assert bool(sent.entries) == (size <= PROBE_BYTES_MAX)


def test_a_probe_that_is_about_to_leave_is_not_asked_about() -> None:
    """Law: an answer to a heartbeat that comes before it finds nothing lost."""
    replica = leader()
    beat(replica)
    replica.node.report_unreachable(PEER)
    replica.node.propose(b"a")

    sent = say(replica, answer(1))

    assert [each for each in sent if isinstance(each, Append) and each.target == PEER] == [
        Append(ME, PEER, Term(1), Index(5), Term(1), Index(5), (entry(6, 1, b"a"),))
    ]
