"""A proposal is answered when its fate is certain, and not before."""

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.replication.proposals import Committed, PendingProposals

A, B, C = Propose([]), Propose([]), Propose([])


def test_an_entry_of_the_same_term_is_the_proposal() -> None:
    """(index, term) names an entry for ever."""
    pending = PendingProposals()
    pending.add(5, 2, [A, B], 1.5)

    assert pending.settle(4, 2) == (None, ())
    assert pending.settle(5, 2) == (Committed((A, B), 1.5), ())
    assert len(pending) == 0


def test_an_entry_of_another_term_means_that_the_proposal_is_lost() -> None:
    """What is committed at its index can never be replaced by it."""
    pending = PendingProposals()
    pending.add(5, 2, [A])
    pending.add(6, 2, [B])

    assert pending.settle(5, 3) == (None, (A,))
    assert len(pending) == 1
    assert pending.settle(6, 3) == (None, (B,))


def test_proposals_of_two_terms_may_wait_at_one_index() -> None:
    """A replica that led twice learns both pending from one applied entry."""
    pending = PendingProposals()
    pending.add(5, 2, [A])
    pending.add(6, 2, [B])
    pending.add(5, 4, [C])

    committed, lost = pending.settle(5, 4)
    assert (committed, lost) == (Committed((C,), 0.0), (A,))
    assert pending.settle(6, 2) == (Committed((B,), 0.0), ())


def test_what_a_snapshot_passes_stays_unknown() -> None:
    """Nobody there can know: neither success nor failure is claimed."""
    pending = PendingProposals()
    pending.add(5, 2, [A, B])

    assert pending.abandon() == 2
    assert pending.settle(5, 3) == (None, ())
