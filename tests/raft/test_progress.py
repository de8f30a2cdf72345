"""A leader's conclusions about a peer from its answers."""

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
    """One append at a time until the logs are known to meet."""
    progress = probing(5)
    before = progress.may_send()

    progress.sent(Index(7), 1)

    assert (before, progress.may_send(), progress.next) == (True, False, 5)


def test_a_pipeline_runs_ahead_up_to_its_window() -> None:
    """One acknowledgement covers all appends up to it."""
    progress = replicating(4, 6, 9)
    full = progress.may_send()

    progress.acknowledge(Index(9))

    assert (full, progress.may_send(), progress.match, progress.next) == (False, True, 9, 10)
    progress.check()


def test_what_is_under_way_is_bounded_by_its_bytes() -> None:
    """Law: large appends do not fill a slow link for as long as many small ones may."""
    progress = replicating(4, 6, size=60, bytes_max=60)
    full = progress.may_send()

    progress.acknowledge(Index(6))

    assert (full, progress.may_send(), progress.inflight_bytes) == (False, True, 0)
    progress.check()


def test_an_append_beyond_the_bound_leaves() -> None:
    """Law: an entry of any size gets through, and nothing beside it."""
    progress = replicating(4, bytes_max=60)
    alone = progress.may_send()

    progress.sent(Index(5), 1_000)

    assert (alone, progress.may_send()) == (True, False)
    progress.check()


def test_what_starts_over_has_the_whole_window() -> None:
    """Law: what was lost is under way no more."""
    progress = replicating(4, 6, size=60, bytes_max=60)

    progress.become_probe()
    progress.become_replicate()

    assert (progress.may_send(), progress.inflight_bytes) == (True, 0)
    progress.check()


def test_acknowledgements_may_arrive_in_any_order() -> None:
    """match never falls."""
    progress = replicating(4, 6, 9)

    news = [progress.acknowledge(Index(index)) for index in (9, 6, 9)]

    assert news == [True, False, False]
    assert progress.match == 9


def test_a_refusal_in_the_pipeline_starts_over_behind_what_is_certain() -> None:
    """Something that was sent ahead has been lost."""
    progress = replicating(4, 6, 9)

    assert progress.reject(Index(6), Index(4))

    assert (progress.state, progress.next, list(progress.inflight)) == (ProgressState.PROBE, 5, [])
    progress.check()


def test_old_refusals_mean_nothing() -> None:
    """Neither one of what was acknowledged since, nor one of an earlier probe."""
    pipeline = replicating(4, 6)
    probe = probing(9)

    assert not pipeline.reject(Index(3), Index(1))
    assert not probe.reject(Index(3), Index(1))


def test_a_peer_that_denies_what_it_acknowledged_counts_for_nothing() -> None:
    """Its disk was replaced; what it acknowledged must not count for a majority again."""
    progress = replicating(4, 6)

    assert progress.reject(Index(4), Index(1))

    assert (progress.state, progress.match, progress.next) == (ProgressState.PROBE, 0, 2)
    progress.check()


def test_a_probe_goes_back_at_least_one_step_and_never_behind_match() -> None:
    """Whatever the hint says, probing ends."""
    far = probing(9, match=3)
    far.reject(Index(8), Index(8))
    near = probing(9, match=3)
    near.reject(Index(8), Index(1))

    assert (far.next, near.next) == (8, 4)


def test_a_snapshot_stops_entries_until_it_arrives_or_fails() -> None:
    """Then probing goes on behind it, or behind match."""
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
    """The smallest thing that it can have acknowledged."""
    progress = replicating(1, 6)

    assert progress.reject(Index(1), Index(0))

    assert (progress.state, progress.match, progress.next) == (ProgressState.PROBE, 0, 1)


def test_a_refusal_whose_hint_is_what_was_acknowledged_denies_nothing() -> None:
    """It is an old one: the pipeline goes on."""
    progress = replicating(4, 6)

    assert not progress.reject(Index(4), Index(4))

    assert (progress.state, progress.match, progress.next) == (ProgressState.REPLICATE, 4, 7)


def test_who_is_sent_a_snapshot_denies_nothing() -> None:
    """The snapshot brings what its disk lost; what it acknowledged is asked about behind it."""
    progress = replicating(4)
    progress.become_snapshot(SnapshotMeta(Index(20), Term(1), Membership()))

    assert not progress.reject(Index(4), Index(1))

    assert (progress.state, progress.match) == (ProgressState.SNAPSHOT, 4)


def test_a_pipeline_begins_behind_what_is_certain() -> None:
    """Whatever probing has sent ahead."""
    progress = probing(9, match=3)

    progress.become_replicate()

    assert (progress.next, progress.may_send()) == (4, True)


def test_an_answer_of_a_peer_that_lost_its_log_counts_for_no_round() -> None:
    """Law: neither for a commit nor for a read, until a round proves that it has voted for nobody else."""
    progress = probing(9, match=3)
    progress.acked_round = 5
    counted = [(progress.counted_round, progress.counted_match)]

    progress.counts_from_round = 7

    counted.append((progress.counted_round, progress.counted_match))
    assert counted == [(5, 3), (0, 0)]
