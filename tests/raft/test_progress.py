"""What a leader concludes about a peer from the peer's answers."""

from orderlymq_raft import Index, Membership, ProgressState, SnapshotMeta, Term
from orderlymq_raft.progress import Progress


def probing(next_: int, match: int = 0, *, bytes_max: int = 100) -> Progress:
    return Progress(Index(next_), inflight_max=2, inflight_bytes_max=bytes_max, match=Index(match))


def replicating(match: int, *sent: int, size: int = 1, bytes_max: int = 100) -> Progress:
    progress = probing(match + 1, match, bytes_max=bytes_max)
    progress.become_replicate()
    for index in sent:
        progress.sent(Index(index), size)
    return progress


def test_a_probe_waits_for_its_answer() -> None:
    """Law: until the leader knows where the two logs meet, it sends one append at a time."""
    progress = probing(5)
    before = progress.may_send()

    progress.sent(Index(7), 1)

    assert (before, progress.may_send(), progress.next) == (True, False, 5)


def test_a_pipeline_runs_ahead_up_to_its_window() -> None:
    """Law: at most a window of appends is unanswered; one acknowledgement covers all appends up to its index."""
    progress = replicating(4, 6, 9)
    full = progress.may_send()

    progress.acknowledge(Index(9))

    assert (full, progress.may_send(), progress.match, progress.next) == (False, True, 9, 10)
    progress.check()


def test_what_is_under_way_is_bounded_by_its_bytes() -> None:
    """Law: unanswered appends are limited by their bytes too, so that a few large ones do not fill a slow link."""
    progress = replicating(4, 6, size=60, bytes_max=60)
    full = progress.may_send()

    progress.acknowledge(Index(6))

    assert (full, progress.may_send(), progress.inflight_bytes) == (False, True, 0)
    progress.check()


def test_an_append_beyond_the_bound_leaves() -> None:
    """Law: an entry of any size is sent, but nothing more until it is answered."""
    progress = replicating(4, bytes_max=60)
    alone = progress.may_send()

    progress.sent(Index(5), 1_000)

    assert (alone, progress.may_send()) == (True, False)
    progress.check()


def test_what_starts_over_has_the_whole_window() -> None:
    """Law: when a pipeline starts over, lost appends no longer count as unanswered."""
    progress = replicating(4, 6, size=60, bytes_max=60)

    progress.become_probe()
    progress.become_replicate()

    assert (progress.may_send(), progress.inflight_bytes) == (True, 0)
    progress.check()


def test_acknowledgements_may_arrive_in_any_order() -> None:
    """Law: acknowledgements may arrive in any order; match never falls."""
    progress = replicating(4, 6, 9)

    news = [progress.acknowledge(Index(index)) for index in (9, 6, 9)]

    assert news == [True, False, False]
    assert progress.match == 9


def test_a_refusal_in_the_pipeline_starts_over_behind_what_is_certain() -> None:
    """Law: a refusal shows that an append was lost; the leader probes again behind match."""
    progress = replicating(4, 6, 9)

    assert progress.reject(Index(6), Index(4))

    assert (progress.state, progress.next, list(progress.inflight)) == (ProgressState.PROBE, 5, [])
    progress.check()


def test_old_refusals_mean_nothing() -> None:
    """Law: a refusal changes nothing if its index was acknowledged since, or if it answers an earlier probe."""
    pipeline = replicating(4, 6)
    probe = probing(9)

    assert not pipeline.reject(Index(3), Index(1))
    assert not probe.reject(Index(3), Index(1))


def test_a_peer_that_denies_what_it_acknowledged_counts_for_nothing() -> None:
    """Law: if a peer denies what it acknowledged, its disk was replaced: match returns to 0,
    so that it counts for no majority.
    """
    progress = replicating(4, 6)

    assert progress.reject(Index(4), Index(1))

    assert (progress.state, progress.match, progress.next) == (ProgressState.PROBE, 0, 2)
    progress.check()


def test_a_probe_goes_back_at_least_one_step_and_never_behind_match() -> None:
    """Law: after each refusal a probe goes back at least one step, but never behind match,
    so that probing ends for any hint.
    """
    far = probing(9, match=3)
    far.reject(Index(8), Index(8))
    near = probing(9, match=3)
    near.reject(Index(8), Index(1))

    assert (far.next, near.next) == (8, 4)


def test_a_snapshot_stops_entries_until_it_arrives_or_fails() -> None:
    """Law: no entries are sent during a snapshot.

    Probing then goes on behind the snapshot if it arrived, else behind match.
    """
    meta = SnapshotMeta(Index(20), Term(1), Membership())
    arrived, failed = replicating(4), replicating(4)
    for progress in (arrived, failed):
        progress.become_snapshot(meta)
        assert not progress.may_send()
        assert not progress.reject(Index(20), Index(4))

    arrived.become_probe()
    failed.snapshot = None
    failed.become_probe()

    assert (arrived.next, failed.next) == (21, 5)


def test_a_peer_that_denies_the_first_entry_counts_for_nothing() -> None:
    """Law: match returns to 0 even if the peer had acknowledged only the first entry."""
    progress = replicating(1, 6)

    assert progress.reject(Index(1), Index(0))

    assert (progress.state, progress.match, progress.next) == (ProgressState.PROBE, 0, 1)


def test_a_refusal_whose_hint_is_what_was_acknowledged_denies_nothing() -> None:
    """Law: a refusal whose hint equals match is an old one, so the pipeline goes on."""
    progress = replicating(4, 6)

    assert not progress.reject(Index(4), Index(4))

    assert (progress.state, progress.match, progress.next) == (ProgressState.REPLICATE, 4, 7)


def test_who_is_sent_a_snapshot_denies_nothing() -> None:
    """Law: a refusal during a snapshot does not reset match: the snapshot replaces what the disk lost,
    and a probe follows it.
    """
    progress = replicating(4)
    progress.become_snapshot(SnapshotMeta(Index(20), Term(1), Membership()))

    assert not progress.reject(Index(4), Index(1))

    assert (progress.state, progress.match) == (ProgressState.SNAPSHOT, 4)


def test_a_pipeline_begins_behind_what_is_certain() -> None:
    """Law: a pipeline begins behind match, not behind the entries that the probe sent."""
    progress = probing(9, match=3)

    progress.become_replicate()

    assert (progress.next, progress.may_send()) == (4, True)


def test_an_answer_of_a_peer_that_lost_its_log_counts_for_no_round() -> None:
    """Law: a peer that lost its log counts for no commit and no read until a later round proves that it voted for no
    other candidate.
    """
    progress = probing(9, match=3)
    progress.acked_round = 5
    counted = [(progress.counted_round, progress.counted_match)]

    progress.counts_from_round = 7

    counted.append((progress.counted_round, progress.counted_match))
    assert counted == [(5, 3), (0, 0)]
